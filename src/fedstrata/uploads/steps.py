"""The steps between the clients and the server: one list, each step an object with one method on a report."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from fedstrata.core import Plan, Report


class UploadStep(Protocol):
    """Something that happens to a report on its way. What there is to tell of it is added to the report's events."""

    def of_report(self, plan: Plan, report: Report) -> Report:
        """The report after this step.

        Args:
            plan: The plan for the whole cohort.
            report: The report before it, of the clients that answered.
        """


def through(steps: Iterable[UploadStep], plan: Plan, report: Report) -> Report:
    """A report after all steps, one after the other."""
    for step in steps:
        report = step.of_report(plan, report)
    return report
