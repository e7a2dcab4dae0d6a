"""Runs on a disk that is full; started by a test in a mount namespace of its own.

Prints a line for each: what happened, and whether the resumed run equals one that was never interrupted.
"""

import json
import subprocess
import sys
from pathlib import Path

import fedstrata as fs
from builders import DISK_EVENTS, left
from fedstrata.base.errors import ResourceError

KIB = (4, 12, 16, 20, 28, 40, 52, 60, 96)
"""Sizes of the disk. The records of these runs take about 70 KiB, and their pages 5 MB."""


def mount(*options: str) -> None:
    """Mount a disk in memory."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", ",".join(options), "tmpfs", str(DISK)], check=True)


def interrupted(size: int) -> str:
    """Why a run ended with little room, in KiB."""
    mount(f"size={size}k")
    try:
        fs.run(EXPERIMENT, DISK / "run", quiet=True)
    except ResourceError as error:
        return f"{error.folder is not None}: {error.reason}"
    return "finished"


def resumed() -> bool:
    """Whether the run goes on as if nothing had been, once there is room."""
    mount("remount,size=64m")
    begun = (DISK / "run" / "experiment.toml").exists()
    run = fs.run(None if begun else EXPERIMENT, DISK / "run", resume=begun, quiet=True)
    return left(run.folder, without=DISK_EVENTS) == WHOLE


if __name__ == "__main__":
    EXPERIMENT, DISK = json.loads(sys.argv[1]), Path(sys.argv[2])
    WHOLE = left(fs.run(EXPERIMENT, DISK.parent / "whole", quiet=True).folder)
    for size in KIB:
        print(json.dumps([size, interrupted(size), resumed()]), flush=True)
        # Arrow may still hold a file that it could not write.
        subprocess.run(["umount", "--lazy", str(DISK)], check=True)
