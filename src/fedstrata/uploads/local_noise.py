"""Noise that every client adds to its update before it sends it: local differential privacy.

The server then sees no update without noise, and the noise is far larger for the same epsilon. It has to follow the
protocol: its config says how much noise clients add, unless a device demands a least. Duchi, Jordan, Wainwright,
"Local privacy and statistical minimax rates", FOCS 2013.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from fedstrata.core import Layout, LocalTask, Plan, Report, Result, Rows
from fedstrata.core.private_aggregation import NoiseSeed, clip_to_norm, gaussian_noise
from fedstrata.core.rows import empty_rows


@dataclass(frozen=True)
class LocalPrivacy:
    """What clients do with their updates.

    Attributes:
        layout: The tensors of the network.
        clip_norm: The largest L2 norm of an update (S).
        noise_multiplier: The standard deviation of the noise of each number, divided by `clip_norm` (z).
        noise_seed: The seed of the noise.
    """

    layout: Layout
    clip_norm: float
    noise_multiplier: float
    noise_seed: NoiseSeed

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
        sent = result.updates
        # Rows that do not fit into memory lie on the disk, and so do those that are made here.
        values = empty_rows(*sent.values.shape)
        for row, client in enumerate(sent.clients.tolist()):
            values[row] = sent.values[row]
            update = clip_to_norm(sent.values[row, columns], self.clip_norm)
            noise = gaussian_noise(
                update,
                self.noise_multiplier * self.clip_norm,
                self.noise_seed,
                purpose=f"local {name}",
                round=round,
                place=client,
            )
            values[row, columns] = (update + noise).float()
        return replace(result, updates=Rows(sent.clients, values))
