"""The page of a folder while it is being written, served to the browsers of this machine and to nobody else."""

from fedstrata.report.watching.server import Watcher

__all__ = ["Watcher"]
