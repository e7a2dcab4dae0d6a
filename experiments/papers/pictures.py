"""The pictures beside the rows of ``docs/evidence/exhibits.md``: what a paper's figure shows, for one seed.

A picture is drawn from the records of finished runs alone. To give an exhibit one, add it to `PICTURES`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
from scipy.cluster import hierarchy
from scipy.spatial.distance import squareform

from fedstrata.report.catalogue import SIMILARITIES

from .exhibit import HERE
from .measures import client_accuracy, mean_over_layers
from .run_folder import Curve, RunFolder
from .svg import Curves, Dendrogram, HeatMap, Panel, Points, draw

FOLDER = HERE.parents[1] / "docs" / "evidence" / "exhibits"
SEED = 0
"""The seed whose runs are drawn."""

MOST_PANELS = 6
Runs = Mapping[str, RunFolder]
Draw = Callable[[Runs], list[Panel]]


@dataclass(frozen=True)
class Picture:
    """A picture of an exhibit.

    Attributes:
        alt: What it shows, for readers who do not see it.
        draw: From the finished runs of one seed to the panels; none where the runs did not record what is drawn.
    """

    alt: str
    draw: Draw


def points(curve: Curve, scale: float = 1.0) -> list[tuple[float, float]]:
    """The points of a curve over the rounds, without those that have no value."""
    return [(float(round), scale * value) for round, value in enumerate(curve, 1) if value is not None]


# Curves over the rounds


def curves(runs: Runs, metric: str, y: str, scale: float = 1.0, title: str = "") -> list[Panel]:
    """A measure of every run by round, such as ``acc_cluster``."""
    return [Curves(title, "round", y, {name: points(run.curve(metric), scale) for name, run in runs.items()})]


def accuracies(runs: Runs, metric: str = "acc_client") -> list[Panel]:
    """The accuracy of every run by round, in percent."""
    return curves(runs, metric, "accuracy, %", 100)


def accuracies_by_start(runs: Runs, metric: str) -> list[Panel]:
    """The same with a panel for all runs whose names begin with the same word."""
    starts = dict.fromkeys(name.split()[0] for name in runs)
    panels = list[Panel]()
    for start in starts:
        some = {name.removeprefix(start).strip(): run for name, run in runs.items() if name.split()[0] == start}
        panels += curves(some, metric, "accuracy, %", 100, title=start)
    return panels


def accuracies_at_triggers(runs: Runs, metric: str = "acc_weighted") -> list[Panel]:
    """The accuracy of each run in a panel of its own; dotted lines mark rounds in which clients were clustered."""
    panels = list[Panel]()
    for name, run in runs.items():
        counts = [0.0, *(value or 0.0 for value in run.metric("triggers"))]
        marks = [float(round) for round, (before, after) in enumerate(pairwise(counts), 1) if after > before]
        panels.append(Curves(name, "round", "accuracy, %", {name: points(run.curve(metric), 100)}, marks=marks))
    return panels


def statistic(runs: Runs, name: str, y: str, level: float | None = None) -> list[Panel]:
    """A metric of the algorithm by round, and the threshold that it is compared with."""
    return [Curves(title, "round", y, {title: points(run.metric(name))}, level) for title, run in runs.items()]


def hopkins_and_layers(runs: Runs, threshold: float = 0.65) -> list[Panel]:
    """The Hopkins statistic beside the number of shared layers."""
    return [
        *statistic(runs, "hopkins", "Hopkins statistic", threshold),
        *statistic(runs, "shared_layers", "shared layers"),
    ]


def stability_and_loss(runs: Runs) -> list[Panel]:
    """Model stability in the mean of the layers, and the loss, by round."""
    stable = {name: points(mean_over_layers(run, "stability")) for name, run in runs.items()}
    return [Curves("", "round", "stability", stable), *curves(runs, "loss", "loss")]


def unstable_again(runs: Runs) -> list[Panel]:
    """The share of the unstable weights of each layer that are unstable in the next round too, as a Jaccard index."""
    panels = list[Panel]()
    for name, run in runs.items():
        lines: dict[str, Points] = {layer: points(run.metric("overlap", layer)) for layer in run.layers("overlap")}
        panels.append(Curves(name, "round", "overlap with the round before", lines))
    return panels


def accuracy_by_number(runs: Runs, x: str) -> list[Panel]:
    """The accuracy after the last round of runs whose names are numbers, such as the k of IFCA."""
    found = sorted((float(name), client_accuracy(run)) for name, run in runs.items())
    return [Curves("", x, "accuracy, %", {"accuracy": [(k, value) for k, value in found if value is not None]})]


# The Gap by round and by layer


def gap_by_round(run: RunFolder, measures: Sequence[str] = (), layers: Sequence[str] = ()) -> list[Panel]:
    """The Gap by round, a panel for each measure and a curve for each layer.

    Args:
        run: The run.
        measures: The recorded measures, such as "dcos"; all where none is named.
        layers: The layers; all where none is named.
    """
    rounds = [(record["round"], run.gaps(record["round"])) for record in run.rounds]
    known = list(dict.fromkeys(place for _, gaps in rounds for place in gaps))
    panels = list[Panel]()
    for measure in measures or dict.fromkeys(measure for _, measure in known):
        shown = [layer for layer, each in known if each == measure and layer in (layers or [layer])]
        lines: dict[str, Points] = {
            layer: [(float(round), gaps[layer, measure]) for round, gaps in rounds if (layer, measure) in gaps]
            for layer in shown
        }
        panels.append(Curves(measure, "round", "Gap", lines, level=0.0))
    return panels


def gap_by_layer(run: RunFolder, round: int, measures: Sequence[str] = ()) -> list[Panel]:
    """The Gap of every layer in one round, a panel for each measure."""
    gaps = run.gaps(round)
    panels = list[Panel]()
    for measure in measures or dict.fromkeys(measure for _, measure in gaps):
        layers = [layer for layer, each in gaps if each == measure and layer != "all"]
        line = [(float(place), gaps[layer, measure]) for place, layer in enumerate(layers)]
        panels.append(Curves(f"{measure}, round {round}", "layer", "Gap", {measure: line}, 0.0, ticks=layers))
    return panels


def gaps_by_layer(runs: Runs, measures: Sequence[str] = ()) -> list[Panel]:
    """The Gap of every layer after the last round, of every run."""
    return [panel for run in runs.values() for panel in gap_by_layer(run, len(run.rounds), measures)]


def gaps_by_round(runs: Runs, measures: Sequence[str] = (), layers: Sequence[str] = ()) -> list[Panel]:
    """The Gap by round of every run; its name is in the headings where there are several."""
    panels = list[Panel]()
    for name, run in runs.items():
        for panel in gap_by_round(run, measures, layers):
            assert isinstance(panel, Curves)
            title = f"{name}, {panel.title}" if len(runs) > 1 else panel.title
            panels.append(Curves(title, panel.x, panel.y, panel.curves, panel.level))
    return panels


def paper_measures(runs: Runs, layer: str) -> list[Panel]:
    """The Gap by round with LayerCFL's five measures, a panel for each run: of a chosen layer (P), or of all."""
    recorded = {"dcos": ("all", "dcos"), **{f"{each}P": (layer, each) for each in ("l2", "dl2", "cos", "dcos")}}
    panels = list[Panel]()
    for name, run in runs.items():
        rounds = [(float(record["round"]), run.gaps(record["round"])) for record in run.rounds]
        lines: dict[str, Points] = {
            measure: [(round, gaps[place]) for round, gaps in rounds if place in gaps]
            for measure, place in recorded.items()
        }
        panels.append(Curves(name, "round", "Gap", lines, level=0.0))
    return panels


