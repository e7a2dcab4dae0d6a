"""The page of a run: records in, one HTML file out that needs nothing else."""

from collections.abc import Callable, Mapping
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

from fedstrata.base.files import folder_lock, replace_file
from fedstrata.objective.metric_info import MetricInfo
from fedstrata.report.catalogue import WORDS, event_line, fill, say
from fedstrata.report.charts import all_charts, matrix_slider
from fedstrata.report.client_details import client_details
from fedstrata.report.clusters import Clusters
from fedstrata.report.overview import MOST_GROUPS, overview
from fedstrata.report.reader import RunRecords, read, read_experiment
from fedstrata.report.summary import stage_cost, warnings
from fedstrata.report.template import render_page
from fedstrata.report.words import (
    DASH,
    IN_MEMORY,
    OUTSIDE,
    capital,
    data_name,
    duration,
    format_number,
    plural,
    size,
)

MOST_ROWS = 1_000
"""The number of clients in the table. Of more, it has those with the worst metric."""


def build(folder: Path) -> Path:
    """Write ``report.html`` into a run folder, from the records there alone.

    The same records give the same bytes. The page is replaced in one step, so a reader never sees half of one.

    Returns:
        The path of the page.

    Raises:
        RecordError: When the folder is not that of a run, its rounds are damaged before the last line, or another
            process works in it. `follow` shows a run that is in progress.
    """
    read_experiment(folder)  # so that no lock is made in a folder of something else
    with folder_lock(folder):
        return _write(folder, read(folder))


def follow(folder: Path, wait: Callable[[], object], say: Callable[[str], object]) -> Path:
    """Write ``report.html`` again after every round of a run that is in progress, until the run is finished.

    Args:
        folder: The folder of the run. It may have no round yet.
        wait: Is called between two looks at the records.
        say: Is given a line whenever the page was written.

    Returns:
        The path of the page.

    Raises:
        RecordError: As in `build`, but another process may work in the folder.
    """
    read_experiment(folder)
    shown = 0
    while not (folder / "summary.json").is_file():
        size = (folder / "rounds.jsonl").stat().st_size if (folder / "rounds.jsonl").is_file() else 0
        if size != shown:
            records = read(folder)
            say(f"{_write(folder, records)}: {plural(len(records.rounds), 'round')}")
            shown = size
        wait()
    with folder_lock(folder, wait=lambda: None):  # until the run has written the last of its records
        say(f"{_write(folder, read(folder))}: the run is finished")
    return folder / "report.html"


def _write(folder: Path, records: RunRecords) -> Path:
    page = folder / "report.html"
    replace_file(page, render(records).encode())
    return page


def render(records: RunRecords) -> str:
    """Return the page as text."""
    clusters = Clusters(records)
    charts = all_charts(clusters)
    slider = matrix_slider(clusters) if clusters.clustered or clusters.records.setting("probe", "matrices") else None
    suspicions = records.data.warnings if records.data else []
    details = client_details(clusters)
    problems = warnings(records.summary.model_dump()) if records.summary else []
    return render_page(
        "page.html",
        [chart for found in charts.values() for chart in found],
        slider,
        details,
        records=records,
        clusters=clusters,
        title=title(records),
        sentence=result_sentence(clusters),
        assumption=independence_assumption(records),
        facts=facts(records),
        notes=[*map(capital, suspicions), *records.notes, *map(capital, problems)],
        tiles=tiles(clusters),
        charts=charts,
        slider=slider,
        metric=records.metric,
        overview=overview(clusters),
        most_groups=MOST_GROUPS,
        in_memory=_name(records, "data", "name").startswith(IN_MEMORY),
        outside=_name(records, "data", "name") == OUTSIDE,
        details=details is not None,
        clients=client_rows(clusters)[:MOST_ROWS],
        events=[
            (each.round, event.kind, event_line(dict(event), clusters.names))
            for each in records.rounds
            for event in each.events
        ],
    )


def title(records: RunRecords) -> str:
    """Return the algorithm and the data set, as far as they are known."""
    data = data_name(_name(records, "data", "name"))
    return " on ".join(filter(None, (_name(records, "algorithm", "name"), data))) or "run"


def facts(records: RunRecords) -> list[tuple[str, str]]:
    """Return the experiment in a few names."""
    planned = records.settings.get("rounds")
    found = [
        ("partition", _name(records, "partition", "scheme")),
        ("model", _name(records, "model", "name")),
        ("seed", str(records.settings.get("seed", ""))),
        ("rounds", f"{len(records.rounds)} of {planned}" if planned else f"{len(records.rounds)}"),
    ]
    return [(name, value) for name, value in found if value]


def _name(records: RunRecords, table: str, key: str) -> str:
    """Return a name in the experiment; empty where it is unknown."""
    return str(records.setting(table, key) or "")


def result_sentence(clusters: Clusters) -> str:
    """Return the result of the run in one sentence."""
    records = clusters.records
    last = records.last
    if last is None:
        return say("page", "no_round")
    name, reference = next(iter(records.references.items()), (None, None))
    return say(
        "page",
        "lead",
        finished=records.summary is not None,
        planned=records.settings.get("rounds"),
        round=last.round,
        clients=sum(label >= 0 for label in last.labels),
        clustered=clusters.clustered,
        clusters=last.clusters,
        since=records.summary.rounds_to_partition if records.summary else None,
        pending=len(last.pending),
        metric=records.metric,
        mean=records.final("acc_client"),
        worst=records.final("acc_worst"),
        column=None if name is None else WORDS["reference"][name]["column"],
        other=None if reference is None else reference.mean,
        ari=records.final("ari"),
    )


