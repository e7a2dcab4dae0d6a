"""The pages about a run and about a comparison, made from the records in their folders and from nothing else."""

from fedstrata.report.page import build

__all__ = ["build"]
