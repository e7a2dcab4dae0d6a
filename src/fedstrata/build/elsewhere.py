"""What only clients that are simulated here can do: those that are somewhere else have their own data and training."""

from __future__ import annotations

from collections.abc import Mapping

from fedstrata.base.errors import ExperimentError
from fedstrata.config import Experiment
from fedstrata.uploads.disclosure import disclosure_of


def rules_elsewhere(experiment: Experiment) -> dict[str, bool]:
    """Whether each rule for clients that are somewhere else holds, by the key and what is expected of it."""
    disclosure = disclosure_of(experiment.algorithm_of(), experiment.rounds)
    return {
        "algorithm.name: expected one whose clients keep their data, as nobody holds all of them": disclosure is None
        or disclosure.clients_keep_data,
        "events.change: expected none, as clients' data are their own": not experiment.events.change,
        "attack.kind: expected 'none'": experiment.attack.all_honest,
        "data.validation: expected 0, as test samples alone are held out": not experiment.data.validation,
        "data.folds: expected none, as clients hold out their own test samples": experiment.data.folds is None,
        "cohort.sampling: expected 'uniform' or 'poisson', as clients tell how many samples they have with their first "
        "work; list cohort.weights instead": experiment.cohort.sampling != "size",
        "local.class_weights: expected a list of weights, as clients do not tell how many samples of each class they "
        "have": experiment.local.class_weights != "balanced",
    }


def require(rules: Mapping[str, bool], where: str) -> None:
    """Refuse an experiment with a key whose rule does not hold.

    Args:
        rules: Whether each rule holds, by the key and what is expected of it.
        where: Where it is expected.

    Raises:
        ExperimentError: For the first of them.
    """
    for rule, holds in rules.items():
        if not holds:
            raise ExperimentError(f"{rule} ({where})")
