"""The pictures of the page as files that a paper can use (extra ``figures``)."""

from fedstrata.report.files.saving import KINDS, save

__all__ = ["KINDS", "save"]
