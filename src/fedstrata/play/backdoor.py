"""How often the models of honest clients fall for a backdoor, at the end of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean

from fedstrata.build.run_setup import RunSetup
from fedstrata.core import State
from fedstrata.play.classified import classify_test_samples
from fedstrata.play.used_models import ModelInUse


def backdoor_summary(
    setup: RunSetup, state: State, used: Sequence[ModelInUse], labels: Mapping[int, int]
) -> dict[str, float | None]:
    """The attack success rates of a backdoor, as means over honest clients; nothing where there is no backdoor.

    The rate of a client is the share of its test samples of other classes than the target which its model calls the
    target, once they have the trigger.

    Args:
        setup: What the run was built from.
        state: The last state.
        used: The model of each client that takes part at the end.
        labels: The cluster, or the node of the tree, of each client.
    """
    if setup.byzantine is None or setup.trigger is None:
        return {}
    byzantine = setup.byzantine.ids
    attacked = {labels[client] for client in byzantine if client in labels}
    honest = [each for each in used if each.client not in byzantine]
    rates = _success_rates(setup, state, honest)
    inside = [rate for client, rate in rates.items() if labels.get(client) in attacked]
    outside = [rate for client, rate in rates.items() if labels.get(client) not in attacked]
    return {
        "backdoor_success": _mean(list(rates.values())),
        "backdoor_success_attacked": _mean(inside),
        "backdoor_success_elsewhere": _mean(outside),
    }


def _success_rates(setup: RunSetup, state: State, used: Sequence[ModelInUse]) -> dict[int, float]:
    """The success rate of the backdoor with each client that has test samples of another class than the target."""
    assert setup.trigger is not None
    classified = classify_test_samples(setup, state, used, setup.trigger.stamp)
    if classified is None:
        return {}
    owners, _, predicted = classified[classified[:, 1] != setup.trigger.target].T
    fooled = (predicted == setup.trigger.target).double()
    return {client: float(fooled[owners == client].mean()) for client in owners.unique().tolist()}


def _mean(rates: Sequence[float]) -> float | None:
    """The mean of some rates; None where there are none."""
    return mean(rates) if rates else None
