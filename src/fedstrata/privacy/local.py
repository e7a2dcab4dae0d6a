"""Noise that every client adds to its update before it sends it: local differential privacy.

The server then needs no trust, and the noise is far larger for the same epsilon. Duchi, Jordan, Wainwright, "Local
privacy and statistical minimax rates", FOCS 2013.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from fedstrata.core import Layout, LocalTask, Plan, Report, Result, Rows
from fedstrata.core.private_aggregation import clipped
from fedstrata.lazy_torch import torch
from fedstrata.randomness import generator


@dataclass(frozen=True)
class LocalPrivacy:
    """What clients do with their updates.

    Attributes:
        layout: The tensors of the network.
        clip_norm: The largest L2 norm of an update (S).
        noise_multiplier: The standard deviation of the noise of each number, divided by `clip_norm` (z).
        noise_seed: The seed of the noise. Whoever knows it can take the noise away.
    """

    layout: Layout
    clip_norm: float
    noise_multiplier: float
    noise_seed: int

    def of_report(self, plan: Plan, report: Report) -> Report:
        """A report in which all updates are clipped and have noise."""
        results = {
            name: self._of_result(name, plan.tasks[name], plan.round, each) for name, each in report.results.items()
        }
        return replace(report, results=results)

    def _of_result(self, name: str, task: LocalTask, round: int, result: Result) -> Result:
        if not any(task.upload):
            return result
        columns = self.layout.columns(task.upload)
        values = result.updates.values.clone()
        for row, client in enumerate(result.updates.clients.tolist()):
            draw = generator(self.noise_seed, f"local privacy {name}", round, client)
            noise = torch.randn(len(columns), generator=draw, dtype=torch.float64)
            update = clipped(values[row, columns], self.clip_norm)
            values[row, columns] = (update + self.noise_multiplier * self.clip_norm * noise).float()
        return replace(result, updates=Rows(result.updates.clients, values))
