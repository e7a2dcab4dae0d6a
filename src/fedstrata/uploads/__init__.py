"""What may happen to an update between a client and the server, and how updates become models that leave the server.

On the way, in `UploadStep`s: those of clients are in `noise`, `attacks` and `compression`, and that of the
server in `validation`. `fedstrata.build.run_setup` lists them. After them, in an algorithm's `update` and
in `core.aggregate`, which that calls: the `rules` of means, noisy sums in `noise`, and `checks` of which updates count.

What noise promises: `disclosure` has what each algorithm discloses, and `accounting` computes with it.
"""

from __future__ import annotations

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
