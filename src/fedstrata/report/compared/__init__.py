"""One page about several runs, made from the records of their comparison and from nothing else."""

from fedstrata.report.compared.page import build, write

__all__ = ["build", "write"]
