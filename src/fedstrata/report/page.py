"""The page: records in, one HTML file out that needs nothing else."""

import json
import os
from base64 import b64encode
from hashlib import sha256
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from fedstrata.report import figures, heatmaps
from fedstrata.report.groups import Groups
from fedstrata.report.heatmaps import MEASURES, Plot
from fedstrata.report.read import read
from fedstrata.report.records import Records
from fedstrata.report.table import clients, means
from fedstrata.report.words import assumption, brief, duration, number, plural, ranges, sentence, size


def build(folder: Path) -> Path:
    """Write ``report.html`` into a run folder, from the records there alone.

    The same records give the same bytes. The page is replaced in one step, so a reader never sees half of one.

    Returns:
        The path of the page.

    Raises:
        RecordError: when the folder is not that of a run, or its rounds are damaged before the last line.
    """
    page = folder / "report.html"
    partial = folder / "report.html.partial"
    partial.write_text(render(read(folder)), encoding="utf-8", newline="\n")
    os.replace(partial, page)
    return page


def render(records: Records) -> str:
    """The page as text."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"number": number, "brief": brief, "size": size, "duration": duration, "ranges": ranges}
    environment.globals |= {"plural": plural, "told": figures.told}
    groups = Groups(records)
    plots = _plots(groups) if records.rounds else {}
    drawn = {f"{name}-{place}": plot.figure for name, some in plots.items() for place, plot in enumerate(some, start=1)}
    # `</script` cannot occur in the bundle's own text as plotly ships it; the names of a run never get in here.
    plotly = get_plotlyjs()
    script = environment.get_template("script.html").render()
    return environment.get_template("page.html").render(
        records=records,
        groups=groups,
        last=records.last,
        title=_title(records),
        sentence=sentence(records),
        assumption=assumption(records),
        described=_described(records),
        tiles=_tiles(records),
        plots=plots,
        drawn=Markup(json.dumps(drawn, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")),
        means=means(groups),
        clients=clients(groups),
        plotly=Markup(plotly),
        script=Markup(script),
        # Only these two texts may run, whatever a name contains, and nothing may be fetched.
        hashes=" ".join(f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'" for text in (plotly, script)),
    )


def _title(records: Records) -> str:
    names = (_name(records, "algorithm", "name"), _name(records, "dataset", "name"))
    return " on ".join(filter(None, names)) or "run"


def _name(records: Records, name: str, key: str) -> str:
    """A name of the summary, else of the experiment, where the data set's table is called data."""
    found = (records.summary or {}).get(name)
    return str(found or records.setting("data" if name == "dataset" else name, key))


def _described(records: Records) -> list[tuple[str, str]]:
    shown = [("partition", _name(records, "partition", "scheme")), ("model", _name(records, "model", "name"))]
    seed = records.settings.get("seed")
    planned = records.settings.get("rounds")
    done = f"{len(records.rounds)} of {planned}" if planned else f"{len(records.rounds)}"
    shown += [("seed", "" if seed is None else str(seed)), ("rounds", done)]
    return [(name, value) for name, value in shown if value]


def _tiles(records: Records) -> list[tuple[str, str, str]]:
    """What is shown large: name, figure, and what it means."""
    summary = records.summary or {}
    down = summary.get("bytes_down", sum(each.bytes_down for each in records.rounds))
    up = summary.get("bytes_up", sum(each.bytes_up for each in records.rounds))
    spent = sum(each.seconds or 0.0 for each in records.rounds)
    tiles = [
        ("Mean accuracy", number(records.final("acc_client")), "over clients, each on its own test data"),
        ("By samples", number(records.final("acc_weighted")), "weighted by test samples"),
        ("By cluster", number(records.final("acc_cluster")), "mean of the clusters"),
        ("Worst client", number(records.final("acc_worst")), "the least accuracy"),
        ("ARI", number(records.final("ari")), "agreement with the hidden truth; 1 is the same partition"),
        ("Purity", number(summary.get("purity")), "share of clients in their cluster's majority"),
        ("Traffic", size(down + up), f"{size(down)} down, {size(up)} up; tensors only"),
        ("Time", duration(summary.get("seconds", spent)), _time(summary)),
    ]
    return [tile for tile in tiles if tile[1] != number(None)]


def _time(summary: Any) -> str:
    parts = [(summary.get("seconds_training"), "training"), (summary.get("seconds_server"), "on the server")]
    return ", ".join(f"{duration(value)} {what}" for value, what in parts if value is not None)


def _plots(groups: Groups) -> dict[str, list[Plot]]:
    """All figures by section; the order fixes their ids."""
    records = groups.records
    apart = figures.by_cluster(groups)
    mean = "The band holds the middle 80 % of the clients; dashed rules mark splits."
    everyone = "One row per client, in final cluster order. A split node has the mixture of its clusters' colours"
    decisions = heatmaps.decisions(groups)
    return {
        "accuracy": [
            Plot("All clients", mean, figures.accuracy(records)),
            *([Plot("Final clusters", "Mean accuracy of those who are in each cluster now.", apart)] if apart else []),
        ],
        "groups": [Plot("Clusters", "", figures.clusters(records))],
        "membership": [
            Plot("Where each client was", f"{everyone}; a cross is a pending client.", heatmaps.membership(groups))
        ],
        "splits": [plot for plot in decisions if plot.split],
        "kept": [plot for plot in decisions if not plot.split],
        "gaps": [Plot(measure, MEASURES.get(measure, ""), drawn) for measure, drawn in figures.gaps(records)],
        "cost": [
            Plot("Bytes", "Tensors only; absent clients are charged the way down.", figures.traffic(records)),
            Plot("Seconds", "Wall-clock time of each round.", figures.seconds(records)),
        ],
        "own": [Plot(name, "", drawn) for name, drawn in figures.own(records)],
    }
