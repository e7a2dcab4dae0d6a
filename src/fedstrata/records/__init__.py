"""What a run leaves on disk: the only thing that reports read."""

from fedstrata.records.checkpoint import Checkpoint, find_checkpoint, load, save
from fedstrata.records.folder import Folder
from fedstrata.records.measures import complete, diverged, summarise, worse_off
from fedstrata.records.tracking import require, track

__all__ = [
    "Checkpoint",
    "Folder",
    "complete",
    "diverged",
    "find_checkpoint",
    "load",
    "require",
    "save",
    "summarise",
    "track",
    "worse_off",
]