def tiles(clusters: Clusters) -> list[tuple[str, str, str]]:
    """Return the numbers at the top of the page: name, value, and what it means. Unknown ones are left out."""
    records = clusters.records
    words = WORDS["tile"]
    show = partial(_tile, records.metric)
    uses = records.last.other_uses if records.last else {}
    measures = [(tile, records.final(name)) for name, tile in words.items() if name != "other"]
    found = [
        *(show(tile, value) for tile, value in measures if not tile.get("of_clusters")),
        *(show(words["other"], value, capital(use)) for use, value in uses.items() if f"acc_{use}" not in words),
        *(show(WORDS["reference"][name], reference.mean) for name, reference in records.references.items()),
    ]
    if clusters.clustered:
        found += [show(tile, value) for tile, value in measures if tile.get("of_clusters")]
    return [tile for tile in [*found, *_conditions(clusters), *_costs(records)] if tile[1] != DASH]


def _tile(metric: MetricInfo, tile: Mapping[str, Any], value: Any, use: str = "") -> tuple[str, str, str]:
    """Return a number with its words; what is no number is unknown."""
    known = _number(value)
    text = metric.text(known) if tile.get("of_metric") else format_number(known)
    return fill(tile["title"], {"metric": metric, "use": use}), text, fill(tile["meaning"], {"metric": metric})


def _conditions(clusters: Clusters) -> list[tuple[str, str, str]]:
    """Return what else decides what the numbers mean, as tiles: clients that attack, and differential privacy."""
    records = clusters.records
    further = (records.summary.model_extra or {}) if records.summary else {}
    found = []
    attack = further.get("attack")
    if isinstance(attack, Mapping) and isinstance(attack.get("clients"), list):
        text = say("page", "honest_clients", metric=records.metric, clients=attack["clients"], names=clusters.names)
        found.append(("Honest clients", records.metric.text(_number(attack.get("acc_honest"))), text))
    privacy = further.get("privacy")
    if isinstance(privacy, Mapping):
        kept_out = privacy.get("not_covered")
        listed = kept_out if isinstance(kept_out, list) else []
        text = say("page", "epsilon", delta=_number(privacy.get("delta")), not_covered=listed)
        found.append(("Epsilon", format_number(_number(privacy.get("epsilon"))), text))
    return found


def _number(value: Any) -> float | None:
    """Return a value of a record; None for what is no number."""
    return value if isinstance(value, int | float) else None


def _costs(records: RunRecords) -> list[tuple[str, str, str]]:
    """Return the bytes and the seconds of the run with its personal stage, as tiles."""
    further = (records.summary.model_extra or {}) if records.summary else {}
    added = {name: stage_cost(further, name) for name in ("bytes_down", "bytes_up", "seconds")}
    down, up, data = (
        records.total(name) + int(added.get(name) or 0) for name in ("bytes_down", "bytes_up", "bytes_data")
    )
    text = say("page", "traffic", down=down, up=up, data=data)
    parts = []
    if records.summary is not None:
        named = ((records.summary.seconds_training, "training"), (records.summary.seconds_server, "on the server"))
        parts = [f"{duration(value)} {part}" for value, part in named if value is not None]
    if added["seconds"] is not None:
        parts.append(f"{duration(added['seconds'])} personal models")
    seconds = duration(records.total("seconds") + (added["seconds"] or 0))
    return [("Traffic", size(down + up + data), text), ("Time", seconds, ", ".join(parts))]


def independence_assumption(records: RunRecords) -> str:
    """Return what must be true of the samples where halves of them are used in tests; empty where they are not."""
    tested = records.setting("algorithm", "compares") is not None
    if not tested and records.setting("algorithm", "layers") != "auto":
        return ""
    values = {"alpha": records.setting("algorithm", "alpha"), "unit": records.setting("data", "unit")}
    return say("page", "halves", tested=tested, **values)


def client_rows(clusters: Clusters) -> list[dict[str, Any]]:
    """Return a row of the table for each client: the worst first, and those without a known metric last."""
    records = clusters.records
    scores = clusters.scores
    truth = (records.summary.truth if records.summary else None) or []
    columns = () if scores is None else (scores.client, scores.samples, scores.accuracy, scores.loss)
    measured = {client: row for client, *row in zip(*(column.tolist() for column in columns), strict=True)}
    known = records.summary.probabilities if records.summary else None
    probabilities = {each.client: each for each in known.clients} if known else {}
    rows: list[dict[str, Any]] = []
    for client, node in clusters.node_of.items():
        samples, value, loss = measured.get(client, (None, None, None))
        row = {
            "client": client,
            "node": node,
            "pending": client in clusters.pending,
            "truth": truth[client] if client < len(truth) else None,
            "samples": samples,
            "value": value,
            "loss": loss,
            "probabilities": probabilities.get(client),
            "others": {name: reference.by_client.get(client) for name, reference in records.references.items()},
        }
        rows.append(row | {name: count[client] for name, count in clusters.counts.items()})
    quality = {client: records.metric.quality(value) for client, (_, value) in clusters.measured.items()}
    return sorted(rows, key=lambda row: quality.get(row["client"], inf))
