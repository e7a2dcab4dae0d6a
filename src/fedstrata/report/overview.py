"""What the page says first, to a reader who knows no statistics: the groups, why, what they gained, whom to look at."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import chain
from typing import Any, NamedTuple

from fedstrata.report.catalogue import plain_sentence, say, sentence
from fedstrata.report.charts.groups import clients_of, describe_clusters
from fedstrata.report.clusters import Clusters
from fedstrata.report.references import has_personal_models, reference_text, stands_out
from fedstrata.report.words import IN_MEMORY, OUTSIDE, capital

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


class Concern(NamedTuple):
    """A client to look at, and why."""

    client: int
    why: str


def overview(clusters: Clusters) -> dict[str, Any] | None:
    """Return the four answers, for ``overview.html``; None before the first round.

    ``groups`` is a sentence, empty where the algorithm makes none, and ``listed`` the groups: none where there is one.
    ``why`` and ``gained`` are sentences, and ``command`` tells how to know what was gained where that is not known.
    ``concerns`` are the clients to look at, those with most reasons first, and ``rest`` the number of further ones;
    ``worst`` is the worst client where none stands out.

    Args:
        clusters: The clusters of the run.
    """
    records = clusters.records
    if records.last is None:
        return None
    found = concerns(clusters)
    gained = gains(clusters)
    unknown = clusters.clustered and not gained
    name = str(records.setting("data", "name"))
    command = BASELINE_CALL if name.startswith(IN_MEMORY) else BASELINE_COMMAND
    if unknown:
        found_out = "gain_outside" if name == OUTSIDE else "gain_unknown"
        gained = [say("page", "gain_unfinished" if records.summary is None else found_out)]
    return {
        "groups": _groups(clusters),
        "listed": _listed(clusters),
        "why": reasons(clusters),
        "gained": gained,
        "command": command if unknown and records.summary and name != OUTSIDE else "",
        "concerns": found[:MOST_CONCERNS],
        "rest": max(len(found) - MOST_CONCERNS, 0),
        "worst": None if found else _worst(clusters),
    }


def _groups(clusters: Clusters) -> str:
    """Say how many groups there are."""
    if not clusters.clustered:
        return ""
    members = (client for client, node in clusters.node_of.items() if node in clusters.finals)
    placed = sum(client not in clusters.pending for client in members)
    if len(clusters.finals) == 1:
        return say("page", "one_group", clients=placed, personal=has_personal_models(clusters.records.settings))
    return say("page", "groups", clients=placed, groups=len(clusters.finals))


def _listed(clusters: Clusters) -> list[dict[str, Any]]:
    """Return each group: its node, its clients, their mean metric, and what distinguishes their data."""
    if not clusters.clustered or len(clusters.finals) < 2:
        return []
    texts = describe_clusters(clusters)
    shown = {node: clusters.metric.text(mean) for node, mean in clusters.means.items()}
    return [
        {"node": node, "clients": clients_of(clusters, node), "mean": shown.get(node, ""), "text": texts.get(node, "")}
        for node in clusters.finals
    ]


def reasons(clusters: Clusters) -> list[str]:
    """Say why the clients are in these groups, or in one: what decided about the nodes, each sentence once."""
    if not clusters.clustered:
        return []
    tree = clusters.records.tree
    summary = clusters.records.summary
    if len(tree) == 1 and summary is not None and summary.diverged and summary.rounds in summary.diverged.rounds:
        return [say("page", "diverged")]
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
        told.append(f"{text} {say('page', 'further_splits', splits=rest)}" if rest and split else text)
    return [*told, say("page", "tree_has_numbers")] if split else told


def gains(clusters: Clusters) -> list[str]:
    """Return what this run reached against each reference, and whom it serves better or worse."""
    metric = clusters.metric
    mean = clusters.records.final("acc_client")
    found = []
    for name, reference in clusters.records.references.items():
        told = []
        text = reference_text(name, clusters.records.settings)
        if mean is not None:
            words = {"metric": metric, "value": mean, "other": reference.mean, "reference": text}
            told.append(say("page", "gained", effect=clusters.mean_effects[name], **words))
        found_for = clusters.gains[name]
        if any(found_for):
            words = {"reference": text, "names": clusters.names, "most": MOST_CONCERNS, **found_for._asdict()}
            tested = any(effect is not None for effect in clusters.effects[name].values())
            told.append(say("page", "better_and_worse", tested=tested, **words))
        found += [" ".join(told)] if told else []
    return found


def concerns(clusters: Clusters) -> list[Concern]:
    """Return the clients to look at, those with most reasons and the worst metric first."""
    found: dict[int, list[str]] = {}
    for client, why in chain(_badly_served(clusters), _silent(clusters), _without_company(clusters)):
        found.setdefault(client, []).append(why)

    def rank(client: int) -> tuple[int, float, int]:
        value = clusters.measured[client][1] if client in clusters.measured else None
        return -len(found[client]), clusters.metric.quality(value), client

    return [Concern(client, f"{'; '.join(found[client])}.") for client in sorted(found, key=rank)]


def _badly_served(clusters: Clusters) -> Iterator[tuple[int, str]]:
    """Find the clients that are worse than with a reference, or clearly worse than the mean of all."""
    metric = clusters.metric
    for name, reference in clusters.records.references.items():
        for client in clusters.gains[name].worse:
            values = {"value": clusters.measured[client][1], "other": reference.by_client[client]}
            text = reference_text(name, clusters.records.settings)
            yield client, say("page", "worse_than_reference", metric=metric, reference=text, **values)
    mean = clusters.records.final("acc_client")
    for client, (samples, value) in clusters.measured.items():
        if mean is not None and stands_out(samples, value, mean, len(clusters.measured), metric):
            yield client, say("page", "below_the_mean", metric=metric, value=value, mean=mean)


def _silent(clusters: Clusters) -> Iterator[tuple[int, str]]:
    """Find the clients that seldom answered, whose answers were rejected, or that wait for a cluster."""
    for client, count in clusters.counts["cohort"].items():
        answered = count - clusters.counts["absent"][client]
        if answered < RARE_ANSWERS * count:
            yield client, say("page", "seldom_answered", answered=answered, asked=count)
    for client, count in clusters.counts["rejected"].items():
        yield client, say("page", "rejected", answers=count)
    for client in clusters.records.last.pending if clusters.records.last else ():
        yield client, say("page", "pending")


def _without_company(clusters: Clusters) -> Iterator[tuple[int, str]]:
    """Find the clients that are alone in their group."""
    if not clusters.clustered or len(clusters.finals) < 2:
        return
    sizes = Counter(clusters.node_of.values())
    # All layers but the last are those of everybody.
    shares_body = clusters.records.setting("algorithm", "share_body")
    for client, node in clusters.node_of.items():
        if node in clusters.finals and sizes[node] == 1:
            yield client, say("page", "alone", node=node, shares_body=bool(shares_body))


def _worst(clusters: Clusters) -> Concern | None:
    """Return the worst client where none stands out."""
    metric = clusters.metric
    known = clusters.measured
    mean = clusters.records.final("acc_client")
    if not known or mean is None:
        return None
    client = min(known, key=lambda client: (metric.quality(known[client][1]), client))
    samples, value = known[client]
    words = {"metric": metric, "clients": len(known), "samples": samples, "value": value, "mean": mean}
    return Concern(client, say("page", "worst", **words))