# Client by client


def heat_maps(
    run: RunFolder, rounds: Sequence[int], measures: Sequence[str] = (), layers: Sequence[str] = ()
) -> list[Panel]:
    """The recorded matrices of some rounds, clients in the order of their true groups.

    Args:
        run: The run.
        rounds: The rounds.
        measures: The measures; all where none is named.
        layers: The layers; all where none is named.
    """
    panels = list[Panel]()
    for round in rounds:
        for (measure, layer), clients in run.matrices(round).items():
            if measure in (measures or [measure]) and layer in (layers or [layer]):
                order = sorted(range(len(clients)), key=lambda place: (run.truth[clients[place]], place))
                groups = [run.truth[clients[place]] for place in order]
                ends = [end for end, (one, two) in enumerate(pairwise(groups), 1) if one != two]
                values = run.matrix(round, measure, layer)[np.ix_(order, order)]
                title = f"{layer}, {measure}, round {round}"
                panels.append(HeatMap(title, values, ends, distances=measure not in SIMILARITIES))
    return panels


def last_heat_maps(runs: Runs) -> list[Panel]:
    """The matrices of the last round of every run that has some."""
    panels = list[Panel]()
    for run in runs.values():
        recorded = [record["round"] for record in run.rounds if run.matrices(record["round"])]
        panels += heat_maps(run, recorded[-1:])
    return panels


def dendrogram(run: RunFolder, title: str, measure: str, layer: str) -> Dendrogram:
    """The hierarchy of the clients by the distances after round 1, in average linkage, and where AdaCFL cuts it.

    The dots have the colours of the true groups.
    """
    clients = run.matrices(1)[measure, layer]
    values = run.matrix(1, measure, layer)
    distances = (values + values.T) / 2
    np.fill_diagonal(distances, 0.0)
    tree = hierarchy.linkage(squareform(distances, checks=False), "average")
    found = hierarchy.dendrogram(tree, no_plot=True)
    # SciPy puts leaf i at 10 i + 5.
    elbows = [
        [((x - 5) / 10, float(y)) for x, y in zip(across, up, strict=True)]
        for across, up in zip(found["icoord"], found["dcoord"], strict=True)
    ]
    leaves = [clients[place] for place in found["leaves"]]
    groups = [run.truth[client] for client in leaves]
    cut = run.keys["algorithm"].get("cut")
    return Dendrogram(title, elbows, [str(client) for client in leaves], groups, cut)


