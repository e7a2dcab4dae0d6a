"""Which pictures a run has, by the part of the page that they belong to."""

from collections import Counter
from dataclasses import replace

from fedstrata.report.groups import Groups
from fedstrata.report.pictures import curves, whereabouts
from fedstrata.report.pictures.dendrogram import dendrograms
from fedstrata.report.pictures.drawing import Plot
from fedstrata.report.pictures.heatmaps import decisions
from fedstrata.report.pictures.layers import layers
from fedstrata.report.pictures.trials import proofs
from fedstrata.report.pictures.watched import watched


def pictures(groups: Groups) -> dict[str, list[Plot]]:
    """All pictures of a run with a round at least, by section; those of clusters only where clusters are sought.

    The matrices of ``kept``, of nodes that were not split, are on the page among those of the slider.
    """
    records = groups.records
    band = "The band holds the middle 80 % of the clients" + ("; dashed rules mark splits." if groups.sought else ".")
    tensors = "Tensors only; absent clients are charged the way down."
    every = {
        "accuracy": [Plot("accuracy", "All clients", band, curves.accuracy(records))],
        **_of_groups(groups),
        "watched": watched(groups),
        "layers": layers(records),
        "cost": [
            Plot("bytes", "Bytes", tensors, curves.traffic(records)),
            Plot("seconds", "Seconds", "Wall-clock time of each round.", curves.seconds(records)),
        ],
    }
    if apart := curves.by_cluster(groups):
        final = "Mean accuracy of those who are in each cluster now."
        every["accuracy"].append(Plot("accuracy-by-cluster", "Final clusters", final, apart))
    return _distinct(every)


def _of_groups(groups: Groups) -> dict[str, list[Plot]]:
    if not groups.sought:
        return {"groups": [], "splits": [], "kept": [], "merges": [], "tests": []}
    moved = "The thicker, the more clients; paler where they changed. The dots say who."
    everyone = "One row per client, in final cluster order. A split node has the mixture of its clusters' colours."
    return {
        "groups": [
            Plot("flow", "Who went where", moved, whereabouts.flow(groups)),
            Plot("clusters", "How many clusters", "", curves.clusters(groups.records)),
            Plot("membership", "Where each client was", everyone, whereabouts.membership(groups)),
        ],
        "splits": decisions(groups, split=True),
        "kept": decisions(groups, split=False),
        "merges": dendrograms(groups),
        "tests": proofs(groups),
    }


def _distinct(plots: dict[str, list[Plot]]) -> dict[str, list[Plot]]:
    """The pictures with a number behind every name that another one had before."""
    taken: Counter[str] = Counter()
    named: dict[str, list[Plot]] = {}
    for section, some in plots.items():
        named[section] = []
        for plot in some:
            taken[plot.name] += 1
            name = plot.name if taken[plot.name] == 1 else f"{plot.name}-no-{taken[plot.name]}"
            named[section].append(replace(plot, name=name))
    return named
