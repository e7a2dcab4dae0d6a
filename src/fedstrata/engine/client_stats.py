"""Statistics of the clients' training data: the library's, and functions of a user's own."""

from __future__ import annotations

import torch
from torch import Tensor

from fedstrata.base.errors import ContractError
from fedstrata.base.registry import load_users_object
from fedstrata.clustering import entropy
from fedstrata.core import CLIENT_STATS, SINGULAR_VECTORS, Plan, Rows
from fedstrata.engine.client_data import ClientData
from fedstrata.objective.named import in_user_code


def client_stats_of(plan: Plan, client_data: ClientData) -> dict[str, Rows]:
    """The statistics that a plan asks for, by name, with a row of each client that is asked."""
    stats = {}
    for name, asked in plan.client_stats.items():
        if bool(asked.any()):
            clients = plan.cohort[asked]
            fold = "B" if name == "units" else "all"
            data = (client_data.train(client, fold, plan.round) for client in clients.tolist())
            rows = [client_stat(name, client_data, index) for index in data]
            if len(widths := {len(row) for row in rows}) > 1:
                raise ContractError(
                    f"expected the statistic {name!r} to have as many numbers for every client, found "
                    f"{' and '.join(map(str, sorted(widths)))}"
                )
            stats[name] = Rows(clients, torch.stack(rows))
    return stats


def client_stat(name: str, client_data: ClientData, index: Tensor) -> Tensor:
    """One statistic of some samples, as a row (q,) float32.

    Args:
        name: One of ``CLIENT_STATS``, or ``"package.module:function"``. "classes" is the number of classes present,
            (1,). "entropy" is the entropy of the class counts in bits, (1,) (AdaCFL Eq. 4). "subspaces" holds the first
            left singular vectors of the samples of each class, (classes * 3 * features,), and is 0 where there are none
            (PACFL section 3). "units" is Kish's effective sample size, (s_1 + s_2 + ...)^2 / (s_1^2 + s_2^2 + ...) for
            independent units of s_i samples, (1,).
        client_data: The data of all clients.
        index: The samples.

    Raises:
        ContractError: When there is no such statistic, or a function returns no row of numbers.
    """
    if name == "units":
        sizes = client_data.units(index)
        return (sizes.sum().square() / sizes.square().sum().clamp(min=1))[None]
    if name not in CLIENT_STATS:
        return own_stat(name, *client_data.samples(index), client_data.classes)
    labels = client_data.labels(index)
    counts = labels.bincount(minlength=client_data.classes)
    if name == "classes":
        return (counts > 0).sum()[None].float()
    if name == "entropy":
        return torch.tensor([entropy(counts)])
    inputs, _ = client_data.samples(index)
    vectors = torch.zeros(client_data.classes, SINGULAR_VECTORS, inputs[0].numel())
    for label in counts.nonzero().flatten().tolist():
        of_class = inputs[labels == label].flatten(1).float()
        left, values, _ = torch.linalg.svd(of_class.T, full_matrices=False)
        # Beyond the rank of the samples, such as of copies of one, the vectors are any.
        smallest = values[0] * max(of_class.shape) * torch.finfo(values.dtype).eps
        rank = min(int((values > smallest).sum()), SINGULAR_VECTORS)
        vectors[label, :rank] = left[:, :rank].T
    return vectors.flatten()


def own_stat(name: str, inputs: Tensor, labels: Tensor, classes: int) -> Tensor:
    """A statistic by a function of a user's own, as a row (q,) float32.

    Args:
        name: The function as ``"package.module:function"``. It gets the other arguments and returns as many numbers for
            every client.
        inputs: The samples as the network reads them, (s, ...) float32.
        labels: Their classes, (s,).
        classes: The number of classes.

    Raises:
        ContractError: When there is no such function, or it returns no row of numbers.
        UserCodeError: When the function fails.
    """
    if ":" not in name:
        raise ContractError(
            f"expected a statistic of {', '.join(CLIENT_STATS)}, or 'package.module:function', found {name!r}"
        )
    try:
        function = load_users_object(name)
    except ValueError as error:
        raise ContractError(
            f"expected the statistic {name!r} to be a function that can be imported: {error}"
        ) from error
    found = in_user_code(f"the statistic {name!r}", function, inputs, labels, classes)
    try:
        row = torch.as_tensor(found).float()
    # What torch raises about anything that is no array of numbers.
    except (TypeError, ValueError, RuntimeError):
        raise ContractError(
            f"expected the statistic {name!r} to be a row of numbers, (q,), found {type(found).__name__}"
        ) from None
    if row.ndim != 1 or not len(row):
        raise ContractError(f"expected the statistic {name!r} to be a row of numbers, (q,), found {tuple(row.shape)}")
    return row
