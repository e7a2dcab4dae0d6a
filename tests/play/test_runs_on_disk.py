"""A run whose samples are on the disk equals the run in memory, and takes no memory for them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import csv

import fedstrata as fs
import forked
from builders import left
from fedstrata.build.build import build_run
from fedstrata.build.data_warnings import run_data
from fedstrata.config import load_experiment
from fedstrata.data import mapped, reading
from fedstrata.data import tables as data_tables
from fedstrata.engine import ClientData, client_data
from fedstrata.engine.parallel.messages import pack, unpack
from fedstrata.play import client_descriptions
from own_data import arrays, as_test, keys, save

pytestmark = pytest.mark.usefixtures("forked_workers")


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FEDSTRATA_CACHE", str(tmp_path / "cache"))


def sites(folder: Path, ending: str) -> dict[str, Any]:
    """A file per site, with a test split and units, and an experiment on them."""
    whole = arrays()
    for name in np.unique(whole["site"]):
        own = whole["site"] == name
        columns = {f"f{place}": whole["x"][own, place] for place in range(3)} | {"label": whole["y"][own]}
        table = pa.table(columns | {"trial": whole["trial"][own]})
        for split, rows in (("train", table), ("test", table.slice(0, 8))):
            file = folder / split / f"{name}.{ending}"
            file.parent.mkdir(parents=True, exist_ok=True)
            csv.write_csv(rows, file) if ending == "csv" else pq.write_table(rows, file)
    data = {"name": str(folder), "unit": "trial"}
    return {"rounds": 2, "data": data, "model": {"name": "mlp"}, "algorithm": {"name": "strata"}}


@pytest.mark.parametrize("engine", ["loop", "processes", pytest.param("ray", marks=pytest.mark.deploy)])
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::ResourceWarning")  # Ray's own
def test_a_run_from_the_disk_is_the_run_in_memory_in_every_bit(engine: str, tmp_path: Path) -> None:
    source = sites(tmp_path / "sites", "csv") | {"engine": {"name": engine, "workers": 2}}
    for memory in ("ram", "disk"):
        fs.run(source, tmp_path / memory, sets=[f"data.memory={memory}"], quiet=True)
    assert left(tmp_path / "ram") == left(tmp_path / "disk")
    run = fs.load(tmp_path / "disk")
    inputs = arrays()["x"][:4]
    assert np.array_equal(run.predict("Oslo", inputs), fs.load(tmp_path / "ram").predict("Oslo", inputs))


@pytest.mark.parametrize("channels", [1, 3])
def test_images_from_the_disk_are_turned_and_trained_on_as_in_memory(channels: int, tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (160, channels, 16, 16), dtype=np.uint8)
    save(tmp_path / "images.npz", {"x": pixels, "y": np.arange(160) % 2})
    source = {
        "rounds": 2,
        "data": {"name": str(tmp_path / "images.npz"), "clients": 4, "samples": 20, "validation": 0.2},
        "partition": {"scheme": "rotation", "groups": 2},
        "model": {"name": "mnist_cnn"},
        "local": {"transform": "flip", "batch": 8},
        "algorithm": {"name": "ifca", "k": 2},
        "engine": {"name": "loop"},
    }
    for memory in ("ram", "disk"):
        fs.run(source, tmp_path / memory, sets=[f"data.memory={memory}"], quiet=True)
    assert left(tmp_path / "ram") == left(tmp_path / "disk")


def test_no_sample_on_the_disk_is_sent_to_workers(tmp_path: Path) -> None:
    source = keys(save(tmp_path / "all.npz", arrays() | as_test(arrays(1))), memory="disk")
    setup = build_run(load_experiment(source))
    frame, tensors = pack(setup.client_data.dataset)
    samples = arrays()["x"].nbytes
    # What is sent are numbers of classes and positions.
    assert not any(tensor.is_floating_point() for tensor in tensors) and samples > 0
    received = unpack(frame, tensors)
    index = setup.client_data.train(1)
    assert received.prepare(index).equal(setup.client_data.dataset.prepare(index))


def trained(folder: str, memory: str) -> None:
    """Train on a data set, and print how many bytes that has taken at most, in a process of its own."""
    # The memory that is used is that of a few blocks. Small ones need no large file to show it.
    mapped._BLOCK_NUMBERS = client_data._NUMBERS_AT_ONCE = client_descriptions._NUMBERS_AT_ONCE = 2**18
    run_data._MOST_BYTES = 2**20
    data_tables.ROWS_BYTES = 2**20
    peak = 0

    def measured(function: Callable[..., Any]) -> Callable[..., Any]:
        def measure(*given: Any) -> Any:
            nonlocal peak
            found = function(*given)
            peak = max(peak, anonymous())
            return found

        return measure

    reading._arrays = measured(reading._arrays)
    ClientData.raw_samples = measured(ClientData.raw_samples)  # type: ignore[method-assign]
    tables = {
        "rounds": 1,
        "data": {"clients": 4, "samples": 0, "memory": memory, "impute": "none"},
        "model": {"name": "mlp", "hidden": [2]},
        "engine": {"name": "loop"},
        "algorithm": {"name": "fedavg"},
    }
    build_run(load_experiment(tables | {"data": {"name": "digits", "clients": 2}}))
    import sklearn.impute
    import sklearn.preprocessing  # noqa: F401 (all modules are imported now)

    before = anonymous()
    fs.run(tables, f"run-{memory}", sets=[f"data.name={folder}"], quiet=True)
    print(peak - before)


def anonymous() -> int:
    """Bytes of memory of this process that are no file's."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("RssAnon")).split()[1])


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the memory of a process is told by Linux")
def test_data_several_times_larger_than_the_memory_that_is_used_are_trained_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Parquet file of one row group: what holds its pages in memory would hold all of them."""
    rows, width = 128000, 500  # a batch of 1,024 of them has 4 MB in float64
    values = np.random.default_rng(0).random(rows * width, dtype=np.float32)
    lists = pa.FixedSizeListArray.from_arrays(pa.array(values), width)
    table = pa.table({"x": lists.cast(pa.list_(pa.float32())), "label": np.arange(rows) % 2})
    (tmp_path / "set").mkdir()
    pq.write_table(table, tmp_path / "set" / "train.parquet")
    monkeypatch.chdir(tmp_path)
    taken = {}
    for memory in ("disk", "ram"):
        done = forked.run(trained, str(tmp_path / "set"), memory)
        assert done.status == 0, done.err
        taken[memory] = int(done.out)
    stored = rows * width * 4
    assert taken["disk"] < stored / 3 and stored < taken["ram"]
    assert left(tmp_path / "run-disk") == left(tmp_path / "run-ram")
