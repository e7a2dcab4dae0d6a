"""How the figures of the matrix of faults, attacks and leaks are read from the results of experiments.

A reader says in words what was measured, and whether it is what is expected. It returns None for a result that does not
hold its part yet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from statistics import mean
from typing import Any

from experiments.trust import attacked_shares, tolerated_attacks


@dataclass(frozen=True)
class Found:
    """What a result says.

    Attributes:
        text: The figure in words.
        good: Whether it is what is expected.
        lacks: What it does not cover, in words; empty if it covers all.
    """

    text: str
    good: bool
    lacks: str = ""


@dataclass(frozen=True)
class Figure:
    """A figure of a result.

    Attributes:
        file: The name of the result, in ``experiments/results``.
        read: Reads the figure.
        script: The name of the experiment.
    """

    file: str
    read: Callable[[Any], Found | None]
    script: str


def kills_at_points(result: Any) -> Found | None:
    """Runs that were killed at a labelled point and resumed."""
    if "points" not in result:
        return None
    points = result["points"].values()
    kills, equal, one = (sum(point[key] for point in points) for key in ("kills", "equal", "one round"))
    text = (
        f"{equal} of {kills} kills at {len(points)} points resumed bit for bit, {one} of them with at most one round "
        "done again"
    )
    lacks = "" if kills >= 200 else "fewer than 200 kills"
    return Found(text, equal == kills == one and all(point["kills"] for point in points), lacks)


def kills_at_moments(result: Any) -> Found | None:
    """Runs that were killed at random moments until they were finished."""
    if "moments" not in result:
        return None
    runs = result["moments"]
    equal = [run for run in runs if run["equal"] and run["one round"]]
    kills = sum(run["kills"] for run in runs)
    text = f"{len(equal)} of {len(runs)} runs bit for bit after {kills} kills at random moments"
    return Found(text, len(equal) == len(runs))


def kills_of_workers(part: str, least: int, result: Any) -> Found | None:
    """Runs in which a worker was killed in each round."""
    if part not in result:
        return None
    runs = result[part]
    kills = sum(run["kills"] for run in runs)
    equal = sum(run["equal"] for run in runs)
    text = f"{kills} workers killed in {len(runs)} {'run' if len(runs) == 1 else 'runs'}, {equal} of them bit for bit"
    return Found(text, equal == len(runs), "" if kills >= least else f"fewer than {least} kills")


def lost_nodes(result: Any) -> Found | None:
    """Runs on a cluster of Ray, of which a node was killed or stopped in the middle of a round."""
    killed, silent = result.get("killed", []), result.get("silent", [])
    runs = [*killed, *silent]
    if not runs:
        return None
    equal = sum(run["equal"] and run["in_round"] for run in runs)
    text = (
        f"{equal} of {len(runs)} runs on a cluster of Ray of which a node was lost in the middle of a round are bit "
        f"for bit the loop's ({len(killed)} nodes killed, {len(silent)} stopped without a word)"
    )
    return Found(text, equal == len(runs), "" if killed and silent else "nodes were not lost in both ways")


def mutated_messages(result: Any) -> Found:
    """Replies that were changed at random."""
    found = result["mutated"]
    text = (
        f"{found['cases']:,} changed replies: {found['wrong']} crashes or changed bits; {found['refused']:,} refused, "
        f"{found['taken']:,} sound in spite of the change, {found['without effect']:,} without effect"
    )
    return Found(text, found["wrong"] == 0, "" if found["cases"] >= 10_000 else "fewer than 10,000 cases")


def cut_messages(result: Any) -> Found:
    """Replies that end after every number of bytes."""
    found = result["cut"]
    text = f"{found['refused']:,} of {found['cases']:,} cut replies are as if the client had been absent, in every bit"
    return Found(text, found["refused"] == found["cases"])


def delivered_messages(result: Any) -> Found:
    """Replies that come twice, late, or from somebody else."""
    found = result["delivered"]
    text = (
        f"{found['delivered']:,} replies in {found['rounds']:,} rounds, of them {found['of others']:,} of another "
        f"round, client or run and {found['again']:,} repeated: {found['wrong']} rounds with a wrong one taken"
    )
    return Found(text, found["wrong"] == 0, "" if found["delivered"] >= 10_000 else "fewer than 10,000 replies")


def counted_cases(noun: str, least: int, result: Any) -> Found:
    """A result that counts cases and those that went wrong."""
    text = f"{result['cases']:,} {noun}: {result['wrong']} wrong"
    return Found(text, result["wrong"] == 0, "" if result["cases"] >= least else f"fewer than {least:,} cases")


HONEST_LOSS = 0.02
"""What a fifth of Byzantine clients may cost the honest ones, in accuracy."""

FIFTH = ("4 of 20", "2 of the 5 of a group")
"""Up to a fifth of the clients, spread or in one group."""


def attacks_on_updates(result: Any) -> Found | None:
    """The most that each rule loses by any attack on models, of its accuracy without attack."""
    wanted = [f"{attack}, {place}" for attack in attacked_shares.ATTACKS for place in FIFTH]
    cases = {name: result[name] for name in wanted if name in result}
    if not cases or "nobody" not in result:
        return None

    def accuracy(case: Any, method: str) -> float:
        return float(mean(run[method].get("acc_honest", run[method]["acc_client"]) for run in case["runs"]))

    rules = [method for method in result["nobody"]["methods"] if method not in ("fedavg", "mean")]
    worst = {
        rule: max(accuracy(result["nobody"], rule) - accuracy(each, rule) for each in cases.values()) for rule in rules
    }
    best = min(worst, key=worst.__getitem__)
    text = (
        f"with {best}, the best of {len(rules)} rules, the most that any of {len(attacked_shares.ATTACKS)} attacks by "
        f"{' or '.join(FIFTH)} costs the honest ones is {100 * worst[best]:.1f} points of accuracy"
    )
    return Found(text, worst[best] <= HONEST_LOSS, "" if len(cases) == len(wanted) else "not all attacks")


EXACT_RUNS = 0.9
"""The least share of the runs that keep the groups of honest clients exactly."""

OTHERS = ("sybil", "slow_poisoning")
"""Attacks on models that the matrix does not ask for."""

SEEDS = 3
"""The least number of seeds that says what a robust rule promises."""


def attacks_by_share(rule: str, result: Any) -> Found | None:
    """The most that any attack on models costs honest clients, and those of one group, by who is Byzantine.

    With a robust rule and up to a fifth of Byzantine clients it is bounded, for the attacks of the matrix. What the
    others cost above that is said.
    """
    listed = list[str]()
    lacks = list[str]()
    good = True
    robust = rule != attacked_shares.RULES[0]
    for place in attacked_shares.PLACES:
        names = [name for name in attacked_shares.WHO if name.endswith(f", {place}")]
        runs = {name: attacked_shares.outcomes(result, name, rule) for name in names}
        found = {name: mean(run["loss"] for run in each) for name, each in runs.items() if each}
        if not found:
            continue
        if len(found) < len(names):
            lacks.append(f"{rule}: {len(found)} of {len(names)} attacks by {place}")
        worst = max(found, key=found.__getitem__)
        if robust and place in FIFTH:
            above = [name for name, loss in found.items() if loss > HONEST_LOSS]
            good &= all(name.startswith(OTHERS) for name in above)
            lacks += [f"with {rule}, {name} costs {100 * found[name]:.1f} points" for name in above]
            seeds = min(len(each) for each in runs.values() if each)
            lacks += [f"{rule}: fewer than {SEEDS} seeds of attacks by {place}"] if seeds < SEEDS else []
        group = max(mean(run["worst group"] for run in each) for each in runs.values() if each)
        listed.append(f"{100 * found[worst]:.1f} by {worst} (one group {100 * group:.1f})")
    if not listed:
        return None
    title = f"with {rule}" if robust else "by default"
    return Found(f"points lost {title} at most: {', '.join(listed)}", good, "; ".join(lacks))


def attacks_beside_absence(result: Any) -> Found | None:
    """What all attacks cost honest clients beside the absence of the Byzantine ones.

    With the robust rule it is bounded. By default it is said.
    """
    costs = dict[str, Mapping[str, float]]()
    exact = list[bool]()
    kept = list[bool]()
    costly = list[bool]()
    missing = 0
    for rule in ("mean", tolerated_attacks.ROBUST):
        wanted = [case for case in tolerated_attacks.CASES.values() if case[3] == rule]
        cases = {
            f"{attack}, {where}, {data}": tolerated_attacks.outcomes(result, data, attack, where, rule)
            for data, attack, where, _ in wanted
            if attack != tolerated_attacks.ABSENT
        }
        missing += sum(not runs for runs in cases.values())
        costs[rule] = {name: mean(run["loss"] for run in runs) for name, runs in cases.items() if runs}
        exact += [bool(run["exact"]) for runs in cases.values() for run in runs]
        kept += [bool(run["as unharmed"]) for runs in cases.values() for run in runs]
        costly += [bool(run["outvoted"]) for runs in cases.values() for run in runs if run["loss"] > HONEST_LOSS]
    default, robust = costs.values()
    if len(default) < 2 or not robust:
        return None
    most = sorted(default, key=default.__getitem__)[-2:]
    text = (
        f"beside the attackers' absence, {len(default)} attacks on two data sets cost honest clients at most "
        f"{100 * default[most[1]]:.1f} points by default ({most[1]}), the next {100 * default[most[0]]:.1f}, and the "
        f"costliest ones {100 * max(robust.values()):.1f} with {tolerated_attacks.ROBUST}; "
        f"{len(exact) - len(costly)} of {len(exact)} runs cost at most {100 * HONEST_LOSS:.0f} points, and in "
        f"{sum(costly)} of the other {len(costly)} most clients of a group are Byzantine; "
        f"groups are exact in {sum(exact)} of {len(exact)} runs, and as exact as without the attackers in {sum(kept)}"
    )
    lacks = f"{missing} cases were not run" if missing else ""
    return Found(text, max(robust.values()) <= HONEST_LOSS and sum(exact) >= EXACT_RUNS * len(exact), lacks)


DROP_OUTS = ("6%", "10%", "20%", "30%")
"""The shares of clients that drop out in the cases where nothing may change."""


def drop_outs(result: Any) -> Found | None:
    """What up to 30 % of drop-outs cost, and whether the groups stay the same."""
    cases = [result.get(f"{share} drop out in each round") for share in DROP_OUTS]
    if "nobody is absent" not in result or None in cases:
        return None
    whole = mean(run["acc_client"] for run in result["nobody is absent"]["runs"])
    cost = max(whole - mean(run["acc_client"] for run in case["runs"]) for case in cases)
    runs = [run for case in cases for run in case["runs"]]
    exact = sum(run["ari"] == 1.0 for run in runs)
    text = f"up to 30 % drop out: {exact} of {len(runs)} runs have the exact groups, at {100 * cost:.1f} points at most"
    return Found(text, exact == len(runs) and cost <= 0.01)


def late_group(result: Any) -> Found | None:
    """A group that is away in the first half of the rounds."""
    if (case := result.get("one group is away in rounds 1 to 15 of 30")) is None:
        return None
    exact = sum(run["ari"] == 1.0 for run in case["runs"])
    text = f"away in rounds 1 to 15 of 30: {exact} of {len(case['runs'])} runs end with the exact groups"
    return Found(text, exact == len(case["runs"]))


def network_faults(result: Any) -> Found:
    """Federations of real processes under faults of the network."""
    runs = [run for run in result if run["case"] != "no_fault"]
    equal = sum(run["same_bits"] for run in runs)
    kinds = len({run["case"] for run in runs})
    text = (
        f"{equal} of {len(runs)} runs with one of {kinds} faults of the network end with the bits of the simulation, "
    )
    text += "clients absent likewise"
    return Found(text, equal == len(runs), "" if len(runs) >= 50 else f"{len(runs)} of the 50 runs were done")


def slow_clients(result: Any) -> Found:
    """Late answers that were taken under any rule, and how long a round takes."""
    late = sum(run["late_taken"] for run in result)
    seconds = max(run["seconds_p99"] for run in result if run["rule"] == "deadline")
    text = (
        f"{late} late answers taken in {len(result)} runs; with a deadline of 30 s, p99 of a round is {seconds:.1f} s"
    )
    return Found(text, late == 0 and seconds <= 31.0)


MAX_GROWTH = 0.02
"""By how much memory, files and threads may grow in a soak."""


def soak(result: Any) -> Found:
    """Long runs: how memory, files and threads grow."""
    growth = {key: max(part[key]["growth"] for part in result) for key in ("mib", "files", "threads")}
    rounds = min(part["rounds"] for part in result)
    text = f"{rounds} rounds: memory grows by {100 * growth['mib']:.2f} %, files and threads by "
    text += f"{100 * max(growth['files'], growth['threads']):.2f} %"
    return Found(text, max(growth.values()) <= MAX_GROWTH)


def backdoors(result: Any) -> Found | None:
    """The largest success of a backdoor in clusters without Byzantine clients, with each rule."""
    runs = [run for name, case in result.items() if name.startswith("backdoor") for run in case["runs"]]
    if not runs:
        return None
    methods = {"mean": "the mean", "multi_krum": "multi-Krum", "norm_clip": "norm clipping"}
    rates = {method: [run[method]["backdoor_success_elsewhere"] for run in runs] for method in methods}
    worst = {method: max(rate for rate in found if rate is not None) for method, found in rates.items()}
    own = max(run[method]["backdoor_success_attacked"] or 0.0 for run in runs for method in rates)
    *first, last = (f"{100 * worst[method]:.1f} % with {name}" for method, name in methods.items())
    text = f"success outside the attacked clusters at most {', '.join(first)} and {last}, inside them {100 * own:.0f} %"
    open_points = ["a client that does not scale its update is not noticed in its own cluster"] if own > 0.05 else []
    open_points += [
        f"with {name}, more than 5 % succeed elsewhere too" for method, name in methods.items() if worst[method] > 0.05
    ]
    # What is asked is that of the default, the mean.
    return Found(text, worst["mean"] <= 0.05, "; ".join(open_points))


ON_CLUSTERS = ("split", "merge", "cluster_hopping", "sybil")


def attacks_on_clusters(result: Any) -> Found | None:
    """How many runs under attacks on the clustering leave the groups of honest clients as they are, with the mean."""
    runs = [
        run["mean"] for name, case in result.items() if name.partition(",")[0] in ON_CLUSTERS for run in case["runs"]
    ]
    if not runs:
        return None
    exact = sum(run["ari_honest"] == 1.0 for run in runs)
    lost = sum(run["clusters"] == 1 for run in runs)
    text = f"with the mean, {exact} of {len(runs)} runs have the exact groups of honest clients, {lost} have none"
    return Found(text, exact >= EXACT_RUNS * len(runs) and not lost)


def changed_clients(result: Any) -> Found | None:
    """How many clients whose data changed came into the right group, and after how many rounds."""
    if "the run is told" not in result:
        return None
    runs = result["the run is told"]["runs"]
    waits = [each["rounds"] for run in runs for each in run["changed"].values()]
    found = [rounds for rounds in waits if rounds is not None]
    wrong = sum(len(run["lost"]) + len(run["moves"]) for run in runs)
    longest = max(found, default=0)
    text = (
        f"{len(found)} of {len(waits)} clients of which the run is told that their data changed are in the right group "
        f"after at most {longest} round{'s' * (longest != 1)}; {wrong} wrong moves"
    )
    return Found(text, found == waits and not wrong)


ADAPTIVE = ("hidden_layer", "sideways")
"""The attacks by clients that know what is checked."""


def adaptive_attacks(result: Any) -> Found | None:
    """The most that attackers who know the checks cost the honest ones, with the mean and with the best robust rule."""
    cases = {name: case for name, case in result.items() if name.partition(",")[0] in ADAPTIVE}
    if not cases or "nobody" not in result:
        return None
    calm = {run["seed"]: run for run in result["nobody"]["runs"]}

    def cost(method: str) -> float:
        lost = [
            [calm[run["seed"]][method]["acc_client"] - run[method]["acc_honest"] for run in case["runs"]]
            for case in cases.values()
        ]
        return max(float(mean(each)) for each in lost)

    costs = {method: cost(method) for method in ("mean", "norm_clip", "multi_krum")}
    best = min(costs, key=costs.__getitem__)
    stopped = mean(run["mean"]["stopped"] for case in cases.values() for run in case["runs"])
    text = (
        f"{len(cases)} attacks by clients that know the checks cost the honest ones at most {100 * costs[best]:.1f} "
        f"points of accuracy with {best}, and {100 * costs['mean']:.1f} with the mean, where {stopped:.0%} of what "
        "they send is stopped"
    )
    harmful = costs["mean"] > HONEST_LOSS
    return Found(text, costs[best] <= HONEST_LOSS, "the checks alone, without a robust rule, do not" if harmful else "")


def membership(result: Any) -> Found | None:
    """How well membership is inferred, by the number of clients that share a model."""
    if (found := result.get("membership by size")) is None:
        return None
    rates = {size: mean(run[str(size)]["shadow"]["auc"] for run in found["runs"]) for size in found["sizes"]}
    listed = ", ".join(f"{rate:.2f} for {size}" for size, rate in rates.items())
    return Found(f"AUC of the shadow-model attack by clients that share a model: {listed}", True)


def _mean_of(runs: Any, *keys: str) -> float:
    """The mean over runs of what lies under some keys."""
    values = list[float]()
    for run in runs:
        for key in keys:
            run = run[key]
        values.append(run)
    return mean(values)


def label_mix(result: Any) -> Found | None:
    """How well the mix of labels is estimated from one upload."""
    if (found := result.get("label mix")) is None:
        return None
    seen = {"the whole update": "fedavg, round 1", "all but the head": "fedper, round 1"}
    listed = ", ".join(f"{_mean_of(found['runs'], key, 'r'):.2f} from {what}" for what, key in seen.items())
    return Found(f"correlation of estimated and true shares in round 1: {listed}", True)


def membership_with_noise(result: Any) -> Found | None:
    """How well membership is inferred with and without noise, with the accuracy that is left."""
    if (found := result.get("membership with noise")) is None:
        return None
    size = min(found["sizes"])
    listed = list[str]()
    rates = dict[str, float]()
    for noise in ("no noise", "central, 0.3", "local, 0.3", "central, epsilon 8"):
        case = f"{noise}, {size} clients"
        rates[noise] = _mean_of(found["runs"], case, "shadow", "auc")
        listed.append(f"{rates[noise]:.2f} ({noise}; accuracy {_mean_of(found['runs'], case, 'accuracy'):.2f})")
    lower = all(rate < rates["no noise"] for noise, rate in rates.items() if noise != "no noise")
    return Found(f"of {size} clients with noise: {', '.join(listed)}", lower)


def membership_by_least_size(result: Any) -> Found | None:
    """How well members of small groups are found with each least size of clusters."""
    if (found := result.get("membership by least size")) is None:
        return None
    rates = {
        name: [_mean_of(found["runs"], f"{name}, at least {least}", "small", "auc") for least in found["least"]]
        for name in found["algorithms"]
    }
    listed = ", ".join(f"{one:.2f} and {other:.2f} with {name}" for name, (one, other) in rates.items())
    text = f"AUC of the loss in groups of 2 and 3 with clusters of at least 1 and 5: {listed}"
    return Found(text, all(other < one for one, other in rates.values()))


def label_mix_with_noise(result: Any) -> Found | None:
    """How well the mix of labels is estimated from one upload with noise, with the accuracy that is left."""
    if (found := result.get("label mix with noise")) is None:
        return None
    listed = list[str]()
    rates = list[float]()
    for noise in found["noise"]:
        rates.append(_mean_of(found["runs"], f"{noise}, round 1", "r"))
        left = _mean_of(found["runs"], f"{noise}, round 10", "accuracy")
        listed.append(f"{rates[-1]:.2f} with {noise} (accuracy {left:.2f})")
    return Found(f"by the best of five attacks: {', '.join(listed)}", rates[-1] < rates[0])


def inversion(result: Any) -> Found | None:
    """How well samples are found from what is sent."""
    if (found := result.get("inversion")) is None:
        return None
    exposures = ("1 image, gradient", "1 image, gradient of the head", "16 images, epoch of 4 steps")
    listed = ", ".join(f"{_mean_of(found['runs'], f'mnist_cnn, {key}'):.1f} dB ({key})" for key in exposures)
    blind = _mean_of(found["runs"], "mean image of the class")
    return Found(f"PSNR of a network with convolutions: {listed}; the mean image of the class has {blind:.1f} dB", True)


def private_accuracy(result: Any) -> Found:
    """The accuracy with each epsilon."""
    name, case = list(result.items())[-1]
    methods = case["methods"]
    listed = ", ".join(f"{method}: {_mean_of(case['runs'], method, 'acc_client'):.3f}" for method in methods)
    return Found(f"{name}, accuracy: {listed}", True)


FIGURES: dict[str, Figure] = {
    "kills at points": Figure("kills", kills_at_points, "kills"),
    "kills at moments": Figure("kills", kills_at_moments, "kills"),
    "kills of workers": Figure("kills", partial(kills_of_workers, "workers", 100), "kills"),
    "kills of Ray's workers": Figure("kills", partial(kills_of_workers, "ray", 50), "kills"),
    "lost nodes of Ray": Figure("cluster", lost_nodes, "cluster"),
    "mutated messages": Figure("fuzzed_messages", mutated_messages, "fuzzed_messages"),
    "cut messages": Figure("fuzzed_messages", cut_messages, "fuzzed_messages"),
    "delivered messages": Figure("fuzzed_messages", delivered_messages, "fuzzed_messages"),
    "degenerate updates": Figure(
        "degenerate_updates", partial(counted_cases, "rounds of degenerate updates", 10_000), "degenerate_updates"
    ),
    "damaged checkpoints": Figure(
        "damaged_checkpoints", partial(counted_cases, "damaged checkpoints", 1_000), "damaged_checkpoints"
    ),
    "attacks on updates": Figure("attacked_federations", attacks_on_updates, "attacked_federations"),
    "attacks by share": Figure(
        "attacked_shares", partial(attacks_by_share, attacked_shares.RULES[0]), "attacked_shares"
    ),
    "attacks by share, robust": Figure(
        "attacked_shares", partial(attacks_by_share, attacked_shares.RULES[1]), "attacked_shares"
    ),
    "drop-outs": Figure("absent_federations", drop_outs, "absent_federations"),
    "a late group": Figure("absent_federations", late_group, "absent_federations"),
    "network faults": Figure("network_faults", network_faults, "network_faults"),
    "slow clients": Figure("stragglers", slow_clients, "stragglers"),
    "soak": Figure("soak", soak, "soak"),
    "attacks beside absence": Figure("tolerated_attacks", attacks_beside_absence, "tolerated_attacks"),
    "backdoors": Figure("attacked_federations", backdoors, "attacked_federations"),
    "attacks on clusters": Figure("attacked_federations", attacks_on_clusters, "attacked_federations"),
    "differential privacy": Figure("private_federations", private_accuracy, "private_federations"),
    "adaptive attacks": Figure("adaptive_federations", adaptive_attacks, "adaptive_federations"),
    "changed clients": Figure("drifting_clients", changed_clients, "drifting_clients"),
    "membership": Figure("leaks", membership, "leaks"),
    "label mix": Figure("leaks", label_mix, "leaks"),
    "membership with noise": Figure("leaks", membership_with_noise, "leaks"),
    "membership by least size": Figure("leaks", membership_by_least_size, "leaks"),
    "label mix with noise": Figure("leaks", label_mix_with_noise, "leaks"),
    "inversion": Figure("leaks", inversion, "leaks"),
}
"""The figures by name."""