def hierarchies(runs: Runs, mixes: Sequence[str]) -> list[Panel]:
    """What AdaCFL cuts in each cell of its Table 3 with one of these mixes: a dendrogram by the linear layer."""
    return [dendrogram(run, name, "l2", "linear") for name, run in runs.items() if name.startswith(tuple(mixes))]


# Which exhibit has which


def similarity_of_layers(runs: Runs) -> list[Panel]:
    """HiCFL's Figures 1 and 2: heat maps after rounds 1 and 10 where they were recorded, else the Gap by round."""
    maps = list[Panel]()
    for run in runs.values():
        layers = [layer for _, layer in run.matrices(1) if layer != "all"]
        maps += heat_maps(run, (1, 10), layers=layers) if layers else []
    return maps or gaps_by_round(runs)


def maps_or_gaps(runs: Runs) -> list[Panel]:
    """The matrices of the last round that has some; without any, the Gap of every layer after the last round."""
    return last_heat_maps(runs) or gaps_by_layer(runs)


by_cluster = partial(accuracies, metric="acc_cluster")
by_samples = partial(accuracies, metric="acc_weighted")
LAYERS = "Similarity of the clients' updates in every layer, by round"

PICTURES: Mapping[str, Picture] = {
    "L-F4": Picture("Heat maps of client similarity by layer and measure", maps_or_gaps),
    "L-F5": Picture("Gap of every layer after the last round", partial(gaps_by_layer, measures=("cos", "dcos"))),
    "L-F8": Picture("Gap of every layer after the last round", partial(gaps_by_layer, measures=("cos", "dcos"))),
    "L-F9": Picture("Heat maps of client similarity by layer and measure", maps_or_gaps),
    "L-F10": Picture("Gap by round with LayerCFL's five measures", partial(paper_measures, layer="linear1")),
    "A-F1a": Picture("Accuracy of IFCA after the last round by its k", partial(accuracy_by_number, x="k")),
    "A-F1b": Picture("Accuracy of FedAvg and FMTL by round", accuracies),
    "A-F2": Picture("Gap of every layer after the last round", partial(gaps_by_layer, measures=("l2", "dl2"))),
    "A-T3": Picture(
        "Distances of clients by the linear layer, and the cut", partial(hierarchies, mixes=("0.5", "0.8"))
    ),
    "A-F5": Picture("Accuracy by round; ten clients join in round 20", accuracies),
    "H-F1": Picture(LAYERS, similarity_of_layers),
    "H-F2": Picture(LAYERS, similarity_of_layers),
    "H-F4": Picture("Model stability and loss by round", stability_and_loss),
    "H-F6": Picture("Overlap of the unstable weights of consecutive rounds by layer", unstable_again),
    "H-F7": Picture("Accuracy by round for several step sizes", partial(accuracies_by_start, metric="acc_cluster")),
    "H-F10": Picture("Accuracy by round around the most stable and around a random client", by_cluster),
    "H-F11": Picture("Accuracy by round with and without misplaced clients", by_cluster),
    "H-F12": Picture("Accuracy of HiCFL and its rivals by round", by_cluster),
    "H-F13": Picture("Accuracy of HiCFL and its rivals by round", by_cluster),
    "H-F14": Picture("Accuracy of HiCFL and its rivals by round", by_cluster),
    "T-F3": Picture("Distances of three clients by models and by predictions", last_heat_maps),
    "T-F7": Picture("Accuracy of FedTSDP and its rivals by round", by_samples),
    "T-F8": Picture("Accuracy by round; dotted lines mark rounds of clustering", accuracies_at_triggers),
    "T-F9": Picture("Accuracy of each stage and of both by round", by_samples),
    "T-F10": Picture("Hopkins statistic by round and its threshold", hopkins_and_layers),
    "T-F11": Picture("Hopkins statistic and shared layers by round", hopkins_and_layers),
}
"""The pictures of the exhibits whose paper shows one, by their ids."""


def write_picture(id: str, runs: Runs, folder: Path = FOLDER) -> Path | None:
    """Draw an exhibit from its finished runs of one seed; None where it has no picture or nothing was recorded."""
    if id not in PICTURES:
        return None
    panels = PICTURES[id].draw(runs)[:MOST_PANELS]
    if not panels:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{id}.svg"
    file.write_text(draw(panels, f"{id}: {PICTURES[id].alt}", columns=2 if len(panels) < 5 else 3))
    return file


def embedded(id: str, folder: Path = FOLDER) -> str:
    """The picture of an exhibit as Markdown that leads to it in full size; empty where there is none."""
    if id not in PICTURES or not (folder / f"{id}.svg").exists():
        return ""
    path = f"{folder.name}/{id}.svg"
    return f"[![{PICTURES[id].alt} (seed {SEED})]({path})]({path})"
