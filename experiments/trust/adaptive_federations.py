"""Byzantine clients that know what Strata looks at, and poison what it does not.

    FEDSTRATA_DATA=DATA python -m experiments.trust.adaptive_federations --federations 3 --jobs 1

Adds to ``experiments/results/adaptive_federations.json`` the seeds that it does not hold yet. Twenty clients with
turned images of MNIST in four groups, 4 of the 20 Byzantine, or 2 of the 5 in one group. They know what is checked.
Strata compares clients by updates of folds, which enter no model: there they send what they have trained. The check of
directions looks at the cosine of a whole update with the sum of the others: they send one whose cosine with the mean of
the honest ones is 0.05. In one round, a norm of up to ten times the median is always accepted: theirs is nine times it.
In all rounds, the norm may be 2.5 times the median on average: others send 2.4 times it, or once. An update that
several send counts once: each adds noise with a norm of one hundredth of it. The rest is harm:

- ``hidden_layer``: the layer with the least share of the honest mean goes backwards; the other layers go forward as far
  as the cosine needs it.
- ``sideways``: all go the same way, at right angles to the honest mean. It is drawn by the seed and stays the same.

Of every run: what `attacked_federations.py` keeps, the share of attacks whose update was rejected or left out of the
mean, and the share of the attackers that end in a cluster without honest clients.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import acos, atan2, cos, sin
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

import fedstrata as fs
from experiments.strata.federations import run_study
from experiments.trust import attacked_federations
from fedstrata.base.randomness import generator
from fedstrata.core import TRAIN
from fedstrata.uploads.attacks.updates import ATTACKS as NAMED_ATTACKS
from fedstrata.uploads.attacks.updates import Knowledge

COSINE = 0.05
"""The cosine of what they send with the mean of the honest updates."""

NOISE = 0.01
"""The norm of the noise as a share of that of what they send."""

BELOW_LIMIT = 9.0
"""Times the median norm of the honest updates; ten times is accepted."""


def hidden_layer(known: Knowledge) -> torch.Tensor:
    """The layer that tells the least about the direction goes backwards, as far as norm and cosine allow it.

    Let the layer have the share sin(a) of the norm of the honest mean, and the rest cos(a). What is sent has the share
    sin(b) backwards in the layer, and cos(b) forward in the rest. Its cosine with the mean is cos(a + b).
    """
    if known.task != TRAIN:
        return known.own
    mean = known.honest.mean(dim=0)
    layer = min(known.layers.values(), key=lambda places: float(mean[places].norm()))
    inside = torch.zeros_like(mean).index_fill(0, layer, 1.0).bool()
    parts = [torch.where(inside == here, mean, 0.0) for here in (True, False)]
    lengths = [float(part.norm()) for part in parts]
    angle = acos(COSINE) - atan2(*lengths)
    sent: torch.Tensor = _length(known) * (cos(angle) * parts[1] / lengths[1] - sin(angle) * parts[0] / lengths[0])
    return _with_noise(known, sent)


def sideways(known: Knowledge) -> torch.Tensor:
    """The same way for all, at right angles to the honest mean but for the cosine that passes."""
    if known.task != TRAIN:
        return known.own
    mean = known.honest.mean(dim=0)
    mean = mean / mean.norm()
    way = torch.randn(len(mean), generator=generator(known.seed, "sideways attack"))
    way = way - (way @ mean) * mean
    sent: torch.Tensor = _length(known) * (COSINE * mean + (1 - COSINE**2) ** 0.5 * way / way.norm())
    return _with_noise(known, sent)


def _with_noise(known: Knowledge, sent: torch.Tensor) -> torch.Tensor:
    """What each of them sends, (b, p): the same but for a little noise."""
    noise = torch.randn(known.own.shape, generator=generator(known.seed, "noise of the attackers", known.round))
    apart: torch.Tensor = sent + NOISE * sent.norm() * noise / noise.norm(dim=1, keepdim=True)
    return apart


def _length(known: Knowledge) -> float:
    """The norm of what is sent."""
    return (known.strength or BELOW_LIMIT) * float(known.honest.norm(dim=1).median())


UNNOTICED = 2.4
"""Times the median norm of the honest updates in all rounds; 2.5 times is accepted."""

STRATA = {"name": "strata"}
METHODS: Mapping[str, Mapping[str, Any]] = {
    "fedavg": {"algorithm": {"name": "fedavg"}},
    "mean, no checks": {"algorithm": STRATA, "server": {"checks": []}},
    "mean": {"algorithm": STRATA},
    "norm_clip": {"algorithm": STRATA, "server": {"aggregation": "norm_clip"}},
    "multi_krum": {"algorithm": STRATA, "server": {"aggregation": "multi_krum"}},
}
"""The tables of each method: FedAvg, and Strata without its checks over rounds, with them, and with two rules."""

ATTACKS: Mapping[str, Mapping[str, Any]] = {
    "sign_flip": {"kind": "sign_flip"},
    "hidden_layer": {"kind": "hidden_layer"},
    "hidden_layer, norm times 2.4": {"kind": "hidden_layer", "strength": UNNOTICED},
    "hidden_layer, ordinary norm": {"kind": "hidden_layer", "strength": 1.0},
    "sideways": {"kind": "sideways"},
    "sideways, norm times 2.4": {"kind": "sideways", "strength": UNNOTICED},
}

CASES: Mapping[str, Mapping[str, Any]] = {
    "nobody": attacked_federations.case({}),
    **{
        f"{name}, {place}": attacked_federations.case({**attack, **where})
        for place, where in attacked_federations.PLACES.items()
        for name, attack in ATTACKS.items()
    },
}
"""Experiments, by the attack and who is Byzantine."""


def outcome(run: fs.Run) -> dict[str, Any]:
    """What is kept of a run."""
    found = {key: run.summary[key] for key in ("acc_client", "acc_worst", "ari", "clusters")}
    if "attack" not in run.summary:
        return found
    byzantine = set(run.summary["attack"]["clients"])
    stopped = 0
    for each in run.rounds:
        events = [event for event in each["events"] if event["kind"] in ("reversed", "oversized")]
        left_out = {client for event in events for client in event["clients"]}
        stopped += len(byzantine & {*each["rejected"], *left_out})
    last = run.rounds[-1]["labels"]
    honest = {label for client, label in enumerate(last) if client not in byzantine}
    return {
        **found,
        **run.summary["attack"],
        "stopped": stopped / (len(byzantine) * len(run.rounds)),
        "alone": sum(last[client] not in honest for client in byzantine) / len(byzantine),
    }


def one(name: str, seed: int) -> dict[str, Any]:
    """One federation of a case under each method."""
    for attack in (hidden_layer, sideways):
        NAMED_ATTACKS.register(attack.__name__, attack)
    with TemporaryDirectory() as folder:
        runs = {
            method: fs.run({**CASES[name], **tables, "seed": seed}, Path(folder) / f"run-{place}", quiet=True)
            for place, (method, tables) in enumerate(METHODS.items())
        }
        return {"seed": seed, **{method: outcome(run) for method, run in runs.items()}}


def main() -> None:
    """Compute what is missing."""
    conditions = {name: {"keys": keys, "methods": METHODS} for name, keys in CASES.items()}
    run_study("adaptive_federations", __doc__, conditions, one, federations=3)


if __name__ == "__main__":
    main()
