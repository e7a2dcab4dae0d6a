"""What a run leaves on disk: the only thing that reports read."""

from fedstrata.records.checkpoint import load, save
from fedstrata.records.folder import Folder
from fedstrata.records.measures import complete, summarise, worse_off
from fedstrata.records.tracking import require, track

__all__ = ["Folder", "complete", "load", "require", "save", "summarise", "track", "worse_off"]
