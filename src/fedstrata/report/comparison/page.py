"""The page of a comparison: the records of several runs in, one HTML file out that needs nothing else."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import tomli_w

from fedstrata.base.files import folder_lock, replace_file
from fedstrata.report.catalogue import say
from fedstrata.report.comparison.charts import comparison_charts, styles_of
from fedstrata.report.comparison.folder import ComparisonFolder, Document, Outcome, read_comparison
from fedstrata.report.comparison.words import (
    choice_text,
    gains,
    pair_table,
    result_text,
    row_kind,
    scope_text,
    site_answers,
    site_tables,
    table_of,
)
from fedstrata.report.differences import FEW
from fedstrata.report.template import render_page
from fedstrata.report.words import IN_MEMORY, ClientNames, capital, data_name, plural

_MOST_NOTES = 12
"""The warnings of runs that the page repeats."""


def build_comparison(folder: Path) -> Path:
    """Write ``comparison.html`` into the folder of a comparison, from the records there and in its run folders alone.

    The same records give the same bytes.

    Returns:
        The path of the page.

    Raises:
        RecordError: When the folder is not that of a comparison, or another process works in it.
    """
    read_comparison(folder)  # so that no lock is made in a folder of something else
    with folder_lock(folder):
        return write_comparison_page(folder)


def write_comparison_page(folder: Path) -> Path:
    """Write the page as `build_comparison`, for a caller that has the lock of the folder."""
    page = folder / "comparison.html"
    replace_file(page, _render(read_comparison(folder)).encode())
    return page


def _render(folder: ComparisonFolder) -> str:
    """Return the page as text."""
    document = folder.document
    rows = document.table
    sweep = document.sweep
    kind = row_kind(sweep)
    metric = document.metric
    charts = comparison_charts(folder)
    return render_page(
        "comparison.html",
        charts,
        document=document,
        title=f"{plural(len(rows), kind)} on {data_name(document.setting('data', 'name'))}",
        kind=kind,
        page_kind="sweep" if sweep else "comparison",
        # By test data, which the table has, nothing may be chosen in a sweep.
        sentence=choice_text(sweep, metric) if sweep else result_text(document),
        answers=site_answers(document),
        sites=site_tables(document),
        gains=gains(document, folder.algorithms),
        scope=scope_text(document),
        facts=_facts(document),
        notes=[*map(capital, document.warnings), *folder.notes, *_notes_of_runs(document.runs)],
        charts=charts,
        styles=styles_of(document),
        table=table_of(rows, metric, kind),
        names=[row.algorithm for row in rows],
        pairs=pair_table(document),
        few=FEW,
        metric=metric,
        page_of=lambda run: quote(f"{run.folder.as_posix()}/report.html"),
        command=_command(document),
        in_memory=document.setting("data", "name").startswith(IN_MEMORY),
        experiment=tomli_w.dumps({**document.experiment, **_tables_of_algorithms(folder)}),
    )


def _tables_of_algorithms(folder: ComparisonFolder) -> dict[str, Any]:
    """Return the tables of the algorithms; of a sweep one table, with what all settings have in common."""
    algorithms = {name: dict(keys) for name, keys in folder.algorithms.items() if keys}
    sweep = folder.document.sweep
    if sweep is None or not sweep.grid or not algorithms:
        return {"algorithms": algorithms}
    personal = _common_keys([keys.pop("personal", {}) for keys in algorithms.values()])
    common = _common_keys(list(algorithms.values()))
    # Keys of an algorithm that the grid names are no keys of the default one.
    tables = {"algorithm": common if "name" in common else {}, "personal": personal}
    return {name: keys for name, keys in tables.items() if keys}


def _common_keys(tables: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the keys that have the same value in all tables."""
    return {key: value for key, value in tables[0].items() if all(other.get(key) == value for other in tables)}


def _notes_of_runs(runs: Sequence[Outcome]) -> list[str]:
    """Return the warnings of the runs, and how many more there are where they are many."""
    found = [line for run in runs for line in run.warnings]
    more = len(found) - _MOST_NOTES
    return found if more <= 1 else [*found[:_MOST_NOTES], f"There are {more:,} more such warnings on pages of runs."]


def _facts(document: Document) -> list[tuple[str, str]]:
    """Return the experiment in a few names, and what its figures would be misread without."""
    kinds = {table: document.setting(table, "kind") for table in ("attack", "privacy")}
    used = {table: "" if kind == "none" else kind for table, kind in kinds.items()}
    by_seed = {seed: ClientNames(document.clients).listed(clients) for seed, clients in document.attackers.items()}
    attack = {"kind": used["attack"], "by_seed": by_seed, "listed": list(dict.fromkeys(by_seed.values()))}
    found = [
        ("clients", document.setting("data", "clients")),
        ("partition", document.setting("partition", "scheme")),
        ("model", document.setting("model", "name")),
        ("rounds", str(document.experiment.get("rounds", ""))),
        ("seeds", ", ".join(map(str, document.seeds))),
        ("grid", "" if document.sweep is None else document.sweep.grid_text),
        ("attack", say("comparison", "attack", **attack) if used["attack"] else ""),
        ("privacy", used["privacy"]),
    ]
    return [(name, value) for name, value in found if value]


def _command(document: Document) -> str:
    """Return the command that makes the comparison again."""
    seeds = ",".join(map(str, document.seeds))
    if document.sweep is not None:
        grid = document.sweep.grid or {"KEY": ("VALUE", "VALUE")}
        swept = [word for key, values in grid.items() for word in ("--grid", f"{key}={','.join(values)}")]
        return shlex.join(["fedstrata", "sweep", "experiment.toml", *swept, "--seeds", seeds, "--out", "again"])
    names = ",".join(row.algorithm for row in document.table)
    given = ["experiment.toml", "--algorithms", names, "--seeds", seeds]
    return shlex.join(["fedstrata", "compare", *given, "--out", "again"])
