"""What a look of the scout says, in numbers and in words."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class View:
    """How clearly clients fall apart in a layer, in all layers, or in the last one's bias.

    Attributes:
        name: of the layer, ``"all"``, or of the bias.
        correlation: how well who is like whom replicates between halves of the clients' data: see `Replication`.
        apart: size of what replicates, as cosines between what updates have not in common with all others.
        common: mean cosine of two different clients.
        p: how often chance replicates as well in this view.
    """

    name: str
    correlation: float
    apart: float
    common: float
    p: float


@dataclass(frozen=True)
class Finding:
    """What a look at the evidence says.

    Attributes:
        layer: in which clients fall apart most clearly, or all; None when they do in none.
        views: what was looked at; none with too few clients.
        bias: the view that sees little but how often each class occurs; None where the last layer has none.
        clients: how many were compared.
        rounds: in how many rounds, at most.
        level: of the test.
        p: how often chance replicates as well in any of the layers; 1 without a test.
        stands: share of the repeats without some of the clients that choose the same layer.
        reason: why no test was made; empty after a test.
    """

    layer: str | None
    views: tuple[View, ...]
    bias: str | None
    clients: int
    rounds: int
    level: float
    p: float = 1.0
    stands: float = 0.0
    reason: str = ""

    def of(self, name: str) -> View:
        """One of the views."""
        return next(view for view in self.views if view.name == name)

    @property
    def kind(self) -> str | None:
        """What the finding suggests: skew of "labels", or "other" skew; None when it suggests nothing."""
        if self.layer is None or self.bias is None:
            return None
        bias = self.of(self.bias)
        # The bias of the last layer replicates as well as anything under label skew, and hardly under rotation.
        return "labels" if bias.p <= self.level and bias.correlation >= self.of(self.layer).correlation / 2 else "other"

    @property
    def sentence(self) -> str:
        """What was measured, how sure that is, and what it suggests."""
        if not self.views:
            return f"nothing to tell by: {self.reason}"
        if self.layer is None:
            best = max((v for v in self.views if v.name != self.bias), key=lambda view: view.correlation)
            alone = self.bias is not None and self.of(self.bias).p <= self.level
            return (
                "no separation: who is like whom does not replicate between halves of the clients' data (at best in "
                f"{best.name}, correlation {best.correlation:.2f}; p = {self.p:.2g} for the best of all layers, where "
                f"{self.level:.2g} would count); skew too weak to be seen with {self.clients} clients in {self.rounds} "
                f"round{'s' * (self.rounds != 1)} may still be there"
                + f", and {self.bias} alone does replicate: classes may occur unequally often"
                * alone
            )
        best = self.of(self.layer)
        return (
            f"{best.name} separates the clients most clearly: who is like whom replicates between halves of their data "
            f"(correlation {best.correlation:.2f}; p = {self.p:.2g} for the best of all layers), and {self.stands:.0%} "
            f"of repeats without some of the clients choose it too; {self._suggestion()}"
        )

    def _suggestion(self) -> str:
        if self.bias is None:
            return "what kind of skew it is was not measured, as the last layer has no bias"
        found = f"{self.bias}, which sees little but how often each class occurs, replicates at "
        found += f"{self.of(self.bias).correlation:.2f}, which suggests "
        if self.kind == "labels":
            return found + "label skew: classes that occur more often with some clients than with others"
        return found + "skew other than of class frequencies: in what inputs look like, or in what labels mean"
