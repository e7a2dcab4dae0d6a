"""Hostile data: archives, tables and images that are broken, lie or grow without measure, and what is no file."""

from __future__ import annotations

import io
import json
import os
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.lib import format as npy
from PIL import Image

from hostile.cases import Case, places

ROWS = 40
MIB = 2**20

KEYS = {
    "rounds": "1",
    "data.clients": "2",
    "data.samples": "8",
    "data.test": "0.2",
    "partition.scheme": "'iid'",
    "model.name": "'mlp'",
    "engine.name": "'loop'",
    "algorithm.name": "'fedavg'",
}
"""What makes a run on valid data end after a moment."""

Make = Callable[[Path], object]
"""Makes hostile data at a path."""


def datasets() -> list[Case]:
    """Every hostile data set."""
    archives = {**_archives(), **_headers(), **_arrays(), **_no_files()}
    tables = {**_tables(), **_no_files(), **_folders()}
    return [
        *(_npz(f"archive: {name}", make) for name, make in archives.items()),
        *(_npz(f"possible archive: {name}", make, accepted=True) for name, make in _possible_arrays().items()),
        *(_folder(f"table: {name}", make) for name, make in tables.items()),
        *(_folder(f"possible table: {name}", make, accepted=True) for name, make in _possible_tables().items()),
        *(_folder(f"image: {name}", _shown(data)) for name, data in _images().items()),
        *(_folder(f"format: {name}", _shown(data), "PNG or JPEG") for name, data in _formats().items()),
    ]


def _case(name: str, make: Make, file: str, data: str, names: str, accepted: bool) -> Case:
    def command(folder: Path) -> list[str]:
        path = folder / file
        path.parent.mkdir(exist_ok=True)
        make(path)
        return ["run", *(f"--set={key}={value}" for key, value in KEYS.items()), f"--set=data.name={data}"]

    return Case(name, command, names, accepted)


def _npz(name: str, make: Make, *, accepted: bool = False) -> Case:
    return _case(name, make, "hostile.npz", "../hostile.npz", "", accepted)


def _folder(name: str, make: Make, names: str = "", *, accepted: bool = False) -> Case:
    return _case(name, make, "hostile/train.parquet", "../hostile", names, accepted)


def _no_files() -> dict[str, Make]:
    """What can stand at a path in the place of a file of data."""
    return {
        **places(),
        "a link to a file of the system": lambda path: path.symlink_to("/etc/passwd"),
        "an empty file": Path.touch,
        "a file of NULs": lambda path: path.write_bytes(bytes(100_000)),
        "random bytes": lambda path: path.write_bytes(np.random.default_rng(0).bytes(100_000)),
    }


# Archives.


def _x(rows: int = ROWS) -> np.ndarray:
    return np.random.default_rng(0).random((rows, 1, 4, 4), dtype=np.float32)


def _y(rows: int = ROWS) -> np.ndarray:
    return np.arange(rows) % 2


