"""Small files of the layouts that data sets come in."""

import io
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from PIL import Image

torch.set_num_threads(1)


def noise(rows: int, shape: Sequence[int], seed: int = 0) -> np.ndarray:
    """(rows, channels, height, width) uint8."""
    return np.random.default_rng(seed).integers(0, 256, (rows, *shape), dtype=np.uint8)


def encode(pixels: np.ndarray, kind: str = "PNG") -> bytes:
    """(channels, height, width) -> a file."""
    buffer = io.BytesIO()
    Image.fromarray(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0)).save(buffer, kind)
    return buffer.getvalue()


def structs(encoded: Sequence[bytes | None]) -> Any:
    """The hub's image column: struct{bytes, path} with path null."""
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    return pa.array([{"bytes": one, "path": None} for one in encoded], kind)


def write(file: Path, columns: Mapping[str, Any], names: Mapping[str, Sequence[str]] | None = None) -> Path:
    """Write a Parquet file, with the metadata of the Hugging Face writer if class names are given."""
    file.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table(dict(columns))
    if names:
        features = {column: {"_type": "ClassLabel", "names": list(texts)} for column, texts in names.items()}
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    pq.write_table(table, file)
    return file


def write_images(
    folder: Path,
    shape: Sequence[int] = (1, 28, 28),
    image: str = "image",
    labels: Mapping[str, Sequence[Any]] | None = None,
    split: str = "train",
    wrap: Callable[[Sequence[bytes]], Any] = structs,
    seed: int = 0,
) -> np.ndarray:
    """Write one split of images as PNG; returns their pixels, (rows, channels, height, width)."""
    labels = labels or {"label": [0, 1, 2, 1]}
    pixels = noise(len(next(iter(labels.values()))), shape, seed)
    write(folder / f"{split}-00000-of-00001.parquet", {image: wrap([encode(one) for one in pixels]), **labels})
    return pixels


def recordings(lengths: Sequence[int], channels: int = 6) -> dict[str, Any]:
    """Columns of as many recordings, one per subject; sample t of channel c of recording r is 1000 r + 10 t + c."""
    signals = [
        1000.0 * row + 10.0 * np.arange(length)[:, None] + np.arange(channels) for row, length in enumerate(lengths)
    ]
    return {
        "subject": list(range(1, len(lengths) + 1)),
        "activity": [row % 2 for row in range(len(lengths))],
        "trial": [1] * len(lengths),
        "signal": pa.array([signal.ravel() for signal in signals], pa.list_(pa.float32())),
        "length": list(lengths),
        "channels": [channels] * len(lengths),
    }
