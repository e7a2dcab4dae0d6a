"""Every limit on what a user may give, in one place.

A limit is far above what a real experiment needs, and low enough that a wrong or hostile input is refused in one line
before it takes minutes or the memory of the machine. A user who needs more changes the number here.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Annotated

from annotated_types import Interval

MIB = 2**20

# A part of a whole, as a type of keys and records.
Share = Annotated[float, Interval(ge=0, le=1)]

# The experiment file.
EXPERIMENT_BYTES = 1_000_000
"""Bytes of an experiment file."""
DEPTH = 32
"""Tables and lists inside each other, and parts of a dotted key."""
TEXT_CHARACTERS = 10_000
"""Characters in a text about a metric."""
MAX_LABEL_CHARACTERS = 200
"""Longer labels of runs fit no table, and no name of a folder."""

MAX_SEED = 10**18 - 1
"""A seed. It fits the 64 bits of a number in records and messages."""
MAX_RUNS = 10_000
"""Runs of one comparison."""

# The keys of the experiment.
MAX_RUN_ROUNDS = 1_000_000
"""Rounds of communication."""
MAX_CLIENTS = 1_000_000
"""Clients."""
MAX_SAMPLES = 1_000_000_000
"""Samples of a client, on the server or in a batch."""
MAX_EPOCHS = 100_000
"""Passes over the data in a round."""
MAX_STEPS = 1_000_000
"""Steps of a client in a round."""
MAX_WORKERS = 4_096
"""Worker processes."""
MAX_TIMEOUT_SECONDS = 7 * 24 * 3600
"""Seconds without progress of a worker: the system cannot wait for much longer at a time."""
MAX_STEP_SIZE = 1e30
"""Step size of an optimizer: a product with a larger one is no float32 number."""
MIN_NOISE = 1e-6
"""The noise multiplier of differential privacy: with less there is no epsilon that means anything."""
MAX_EPSILON = 1_000
"""The epsilon of differential privacy: a larger one promises nothing."""
MAX_LIST_ENTRIES = 1_000
"""Entries of a list that is an option of a network or a key of an algorithm."""
MAX_NUMBER = 1_000_000_000
"""Size of a number that is an option of a network or a key of an algorithm."""
MAX_COUNT = 1_000_000
"""Size of a whole number that is a key of an algorithm."""
MAX_MODELS = 10_000
"""Models that an algorithm begins with, and groups that it is given."""
MAX_WINDOW = 1_000
"""Uploads of every client that an algorithm keeps."""
PARAMETERS = 1_000_000_000
"""Parameters of a network of the library."""

# Data.
DATA_BYTES = 64 * 1024 * MIB
"""Bytes of samples in memory, and at most half of the memory, as some are copied once; more stay on the disk."""
FREE_BYTES = 256 * MIB
"""Bytes in memory up to which it does not matter how few bytes the data take on disk."""
EXPANSION = 100
"""Bytes in memory for each byte on disk, beyond that."""
CLASSES = 100_000
"""Classes."""
LABEL_CELLS = 1_000_000_000
"""Clients times classes: a table says what each client calls each class."""
SAMPLE_NUMBERS = 30_000_000
"""Numbers in one sample: three channels of the largest image."""
COLUMN_CHARACTERS = 10_000
"""Characters in a text that is the class of a sample or stands in another column."""
ZIP_DIRECTORY_BYTES = 1 * MIB
"""Bytes of the directory of an `.npz` file."""
COLUMNS = 1_000
"""Columns of a table in a file."""
IMAGE_PIXELS = 10_000_000
"""Height times width of an image."""
MAX_READINGS = 1_000_000
"""Readings in a window of a recording."""
MAX_IMAGE_SIDE = 4_096
"""Height and width, in pixels, to which images are resized."""
IMAGE_BYTES = 64 * MIB
"""Bytes of an encoded image."""
IMAGE_FORMATS = ("PNG", "JPEG")
"""Formats of images that are decoded: decoders of others start other programs, or are rarely tested."""


def file_problem(path: Path) -> str:
    """Say why a path cannot be read as a file; empty when it can.

    A pipe or a device may have no end, and opening a pipe may wait without an end.
    """
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        return error.strerror or str(error)
    # A path with a NUL character.
    except ValueError as error:
        return str(error)
    if stat.S_ISREG(mode):
        return ""
    if stat.S_ISDIR(mode):
        return os.strerror(errno.EISDIR)
    return "It is no file but a pipe, a socket or a device"


def memory_limit() -> int:
    """Return the largest number of bytes that a data set may take in memory."""
    return min(DATA_BYTES, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2)


def memory_problem(decoded: int, stored: int) -> str:
    """Say why data take too much memory to be decoded; empty when they do not.

    Args:
        decoded: The bytes that they take in memory.
        stored: The bytes that they take on disk.
    """
    limit = memory_limit()
    if decoded > limit:
        return f"it takes {decoded:,} bytes in memory; expected at most {limit:,}, so use a part of it"
    return expansion_problem(decoded, stored)


def expansion_problem(decoded: int, stored: int) -> str:
    """Say that data take far more bytes than they take on disk, as hostile files do; empty when they do not.

    Args:
        decoded: The bytes that they take in memory, or on the disk once they are decoded.
        stored: The bytes that they take on disk.
    """
    if decoded > max(FREE_BYTES, EXPANSION * stored):
        return (
            f"it takes {decoded:,} bytes in memory and {stored:,} on disk; expected at most {EXPANSION} times as many, "
            "so write it with less or no compression"
        )
    return ""