def _saved(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def _archive(path: Path, members: Iterable[tuple[str, bytes]], kind: int = zipfile.ZIP_STORED) -> None:
    with zipfile.ZipFile(path, "w", kind) as archive:
        for name, content in members:
            archive.writestr(name, content)


def _pair() -> list[tuple[str, bytes]]:
    return [("x.npy", _saved(_x())), ("y.npy", _saved(_y()))]


def deflated_zeros(size: int, *, after: bytes = b"") -> bytes:
    """A deflated stream of so many zeros, made without compressing them all.

    Args:
        size: of the zeros in bytes.
        after: what comes before them in the stream.
    """
    mebibytes, rest = divmod(size, MIB)
    compressor = zlib.compressobj(9, zlib.DEFLATED, -15)
    # A block may follow itself: a full flush forgets what came before.
    start = compressor.compress(after) + compressor.flush(zlib.Z_FULL_FLUSH)
    block = compressor.compress(bytes(MIB)) + compressor.flush(zlib.Z_FULL_FLUSH)
    return start + block * mebibytes + deflated(bytes(rest))


def zlib_zeros(size: int) -> bytes:
    """So many zeros as `zlib.compress` writes them: a header of two bytes, the stream and Adler's checksum."""
    checksum = size % 65521 << 16 | 1
    return b"\x78\xda" + deflated_zeros(size) + struct.pack(">L", checksum)


def raw_zip(path: Path, members: list[tuple[str, bytes, int]], *, shared: bool = False) -> None:
    """A zip file of deflated members whose sizes are as they are said to be.

    Args:
        path: of the file.
        members: name, deflated content, and the size that it is said to have.
        shared: whether all members point to the content of the first.
    """
    with path.open("wb") as file:
        entries: list[tuple[str, int, int, int]] = []
        for number, (name, content, size) in enumerate(members):
            place = file.tell() if number == 0 or not shared else entries[0][1]
            if number == 0 or not shared:
                file.write(struct.pack("<4s5H3L2H", b"PK\3\4", 20, 0, 8, 0, 0, 0, len(content), size, len(name), 0))
                file.write(name.encode() + content)
            entries.append((name, place, len(content), size))
        start = file.tell()
        for name, place, length, size in entries:
            fields = (b"PK\1\2", 20, 20, 0, 8, 0, 0, 0, length, size, len(name), 0, 0, 0, 0, 0, place)
            file.write(struct.pack("<4s6H3L5H2L", *fields) + name.encode())
        length = file.tell() - start
        file.write(struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, len(entries), len(entries), length, start, 0))


def _header(dtype: str, shape: str, *, version: tuple[int, int] = (1, 0), length: int | None = None) -> bytes:
    text = f"{{'descr': {dtype}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    size = len(text) if length is None else length
    return npy.magic(*version) + size.to_bytes(2 if version == (1, 0) else 4, "little") + text


def deflated(content: bytes) -> bytes:
    compressor = zlib.compressobj(9, zlib.DEFLATED, -15)
    return compressor.compress(content) + compressor.flush()


def _bomb(mebibytes: int, said: int | None = None, *, names: tuple[str, ...] = ("x.npy",)) -> Make:
    """An array of zeros in an archive that is a thousand times smaller."""

    def make(path: Path) -> None:
        header = _header("'|u1'", f"({mebibytes}, 1, 1024, 1024)")
        stream = deflated_zeros(mebibytes * MIB, after=header)
        size = len(header) + mebibytes * MIB if said is None else said
        labels = _saved(np.zeros(mebibytes, np.int64))
        raw_zip(path, [*((name, stream, size) for name in names), ("y.npy", deflated(labels), len(labels))])

    return make


