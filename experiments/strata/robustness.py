"""The tables of studies on single federations: Byzantine clients, differential privacy, personal models."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from statistics import mean, median
from typing import Any

from experiments.strata import absent_federations, drifting_clients, federations, personal_federations
from experiments.tools import outcomes
from experiments.tools.outcomes import MISSING, table
from experiments.trust import (
    adaptive_federations,
    attacked_federations,
    attacked_shares,
    private_federations,
    tolerated_attacks,
)
from fedstrata.uploads.attacks.updates import BACKDOOR

RULE_TITLES = {
    "fedavg": "FedAvg, mean",
    "mean": "mean",
    "median": "median",
    "trimmed_mean": "trimmed mean",
    "geometric_median": "geometric median",
    "multi_krum": "multi-Krum",
    "centered_clip": "centred clipping",
    "norm_clip": "norm clipping",
}
"""The column of each method."""


def _measured(study: str, cases: Iterable[str]) -> Iterator[tuple[str, Sequence[Mapping[str, Any]]]]:
    """The cases of a study that have been run, in their order, and their runs."""
    known = federations.read(outcomes.RESULTS / f"{study}.json")
    return ((name, known[name]["runs"]) for name in cases if name in known)


ADAPTIVE_TITLES = {
    **RULE_TITLES,
    "mean, no checks": "mean, without checks over rounds",
    "norm_clip": "norm clipping",
}

ON_CLUSTERS = ("split", "merge", "cluster_hopping")
"""The attacks on the clustering. Lies about losses are another one."""


def _is_on_clusters(attack: Mapping[str, Any]) -> bool:
    """Whether an attack is one on the clustering."""
    return attack.get("kind") in ON_CLUSTERS or "losses" in attack


def _is_backdoor(attack: Mapping[str, Any]) -> bool:
    """Whether an attack is a backdoor."""
    return attack.get("kind") == BACKDOOR


def _attacked_cases(wanted: Callable[[Mapping[str, Any]], bool]) -> list[str]:
    """The federations whose attack is one of those wanted."""
    return [name for name, keys in attacked_federations.CASES.items() if wanted(keys["attack"])]


def attacked() -> str:
    """What honest clients have under each attack on models, with FedAvg, and with Strata and each rule."""
    rows = list[tuple[str, ...]]()
    cases = _attacked_cases(lambda attack: not _is_on_clusters(attack) and not _is_backdoor(attack))
    for name, runs in _measured("attacked_federations", cases):
        cells = (_honest([run[method] for run in runs]) for method in attacked_federations.MANY)
        exact = sum(_ari_of_honest(run["mean"]) == 1.0 for run in runs)
        rows.append((name, str(len(runs)), *cells, f"{exact} of {len(runs)}"))
    columns = " | ".join(RULE_TITLES[method] for method in attacked_federations.MANY)
    head = f"attack, Byzantine clients | seeds | {columns} | groups exact, mean"
    return table(head, rows or [("all attacks", MISSING, *[""] * 8)])


def shares(rule: str) -> str:
    """What each attack on models costs the honest clients, and those of the worst group, by who is Byzantine."""
    known = federations.read(outcomes.RESULTS / "attacked_shares.json")
    places = [
        place for place in attacked_shares.PLACES if rule == attacked_shares.RULES[0] or place != attacked_shares.FEW
    ]
    rows = [
        (attack, *(_cost(attacked_shares.outcomes(known, f"{attack}, {place}", rule)) for place in places))
        for attack in attacked_shares.ATTACKS
    ]
    return table(f"attack | {' | '.join(places)}", rows)


def _cost(runs: Sequence[Mapping[str, float]]) -> str:
    """What honest clients lose in points of accuracy, and in brackets those of the worst group, as means over seeds."""
    if not runs:
        return MISSING
    lost, worst = (100 * mean(run[key] for run in runs) for key in ("loss", "worst group"))
    seeds = f", {len(runs)} seeds" if len(runs) > 1 else ""
    return f"{lost:.1f} ({worst:.1f}){seeds}"


def tolerated(data: str, rule: str = "mean") -> str:
    """What each attack costs the honest clients beside the Byzantine clients' absence, with a rule of aggregation."""
    known = federations.read(outcomes.RESULTS / "tolerated_attacks.json")
    rows = list[tuple[str, ...]]()
    for attack in tolerated_attacks.ATTACKS if rule == "mean" else tolerated_attacks.COSTLY:
        places = [tolerated_attacks.outcomes(known, data, attack, where, rule) for where in tolerated_attacks.WHERE]
        runs = [run for place in places for run in place]
        exact = f"{sum(bool(run['exact']) for run in runs)} of {len(runs)}" if runs else ""
        rows.append((attack, *map(_cost, places), exact))
    return table(f"attack | {' | '.join(tolerated_attacks.WHERE)} | groups exact", rows)


