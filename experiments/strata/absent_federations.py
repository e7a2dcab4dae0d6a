"""Strata where clients drop out, never answer, or come back late.

    FEDSTRATA_DATA=DATA python -m experiments.strata.absent_federations --federations 5 --jobs 2

Adds to ``experiments/results/absent_federations.json`` the seeds that it does not hold yet. Twenty clients with turned
images of MNIST in four groups. Of every run: the mean accuracy of all clients and the worst one, the agreement with the
true groups of the clusters of those that have answered, and of the models that all clients end with (adjusted Rand
index), the number of clusters, and the rounds of splits. A client that never answers ends with the model of lowest loss
on its training data.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import fedstrata as fs
from experiments.strata.federations import run_study
from experiments.trust import attacked_federations
from fedstrata.clustering import ari

CLIENTS = 20
GROUPS = 4
NEVER = [0.0 if client % 5 == 0 else 1.0 for client in range(CLIENTS)]
"""The weight of each client in the draw of a cohort: the first one of each group is never drawn."""


def case(rounds: int = 20, **tables: Any) -> dict[str, Any]:
    """The federation of the study of Byzantine clients, with other tables."""
    return {**attacked_federations.case({}), "algorithm": {"name": "strata"}, "rounds": rounds, **tables}


def group_away(rounds: int) -> dict[str, Any]:
    """The clients of the first group join when the others have trained for some rounds."""
    return {"join": [{"round": rounds + 1, "clients": list(range(CLIENTS // GROUPS))}]}


CASES: Mapping[str, Mapping[str, Any]] = {
    "nobody is absent": case(),
    **{f"{share:.0%} drop out in each round": case(cohort={"dropout": share}) for share in (0.06, 0.1, 0.2, 0.3, 0.5)},
    "20% never answer": case(cohort={"weights": NEVER}),
    "20% never answer, 30% of the others drop out": case(cohort={"weights": NEVER, "dropout": 0.3}),
    "nobody is absent, 30 rounds": case(rounds=30),
    "one group is away in rounds 1 to 15 of 30": case(rounds=30, events=group_away(15)),
}
"""Experiments, by who is absent."""


def outcome(name: str, seed: int) -> dict[str, Any]:
    """One run of a case."""
    with TemporaryDirectory() as folder:
        run = fs.run({**CASES[name], "seed": seed}, out=Path(folder) / "run", quiet=True)
        truth = run.summary["truth"]
        last = run.rounds[-1]
        placed = [client for client in range(CLIENTS) if client not in last["pending"]]
        used = [run.model_of(client).node or 0 for client in range(CLIENTS)]
        return {
            "seed": seed,
            **{key: run.summary[key] for key in ("acc_client", "acc_worst", "clusters")},
            "rounds": len(run.rounds),
            "placed": len(placed),
            "ari": ari([last["labels"][client] for client in placed], [truth[client] for client in placed]),
            "ari_used": ari(used, truth),
            "splits": [
                each["round"] for each in run.rounds if any(event["kind"] == "split" for event in each["events"])
            ],
        }


def main() -> None:
    """Compute what is missing."""
    conditions = {name: {"keys": keys} for name, keys in CASES.items()}
    run_study("absent_federations", __doc__, conditions, outcome, federations=5)


if __name__ == "__main__":
    main()