def _archives() -> dict[str, Make]:
    samples, labels = _saved(_x()), _saved(_y())
    entry = struct.pack("<4s6H3L5H2L", b"PK\1\2", 20, 20, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0) + b"x"
    directory = entry * (80 * MIB // len(entry))
    end = struct.Struct("<4s4H2LH")

    def cut(path: Path) -> None:
        np.savez(path, x=_x(), y=_y())
        os.truncate(path, path.stat().st_size // 2)

    def encrypted(path: Path) -> None:
        np.savez(path, x=_x(), y=_y())
        content = bytearray(path.read_bytes())
        # The flag, as a program writes it that asks for a password.
        content[content.find(b"PK\1\2") + 8] |= 1
        path.write_bytes(content)

    return {
        "cut in the middle": cut,
        "encrypted": encrypted,
        "65,535 members that are not there": lambda path: path.write_bytes(
            end.pack(b"PK\5\6", 0, 0, 65535, 65535, 2**32 - 1, 2**32 - 1, 0)
        ),
        "a directory of 80 MiB": lambda path: path.write_bytes(
            directory + end.pack(b"PK\5\6", 0, 0, 0, 0, len(directory), 0, 0)
        ),
        "20,000 members": lambda path: _archive(path, [*_pair(), *((f"c{i}.npy", b"") for i in range(20_000))]),
        "bzip2": lambda path: _archive(path, _pair(), zipfile.ZIP_BZIP2),
        "500 members that are one": lambda path: raw_zip(
            path, [(f"c{i}.npy", deflated(labels), len(labels)) for i in range(500)], shared=True
        ),
        "a member twice": lambda path: raw_zip(path, [("x.npy", deflated(samples), len(samples))] * 2),
        "a member that says it has 4 GiB": lambda path: raw_zip(
            path, [("x.npy", deflated(samples), 2**32 - 2), ("y.npy", deflated(labels), len(labels))]
        ),
        "a program": lambda path: _archive(path, [*_pair(), ("../../../gone.py", b"import os")]),
        "a name that colours the terminal": lambda path: _archive(path, [("\x1b[31m.npy", b"")]),
        "5,400 MiB of zeros": _bomb(2700, names=("x.npy", "a.npy")),
        "900 MiB of zeros that say they are 1,000 bytes": _bomb(900, said=1000),
    }


class Command:
    """Makes a folder where it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("made-by-pickle",)


def _headers() -> dict[str, Make]:
    data = _x().tobytes()
    side = "(40, 1, 4, 4)"
    pickled = io.BytesIO()
    np.save(pickled, np.array([Command()] * ROWS, dtype=object), allow_pickle=True)
    contents = {
        "objects that run a program": pickled.getvalue(),
        "a negative side": _header("'<f4'", "(-40, -1, 4, 4)") + data,
        "10**18 samples": _header("'<f4'", f"({10**18},)") + data,
        "2**64 samples": _header("'<f4'", f"({2**64}, 1)") + data,
        "nested sides": _header("'<f4'", "(" * 200 + ")" * 200) + data,
        "a program as a shape": _header("'<f4'", "(__import__('os').mkdir('gone'),)") + data,
        "too many samples": _header("'<f4'", "(41, 1, 4, 4)") + data,
        "a program as a type": _header("__import__('os').mkdir('gone')", side) + data,
        "a large array in each place": _header("('<f4', (1000000, 1000000))", side) + data,
        "texts of 2**30 characters": _header("'<U1073741824'", side) + data,
        "10**12 texts without characters": _header("'<U0'", f"({10**12},)"),
        "a header of four gigabytes": _header("'<f4'", "(40,)", version=(2, 0), length=2**32 - 1) + data,
    }

    def member(content: bytes) -> Make:
        return lambda path: _archive(path, [("x.npy", content), ("y.npy", _saved(_y()))])

    return {name: member(content) for name, content in contents.items()}


def _saved_in(**arrays: Any) -> Make:
    return lambda path: np.savez_compressed(path, **arrays)


def _arrays() -> dict[str, Make]:
    return {
        "a class of 10**12": _saved_in(x=_x(), y=_y() * 10**12),
        "a class of 2**64 - 1": _saved_in(x=_x(), y=np.full(ROWS, 2**64 - 1, np.uint64)),
        "150,000 classes": _saved_in(x=np.zeros((150_000, 1), np.uint8), y=np.arange(150_000)),
        "a class of a million characters": _saved_in(x=_x(2), y=np.array(["a", "b" * 1_000_000])),
        "samples of 31,000,000 numbers": _saved_in(x=np.zeros((2, 31_000_000), np.uint8), y=np.array([0, 1])),
    }


def _possible_arrays() -> dict[str, Make]:
    """What looks hostile and is valid."""
    return {
        "the other order of bytes": _saved_in(x=_x().astype(">f4"), y=_y().astype(">i2")),
        # Nothing is unpacked, so that the name is only a name of a column.
        "a column whose name leads outside": lambda path: _archive(path, [*_pair(), ("../../gone.npy", _saved(_y()))]),
        "zeros that compress a thousand times": _saved_in(x=np.zeros((2000, 1, 100, 100), np.uint8), y=_y(2000)),
    }


# Tables.


def _png(side: int = 4, shade: int = 0) -> bytes:
    buffer = io.BytesIO()
    Image.new("L", (side, side), shade).save(buffer, "PNG")
    return buffer.getvalue()


def _encoded(data: list[bytes], path: str | None = None) -> Any:
    """A column of images, or of where they are."""
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    return pa.array([{"bytes": None if path else one, "path": path} for one in data], kind)


def _table(
    info: str | None = None, *, image: Any = None, label: Any = None, options: dict[str, Any] | None = None, **more: Any
) -> Make:
    """A table of sound images and labels, but for what is given."""
    columns = {"label": pa.array(_y()) if label is None else label, **more}
    if not more.keys() & {"list", "signal"}:
        columns["image"] = _encoded([_png(shade=row) for row in range(ROWS)]) if image is None else image

    def make(path: Path) -> None:
        table = pa.table(columns)
        if info is not None:
            table = table.replace_schema_metadata({"huggingface": info})
        pq.write_table(table, path, **(options or {}))

    return make


def _edited(edit: Callable[[bytes], bytes]) -> Make:
    def make(path: Path) -> None:
        _table()(path)
        path.write_bytes(edit(path.read_bytes()))

    return make


def _alike(rows: int, value: Any) -> Make:
    """A column of so many equal values, which take no space, beside labels that take none."""

    def make(path: Path) -> None:
        block = pa.table({"values": pa.repeat(pa.scalar(value), rows // 10), "label": pa.repeat(1, rows // 10)})
        with pq.ParquetWriter(path, block.schema, write_statistics=False) as writer:
            for _ in range(10):
                writer.write_table(block)

    return make


def _one_large_image(path: Path) -> None:
    """An image of 5 MB that is in the file once, and in many rows."""
    noise = Image.frombytes("RGB", (1300, 1300), np.random.default_rng(0).bytes(1300 * 1300 * 3))
    buffer = io.BytesIO()
    noise.save(buffer, "PNG", compress_level=0)
    images = pa.DictionaryArray.from_arrays(np.zeros(110, np.int32), pa.array([buffer.getvalue()]))
    # Without Arrow's schema it is a column of bytes as any other.
    options = {"dictionary_pagesize_limit": 10 * MIB, "store_schema": False}
    _table(image=images, label=pa.array(_y(110)), options=options)(path)


def _recording(**columns: Any) -> Make:
    """Recordings of which one column is not as it should be."""
    sound = {"subject": [1, 2], "activity": [0, 1], "trial": [1, 2], "length": [128] * 2, "channels": [2] * 2}
    arrays = {"signal": [[0.5] * 256] * 2, **sound, **columns}
    return lambda path: pq.write_table(pa.table({name: pa.array(values) for name, values in arrays.items()}), path)


def _tables() -> dict[str, Make]:
    far = pa.array([0, 10**12] * (ROWS // 2))
    long = "x" * 2_000_000
    side = 31_000_000
    names = json.dumps({"info": {"features": {"label": {"names": ["a"] * 1_000_000}}}})
    nested = json.loads("[" * 50 + "1.0" + "]" * 50)
    return {
        "cut in the middle": _edited(lambda content: content[: len(content) // 2]),
        "a footer of 4 GiB": _edited(lambda content: content[:-8] + b"\xff\xff\xff\xffPAR1"),
        "an encrypted footer": _edited(lambda content: content[:-4] + b"PARE"),
        "a footer of NULs": _edited(lambda content: content[:-200] + bytes(192) + content[-8:]),
        "20,000,000 equal rows": _alike(20_000_000, 1.0),
        "40,000 equal lists of 2,000 numbers": _alike(40_000, [1.0] * 2000),
        "1,200 columns": _table(**{f"c{i}": pa.array([i] * ROWS) for i in range(1200)}),
        "lists, 50 deep": _table(list=pa.array([nested] * ROWS)),
        "lists of different lengths": _table(list=pa.array([[1.0], [1.0, 2.0]] * 20)),
        "lists of what is no number": _table(list=pa.array([[float("inf")]] * ROWS)),
        "a list of 31,000,000 numbers": _table(
            list=pa.ListArray.from_arrays([0, side, 2 * side], np.zeros(2 * side, np.uint8)),
            label=pa.array([0, 1]),
            options={"write_statistics": False},
        ),
        "a class of 10**12": _table(label=far),
        "a class below 0": _table(label=pa.array([-1] * ROWS)),
        "classes of fractions": _table(label=pa.array([0.5] * ROWS)),
        "classes that are missing": _table(label=pa.array([0, None] * 20)),
        "101,000 classes in words": _table(
            list=pa.array([[1]] * 101_000), label=pa.array([str(i) for i in range(101_000)])
        ),
        "a class of 2,000,000 characters": _table(label=pa.array(["a", long] * 20)),
        "a text of 2,000,000 characters among 3,000": _table(
            list=pa.array([[1]] * 3000), label=pa.array(_y(3000)), note=pa.array([""] * 2999 + [long])
        ),
        "1,000,000 names of classes": _table(names),
        "names of classes, 100,000 deep": _table('{"info": ' * 100_000, label=far),
        "one image 110 times": _one_large_image,
        "images elsewhere": _table(image=_encoded([b""] * ROWS, path="/etc/passwd")),
        "images of different sizes": _table(image=_encoded([_png(4), _png(5)] * 20)),
        "a name of a column that colours the terminal": _table(**{"\x1b[31m\n": pa.array([""] * ROWS), "y": far}),
        "a recording of fewer readings than it says": _recording(length=[129] * 2),
        "a recording of 10**15 readings": _recording(length=[10**15] * 2),
        "a recording without readings": _recording(signal=[None] * 2),
        "a recording of an activity of 10**12": _recording(activity=[0, 10**12]),
    }


def _possible_tables() -> dict[str, Make]:
    """What looks hostile and is valid."""
    return {
        "lists inside lists": _table(list=pa.array([[[[1.0]]]] * ROWS)),
        "a description that is no JSON": _table("{{{"),
        "a PNG with 200 MiB for 16 pixels": _shown(_drawn(4, 4, pixels=zlib_zeros(200 * MIB))),
        "a PNG with a chunk of 2 GiB": _shown(_png()[:33] + b"\x7f\xff\xff\xffIDAT" + _png()[41:]),
    }


# Images.


def _shown(data: bytes) -> Make:
    """A table whose first image is sound and whose second is not."""
    return _table(image=_encoded([_png(), data] * (ROWS // 2)))


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">L", len(data)) + kind + data + struct.pack(">L", zlib.crc32(kind + data))


def _drawn(width: int, height: int, *chunks: bytes, pixels: bytes = b"") -> bytes:
    """A PNG that says it has some size, whatever is in it."""
    head = _chunk(b"IHDR", struct.pack(">2L5B", width, height, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + b"".join(chunks) + _chunk(b"IDAT", pixels) + _chunk(b"IEND", b"")


def _images() -> dict[str, bytes]:
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8)).save(buffer, "JPEG")
    jpeg = buffer.getvalue()
    frame = jpeg.find(b"\xff\xc0")
    zeros = zlib_zeros(200 * MIB)
    return {
        "no bytes": b"",
        "a text": b"no image",
        "a PNG cut in the middle": _png()[: len(_png()) // 2],
        "a PNG of 60,000 x 60,000 pixels": _drawn(60_000, 60_000, pixels=zeros),
        "a PNG with a text of 200 MiB": _drawn(4, 4, _chunk(b"zTXt", b"a\0\0" + zeros)),
        "a JPEG cut in the middle": jpeg[: len(jpeg) // 2],
        "a JPEG of 65,500 x 65,500 pixels": jpeg[: frame + 5] + b"\xff\xdc\xff\xdc" + jpeg[frame + 9 :],
    }


def _formats() -> dict[str, bytes]:
    """Images of formats that Pillow can open and that nobody needs; some of them start other programs."""
    found = {}
    for kind in ("GIF", "TIFF", "WEBP"):
        buffer = io.BytesIO()
        Image.new("RGB", (16, 16)).save(buffer, kind)
        found[kind] = buffer.getvalue()
    comments = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\n"
    return {
        **found,
        "PostScript": comments + b"(gone) (w) file closefile\nshowpage\n",
        "SVG": b'<svg xmlns="http://www.w3.org/2000/svg"><image href="file:///etc/passwd"/></svg>',
    }


# Folders.


def _folders() -> dict[str, Make]:
    def crowd(path: Path) -> None:
        for number in range(3000):
            path.with_name(f"f{number}").mkdir()

    def strange_test(path: Path) -> None:
        _table()(path)
        os.mkfifo(path.with_name("test.parquet"))

    def hidden(path: Path) -> None:
        path.with_name("train-\x1b[31m.parquet").touch()

    return {
        "3,000 folders": crowd,
        "a folder that links to itself": lambda path: path.with_name("again").symlink_to(path.parent),
        "a test that is a pipe": strange_test,
        "a file whose name colours the terminal": hidden,
    }