def unattacked() -> str:
    """The mean accuracy without an attack, with Strata's checks of updates and without."""
    known = federations.read(outcomes.RESULTS / "tolerated_attacks.json")
    rows = list[tuple[str, ...]]()
    for data in tolerated_attacks.DATA:
        names = [tolerated_attacks.unattacked_name(data, checked=checked) for checked in (True, False)]
        runs = [federations.runs_of(known, name) for name in names]
        with_checks, without = ({run["seed"]: mean(run["accuracy"]) for run in each} for each in runs)
        seeds = sorted(with_checks.keys() & without.keys())
        differences = ", ".join(f"{with_checks[seed] - without[seed]:+.4f}" for seed in seeds)
        means = (f"{mean(each[seed] for seed in seeds):.3f}" if seeds else MISSING for each in (with_checks, without))
        rows.append((tolerated_attacks.DATA[data]["name"], *means, differences))
    return table("data | accuracy | without the checks | difference, by seed", rows)


def shares_clusters() -> str:
    """Where honest clients are by who is Byzantine, over all attacks on models."""
    known = federations.read(outcomes.RESULTS / "attacked_shares.json")
    rows = list[tuple[str, ...]]()
    for rule in attacked_shares.RULES:
        for place in attacked_shares.PLACES:
            runs = [
                run
                for attack in attacked_shares.ATTACKS
                for run in attacked_shares.outcomes(known, f"{attack}, {place}", rule)
            ]
            if runs:
                honest = sum(run["honest"] for run in runs)
                cells = (
                    f"{100 * sum(run[key] for run in runs) / honest:.0f} %" for key in ("with attackers", "captured")
                )
                pure = sum(bool(run["pure"]) for run in runs)
                rows.append((RULE_TITLES[rule], place, f"{pure} of {len(runs)}", *cells))
    head = "rule | Byzantine | runs without a mixed cluster | honest clients beside Byzantine ones | captured"
    return table(head, rows or [("all rules", MISSING, *[""] * 3)])


def attacked_clusters() -> str:
    """What honest clients have under attacks on the clustering, and how many clusters have some of them."""
    rows = list[tuple[str, ...]]()
    for name, runs in _measured("attacked_federations", _attacked_cases(_is_on_clusters)):
        cells = (_honest_clusters([run[method] for run in runs if method in run]) for method in RULE_TITLES)
        rows.append((name, str(len(runs)), *cells))
    head = f"attack, Byzantine clients | seeds | {' | '.join(RULE_TITLES.values())}"
    return table(head, rows or [("all attacks", MISSING, *[""] * 7)])


def _honest_clusters(runs: Sequence[Mapping[str, Any]]) -> str:
    """The accuracy of honest clients, and the numbers of clusters that have some of them, by seed."""
    clusters = ", ".join(str(run["clusters_honest"]) for run in runs)
    return f"{_honest(runs)}, {clusters}" if runs else "-"


def backdoors() -> str:
    """How often a backdoor succeeds with honest clients, in clusters with Byzantine clients and elsewhere."""
    rows = list[tuple[str, ...]]()
    for name, runs in _measured("attacked_federations", _attacked_cases(_is_backdoor)):
        for method in attacked_federations.FEW:
            found = [run[method] for run in runs]
            rates = (_rate(found, key) for key in ("success", "success_attacked", "success_elsewhere"))
            clusters = ", ".join(str(run["clusters"]) for run in found)
            title = RULE_TITLES[method] if method == "fedavg" else f"Strata, {RULE_TITLES[method]}"
            rows.append((name, title, str(len(runs)), _honest(found), clusters, *rates))
    head = (
        "attack, Byzantine clients | method | seeds | accuracy of honest clients | clusters | success | "
        "where Byzantine clients are | elsewhere"
    )
    return table(head, rows or [("all backdoors", MISSING, *[""] * 6)])


def _rate(runs: Sequence[Mapping[str, Any]], key: str) -> str:
    """A success rate of a backdoor, as a mean over the seeds that have such clients."""
    rates = [run[f"backdoor_{key}"] for run in runs if run[f"backdoor_{key}"] is not None]
    return f"{100 * mean(rates):.1f} %" if rates else "nobody"


def _honest(runs: Sequence[Mapping[str, Any]]) -> str:
    """The mean accuracy of honest clients, and in brackets that of the worst one, as means over seeds."""
    accuracy = mean(run.get("acc_honest", run["acc_client"]) for run in runs)
    worst = mean(run.get("acc_honest_worst", run["acc_worst"]) for run in runs)
    return f"{accuracy:.3f} ({worst:.2f})"


def _ari_of_honest(run: Mapping[str, Any]) -> float:
    """How well the clusters of honest clients agree with the true groups."""
    agreement: float = run.get("ari_honest", run["ari"])
    return agreement


