"""What the page says first, to a reader who knows no statistics: the groups, why, what they gained, whom to look at."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from fedstrata.report.catalogue import plain_sentence, sentence
from fedstrata.report.charts.groups import clients_of, describe_clusters
from fedstrata.report.clusters import Clusters
from fedstrata.report.gains import gain, stands_out
from fedstrata.report.reader import RunRecords
from fedstrata.report.references import has_personal_models
from fedstrata.report.words import IN_MEMORY, capital, plural

MOST_GROUPS = 8
"""Groups that the page lists at once; further ones are folded."""

BASELINE_COMMAND = "fedstrata run --resume --set report.baseline=true --out DIR"
"""The command that adds a run of FedAvg to a simulation."""

BASELINE_CALL = 'fs.run(clients=CLIENTS, out="DIR", resume=True, sets=["report.baseline=true"])'
"""The call that does where a program gave the data."""

MOST_CONCERNS = 5
"""Clients to look at that are named; the table of clients has all."""

RARE_ANSWERS = 0.5
"""A client that answered in less than this share of the rounds in which it was asked is one to look at."""


class Group(NamedTuple):
    """A final cluster.

    Attributes:
        node: Its node in the cluster tree.
        clients: Its clients.
        mean: The mean of the run's metric over them; empty where it is not known.
        text: What distinguishes their data from that of all others; empty where nothing is known of it.
    """

    node: int
    clients: list[int]
    mean: str
    text: str


class Concern(NamedTuple):
    """A client to look at, and why."""

    client: int
    why: str


@dataclass(frozen=True)
class Overview:
    """The four answers.

    Attributes:
        groups: What the groups are, in a sentence; empty where the algorithm makes none.
        listed: The groups; none where there is one.
        why: Why these groups, in sentences.
        gained: What grouping gained, in sentences.
        command: The command by which that would be known, where it is not; else empty.
        concerns: The clients to look at, those with most reasons first.
        rest: The number of further ones.
        worst: The worst client where none stands out; None where some do, or nothing is known.
    """

    groups: str
    listed: list[Group]
    why: list[str]
    gained: list[str]
    command: str
    concerns: list[Concern]
    rest: int
    worst: Concern | None


def overview(clusters: Clusters, means: Mapping[int, float]) -> Overview | None:
    """Return the four answers; None before the first round.

    Args:
        clusters: The clusters of the run.
        means: The mean metric of the clients of each final cluster.
    """
    if clusters.records.last is None:
        return None
    found = concerns(clusters)
    gained = gains(clusters)
    finished = clusters.records.summary is not None
    return Overview(
        groups=_groups(clusters),
        listed=_listed(clusters, means),
        why=reasons(clusters),
        gained=gained or _no_reference(clusters),
        command=_baseline_command(clusters.records) if clusters.clustered and finished and not gained else "",
        concerns=found[:MOST_CONCERNS],
        rest=max(len(found) - MOST_CONCERNS, 0),
        worst=None if found else _worst(clusters),
    )


def _baseline_command(records: RunRecords) -> str:
    """Return what adds a run of FedAvg."""
    return BASELINE_CALL if str(records.setting("data", "name")).startswith(IN_MEMORY) else BASELINE_COMMAND


def _groups(clusters: Clusters) -> str:
    """Say how many groups there are."""
    if not clusters.clustered:
        return ""
    members = (client for client, node in clusters.node_of.items() if node in clusters.finals)
    placed = sum(client not in clusters.pending for client in members)
    if len(clusters.finals) == 1 and has_personal_models(clusters.records.settings):
        several = plural(placed, "client")
        return f"There is one: all {several} start from one shared model, and each makes a personal model of it."
    if len(clusters.finals) == 1:
        return f"There is one: all {plural(placed, 'client')} share one model."
    return (
        f"{plural(placed, 'client')} are in {len(clusters.finals)} groups. The clients of a group train a model of "
        "their own together. A group is named by its node in the cluster tree below."
    )


def _listed(clusters: Clusters, means: Mapping[int, float]) -> list[Group]:
    if not clusters.clustered or len(clusters.finals) < 2:
        return []
    texts = {each.node: each.text for each in describe_clusters(clusters)}
    metric = clusters.metric
    return [
        Group(node, clients_of(clusters, node), metric.text(means[node]) if node in means else "", texts.get(node, ""))
        for node in clusters.finals
    ]


def reasons(clusters: Clusters) -> list[str]:
    """Say why the clients are in these groups, or in one: what decided about the nodes, each sentence once."""
    if not clusters.clustered:
        return []
    tree = clusters.records.tree
    summary = clusters.records.summary
    if len(tree) == 1 and summary is not None and summary.diverged and summary.rounds in summary.diverged.rounds:
        return ["Training diverged, so that nothing is known of groups."]
    split = [node for node in tree if any(other.parent == node.id for other in tree)]
    decided = split or [tree[node] for node in clusters.finals if node < len(tree)] or list(tree[:1])
    first: dict[str, list[int]] = {}
    for node in decided:
        if node.why:
            first.setdefault(node.why, []).append(node.id)
    told = []
    for kind, nodes in first.items():
        node = tree[nodes[0]]
        plain = plain_sentence(kind, node.criteria, clusters.names)
        text = plain or f"{capital(sentence(kind, node.layer, node.criteria, clusters.names))}."
        rest = len(nodes) - 1
        told.append(f"{text} The same holds for {plural(rest, 'further split')}." if rest and split else text)
    if split:
        told.append("The cluster tree below has the numbers of every decision.")
    return told


def gains(clusters: Clusters) -> list[str]:
    """Return what this run reached against each reference, and whom it serves better or worse."""
    records = clusters.records
    metric = clusters.metric
    mean = records.final("acc_client")
    found = []
    for name, reference in records.references.items():
        text = ""
        if mean is not None:
            by = metric.gain(mean, reference.mean)
            word = metric.better if by >= 0 else metric.worse
            seen = abs(by) >= metric.smallest_gain(mean, reference.mean)
            gained = f"{metric.gain_text(abs(by))} {word}" if seen else "no difference"
            text = (
                f"{capital(metric.name)} {metric.text(mean)} on average, {metric.text(reference.mean)} with "
                f"{clusters.reference_text(name)}: {gained}."
            )
        found.append(f"{text} {_counted(clusters, name)}".strip())
    return list(filter(None, found))


def _counted(clusters: Clusters, name: str) -> str:
    """Return how many clients a run serves better and worse than a reference, and the names of the latter."""
    metric = clusters.metric
    reference = clusters.records.references[name]
    better, worse, unclear = gain(clusters.measured, reference.by_client, metric, clusters.pairs[name])
    total = len(better) + len(worse) + len(unclear)
    if not total:
        return ""
    named = f" ({clusters.names.listed(worse)})" if 0 < len(worse) <= MOST_CONCERNS else ""
    other = clusters.reference_text(name)
    counts = f"Of {plural(total, 'client')}, {len(better) or 'none'}"
    if metric.share_of_samples:
        return (
            f"{counts} clearly better off than with {other}, {len(worse) or 'none'} clearly worse "
            f"off{named}, {len(unclear) or 'none'} without a clear difference."
        )
    return (
        f"{counts} better off than with {other}, {len(worse) or 'none'} worse off{named}. How much of this "
        "is chance is not known."
    )


def _no_reference(clusters: Clusters) -> list[str]:
    """Say why it is not known what grouping gained; nothing where the algorithm does not group."""
    if not clusters.clustered:
        return []
    if clusters.records.summary is None:
        return ["It is not known before the run is finished."]
    return [
        "It is not known: no run of one model for all (FedAvg) on the same clients is in this run's folder or next to "
        "it. This command adds one to a simulation, where DIR is this run's folder:"
    ]


def concerns(clusters: Clusters) -> list[Concern]:
    """Return the clients to look at, those with most reasons and the worst metric first."""
    found: dict[int, list[str]] = {}
    for client, why in chain(
        _worse_than_references(clusters),
        _below_the_others(clusters),
        _silent(clusters),
        _without_company(clusters),
    ):
        found.setdefault(client, []).append(why)
    metric = clusters.metric

    def rank(client: int) -> tuple[int, float, int]:
        value = clusters.measured[client][1] if client in clusters.measured else None
        return -len(found[client]), metric.quality(value), client

    return [Concern(client, f"{'; '.join(found[client])}.") for client in sorted(found, key=rank)]


def _worse_than_references(clusters: Clusters) -> list[tuple[int, str]]:
    metric = clusters.metric
    found = []
    for name, reference in clusters.records.references.items():
        for client in gain(clusters.measured, reference.by_client, metric, clusters.pairs[name]).worse:
            own, other = metric.text(clusters.measured[client][1]), metric.text(reference.by_client[client])
            found.append((client, f"{metric.name} {own}, and {other} with {clusters.reference_text(name)}"))
    return found


def _below_the_others(clusters: Clusters) -> list[tuple[int, str]]:
    """Return the clients whose metric is clearly worse than the mean; none where nobody knows what is chance."""
    metric = clusters.metric
    mean = clusters.records.final("acc_client")
    if mean is None or not metric.share_of_samples:
        return []
    return [
        (client, f"{metric.name} {metric.text(value)}, clearly {metric.worse} than the mean, {metric.text(mean)}")
        for client, (samples, value) in clusters.measured.items()
        if stands_out(samples, value, mean, len(clusters.measured), metric)
    ]


def _silent(clusters: Clusters) -> list[tuple[int, str]]:
    """Return the clients that seldom answered, whose answers were rejected, or that wait for a cluster."""
    rounds = clusters.records.rounds
    names = ("cohort", "absent", "rejected")
    asked, absent, rejected = (Counter(chain.from_iterable(getattr(each, name) for each in rounds)) for name in names)
    found = []
    for client, count in asked.items():
        answered = count - absent[client]
        if answered < RARE_ANSWERS * count:
            found.append((client, f"it answered in {answered} of the {count} rounds in which it was asked"))
    found += [
        (client, f"{plural(count, 'answer')} of it {'was' if count == 1 else 'were'} rejected (see the events)")
        for client, count in rejected.items()
    ]
    last = clusters.records.last
    found += [(client, "it waits for a cluster") for client in (last.pending if last else ())]
    return found


def _without_company(clusters: Clusters) -> list[tuple[int, str]]:
    """Return the clients that are alone in their group."""
    if not clusters.clustered or len(clusters.finals) < 2:
        return []
    sizes = Counter(clusters.node_of.values())
    # All layers but the last are those of everybody.
    shares_body = clusters.records.setting("algorithm", "share_body")
    rest = "" if shares_body else ", so that nobody trains with it"
    return [
        (client, f"it is alone in node {node}{rest}")
        for client, node in clusters.node_of.items()
        if node in clusters.finals and sizes[node] == 1
    ]


def _worst(clusters: Clusters) -> Concern | None:
    """Return the worst client where none stands out."""
    metric = clusters.metric
    known = clusters.measured
    mean = clusters.records.final("acc_client")
    if not known or mean is None:
        return None
    client = min(known, key=lambda client: (metric.quality(known[client][1]), client))
    samples, value = known[client]
    text = f"has the {metric.worst} {metric.name}, {metric.text(value)}; the mean is {metric.text(mean)}"
    if metric.share_of_samples:
        text += (
            f". By chance alone, the worst of {len(known)} clients with {plural(samples, 'test sample')} may be as bad"
        )
    return Concern(client, f"{text}.")
