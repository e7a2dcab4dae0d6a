"""The numbers of a round and of a run, from scores and labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from fedstrata.clustering import ari, purity
from fedstrata.core import CLIENT, Score
from fedstrata.errors import ContractError


def complete(
    record: Mapping[str, Any],
    labels: torch.Tensor,
    truth: torch.Tensor | None,
    scores: Mapping[str, Score],
) -> dict[str, Any]:
    """A round's record with its measures.

    Args:
        record: what was known before the models were scored.
        labels: cluster of each client, (n,), -1 = pending.
        truth: hidden group of each client, (n,).
        scores: The scores of each evaluation, by all clients that are in the federation. `CLIENT` is what accuracy
            means; of the others the mean is recorded.
    """
    score = scores[CLIENT]
    accuracy = score.correct.double() / score.samples
    labels_of = labels[score.clients]
    clusters = [labels_of == cluster for cluster in labels_of.unique().tolist() if cluster >= 0]
    pooled = [int(score.correct[chosen].sum()) / int(score.samples[chosen].sum()) for chosen in clusters]
    measures: dict[str, Any] = {
        "acc_client": float(accuracy.mean()),
        "acc_weighted": int(score.correct.sum()) / int(score.samples.sum()),
        "acc_cluster": sum(pooled) / len(pooled) if pooled else None,
        "acc_worst": float(accuracy.min()),
        "loss": float(score.loss.double().mean()),
        "ari": None if truth is None else ari(labels_of, truth[score.clients]),
        "purity": None if truth is None else purity(labels_of, truth[score.clients]),
    }
    for name, other in scores.items():
        if name != CLIENT:
            measures[f"acc_{name}"] = float((other.correct.double() / other.samples).mean())
    return {**record, **measures}


def summarise(rounds: Sequence[Mapping[str, Any]], truth: torch.Tensor | None) -> dict[str, Any]:
    """The measures of a whole run: those of its last round, and sums over rounds."""
    last = rounds[-1]
    kept = ("clusters", "ari", "purity", *(key for key in last if key.startswith("acc_")))
    sums = ("bytes_down", "bytes_up", "seconds", "seconds_training", "seconds_server")
    return {
        **{key: last[key] for key in kept},
        **{key: sum(record[key] for record in rounds) for key in sums},
        "bytes_data": sum(record.get("bytes_data", 0) for record in rounds),
        "rounds": last["round"],
        "rejected": sum(len(record["rejected"]) for record in rounds),
        "diverged": _diverged(rounds),
        "rounds_to_partition": _settled(rounds),
        "truth": None if truth is None else truth.tolist(),
    }


def _diverged(rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The rounds in which training diverged, and how many clients sent something that is not finite in them."""
    found = {
        record["round"]: record["events"]
        for record in rounds
        if any(event["kind"] == "diverged" for event in record.get("events", ()))
    }
    spoilt = {
        client
        for events in found.values()
        for event in events
        if event.get("reason") == "not finite"
        for client in event["clients"]
    }
    return {"rounds": list(found), "clients": len(spoilt)}


def diverged(summary: Mapping[str, Any]) -> bool:
    """Whether training diverged in every round of a run, so that its models are of no use."""
    rounds = summary.get("diverged", {}).get("rounds", ())
    return bool(rounds) and len(rounds) == summary["rounds"]


def _settled(rounds: Sequence[Mapping[str, Any]]) -> int:
    """The first round from which the partition equals the final one; tree ids are permanent, so they tell."""
    first = rounds[-1]["round"]
    for record in reversed(rounds):
        if record["labels"] != rounds[-1]["labels"]:
            break
        first = record["round"]
    return int(first)


def worse_off(accuracies: Mapping[int, float], reference: Mapping[int, float]) -> int:
    """How many clients would have done better with something else, such as FedAvg or training alone.

    Args:
        accuracies: client id -> accuracy of the model that it uses.
        reference: client id -> accuracy of the other model on the same test data.

    Raises:
        ContractError: when the two are not about the same clients.
    """
    if accuracies.keys() != reference.keys():
        raise ContractError(f"expected accuracies of clients {sorted(reference)}, found {sorted(accuracies)}")
    return sum(accuracies[client] < reference[client] for client in reference)