def absent() -> str:
    """What clients have with Strata where some are absent, and whether their groups are found."""
    rows = list[tuple[str, ...]]()
    for name, runs in _measured("absent_federations", absent_federations.CASES):
        accuracy = f"{mean(run['acc_client'] for run in runs):.3f} ({mean(run['acc_worst'] for run in runs):.2f})"
        exact = (sum(run[key] == 1.0 for run in runs) for key in ("ari", "ari_used"))
        clusters = ", ".join(str(run["clusters"]) for run in runs)
        rows.append((name, accuracy, *(f"{count} of {len(runs)}" for count in exact), clusters))
    head = "who is absent | accuracy | groups exact | models in use exact | clusters, by seed"
    return table(head, rows or [("all cases", MISSING, *[""] * 3)])


def drifting() -> str:
    """How long it takes until clients whose data changed are in the right group, and what becomes of the others."""
    rows = list[tuple[str, ...]]()
    for name, runs in _measured("drifting_clients", drifting_clients.CASES):
        changed = [client for run in runs for client in run["changed"].values()]
        waited = [client["rounds"] for client in changed if client["rounds"] is not None]
        rounds = (drifting_clients.CHANGE - 2, drifting_clients.CHANGE - 1, -1)
        accuracy = (f"{mean(client['accuracy'][round] for client in changed):.2f}" for round in rounds)
        others = mean(run["accuracy_of_others"][-1] for run in runs)
        wrong = sum(len(run["lost"]) + len(run["moves"]) for run in runs)
        right = f"{len(waited)} of {len(changed)}"
        rows.append((name, right, f"{median(waited):g}" if waited else "-", *accuracy, f"{others:.3f}", str(wrong)))
    head = (
        "case | changed clients in the right group | rounds until then, median | their accuracy in round 20 | "
        "in round 21 | in round 50 | accuracy of the others in round 50 | wrong moves of the others"
    )
    return table(head, rows or [("all cases", MISSING, *[""] * 6)])


def adaptive() -> str:
    """What honest clients have under attackers that know what is checked, and how many of the attacks are stopped."""
    rows = list[tuple[str, ...]]()
    methods = adaptive_federations.METHODS
    for name, runs in _measured("adaptive_federations", adaptive_federations.CASES):
        cells = (_honest([run[method] for run in runs]) for method in methods)
        found = [run["mean"] for run in runs if "stopped" in run["mean"]]
        shares = (f"{mean(run[key] for run in found):.0%}" if found else "-" for key in ("stopped", "alone"))
        rows.append((name, str(len(runs)), *cells, *shares))
    titles = " | ".join(ADAPTIVE_TITLES[method] for method in methods)
    head = f"attack, Byzantine clients | seeds | {titles} | attacks stopped, mean | attackers alone, mean"
    return table(head, rows or [("all attacks", MISSING, *[""] * 8)])


def private() -> str:
    """The accuracy under each epsilon, with one model for all and with Strata, and the noise that it takes."""
    rows = list[tuple[str, ...]]()
    for name, runs in _measured("private_federations", private_federations.CASES):
        for epsilon in (None, *private_federations.EPSILONS):
            cells = list[str]()
            for algorithm in private_federations.ALGORITHMS:
                found = [run[private_federations.method(algorithm, epsilon)] for run in runs]
                noise = "" if epsilon is None else f"{mean(run['noise_multiplier'] for run in found):.2f}"
                cells += [f"{mean(run['acc_client'] for run in found):.3f}", noise]
            clusters = ", ".join(str(run["clusters"]) for run in found)
            rows.append((name, str(len(runs)), "none" if epsilon is None else f"{epsilon:g}", *cells, clusters))
    head = "federation | seeds | epsilon | FedAvg | its noise | Strata | its noise | its clusters, by seed"
    return table(head, rows or [("all federations", MISSING, *[""] * 6)])


def hidden() -> str:
    """Accuracy and clusters of Strata with personal models where groups are weak, hidden, or none at all."""
    known = federations.read(outcomes.RESULTS / "personal_federations.json")
    rows = list[tuple[str, ...]]()
    for name in personal_federations.CASES:
        runs: Sequence[Mapping[str, Any]] = federations.runs_of(known, name)
        if runs:
            accuracy = (
                f"{mean(run[method]['acc_client'] for run in runs):.3f}" if method in runs[0] else "-"
                for method in personal_federations.WITH_GROUPS
            )
            clusters = ", ".join(str(run["strata_best"]["clusters"]) for run in runs)
            rows.append((name, *accuracy, clusters))
    head = "federation | alone | FedAvg | Strata | Strata + `best` | oracle | clusters of Strata + `best`, by seed"
    return table(head, rows or [("all federations", MISSING, *[""] * 5)])


ROBUSTNESS: Mapping[str, Callable[..., str]] = {
    "absent": absent,
    "adaptive": adaptive,
    "attacked": attacked,
    "attacked_clusters": attacked_clusters,
    "shares": shares,
    "shares_clusters": shares_clusters,
    "backdoors": backdoors,
    "drifting": drifting,
    "hidden": hidden,
    "private": private,
    "tolerated": tolerated,
    "unattacked": unattacked,
}
"""The tables of the pages attacks, personal, privacy and strata-results."""
