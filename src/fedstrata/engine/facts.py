"""What a client may tell about its training data without showing a sample."""

from __future__ import annotations

import torch

from fedstrata.clustering import entropy
from fedstrata.core import CLIENT_STATS, SINGULAR_VECTORS, Plan, Rows
from fedstrata.engine.holdings import Holdings
from fedstrata.errors import ContractError


def facts_of(plan: Plan, holdings: Holdings) -> dict[str, Rows]:
    """All facts that a plan asks for, a row of each client that is asked."""
    facts = {}
    for name, asked in plan.client_stats.items():
        if bool(asked.any()):
            clients = plan.cohort[asked]
            part = "B" if name == "units" else "all"
            data = (holdings.train(client, part, plan.round) for client in clients.tolist())
            facts[name] = Rows(clients, torch.stack([fact(name, holdings, index) for index in data]))
    return facts


def fact(name: str, holdings: Holdings, index: torch.Tensor) -> torch.Tensor:
    """One fact about some samples, as a row (q,) float32.

    Args:
        name: ``"classes"``: number of classes present (1,); ``"entropy"``: of the class counts in bits (1,)
            (AdaCFL Eq. 1); ``"subspaces"``: of the samples of each class, as columns, the first left singular
            vectors, (classes * 3 * features,), zero where there are none (PACFL section 3); ``"units"``: how many
            independent samples they are worth, (s_1 + s_2 + ...)^2 / (s_1^2 + s_2^2 + ...) for independent units of
            s_i samples (Kish's effective sample size), 0 of none, (1,).
        holdings: of all clients.
        index: the samples.

    Raises:
        ContractError: for another name.
    """
    if name == "units":
        sizes = holdings.units(index)
        return (sizes.sum().square() / sizes.square().sum().clamp(min=1))[None]
    inputs, labels = holdings.samples(index)
    counts = labels.bincount(minlength=holdings.classes)
    if name == "classes":
        return (counts > 0).sum()[None].float()
    if name == "entropy":
        return torch.tensor([entropy(counts)])
    if name != "subspaces":
        raise ContractError(f"expected a fact of {', '.join(CLIENT_STATS)}, found {name!r}")
    vectors = torch.zeros(holdings.classes, SINGULAR_VECTORS, inputs[0].numel())
    for label in counts.nonzero().flatten().tolist():
        left = torch.linalg.svd(inputs[labels == label].flatten(1).T, full_matrices=False).U[:, :SINGULAR_VECTORS]
        vectors[label, : left.shape[1]] = left.T
    return vectors.flatten()
