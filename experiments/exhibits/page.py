"""Write ``docs/exhibits.md``: a row for every exhibit, with the paper's figures beside ours."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .catalogue import EXHIBITS, PAPERS
from .exhibit import HERE, Exhibit, Measured, Verdict
from .pictures import FOLDER as PICTURES
from .pictures import embedded
from .running import command, measured

PAGE = HERE.parents[1] / "docs" / "exhibits.md"

SHOWN = 18
"""A row names at most so many quantities; the rest is in the file of the result."""

HEAD = """<!-- made by python -m experiments.reproduce --page; to change it, change experiments/exhibits -->
# The papers' exhibits

This page answers one question for every table, figure and headline number of the four papers that the library
implements: what does the paper claim, and what comes out here? A row has the paper's figures beside ours, which are
means over seeds with their standard deviation behind ±. Pictures are of seed 0; a click shows one in full size. "-"
stands for no number, such as the round of a split that never came.

The verdict follows from the measured quantities alone. It is "{not_comparable}" where a method that the claim is about
never acted; how the conditions differ from the paper's is in the column "reduction". A claim holds when it does in the
mean and for two thirds of the seeds at least. A verdict on one seed says so. [Semantics](semantics.md) says how the
library reads what the papers leave open.

To make an exhibit again, run its command in the root of a clone, with `FEDSTRATA_DATA` naming the folder of the data.
Finished runs are kept in `runs/exhibits`, so a command that was stopped goes on. A GPU is used where there is one.
Each result is a file in [`experiments/results/exhibits`](../experiments/results/exhibits), and each setting an
experiment file in [`experiments/exhibits`](../experiments/exhibits). A row names the revision of the library that made
it. A later one repeats its digits unless the changelog says what changed; to be sure, put the `src` of that revision
first on `PYTHONPATH`.

{counts}
"""


def write_page(results: Path, page: Path = PAGE) -> None:
    """Write the page from the results and pictures that there are."""
    page.write_text(page_text(results))


def page_text(results: Path, pictures: Path = PICTURES) -> str:
    """The page, from the results and pictures that there are."""
    found = {path.stem: json.loads(path.read_text()) for path in sorted(results.glob("*.json"))}
    verdicts = {name: verdict_of(exhibit, found.get(name)) for name, exhibit in EXHIBITS.items()}
    counts: dict[str, int] = {}
    for verdict in verdicts.values():
        counts[verdict.kind] = counts.get(verdict.kind, 0) + 1
    told = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items(), key=lambda each: -each[1]))
    parts = [HEAD.format(counts=f"Of {len(EXHIBITS)} rows: {told}.", not_comparable="not comparable yet")]
    for paper, title in PAPERS.items():
        rows = [
            row(each, found.get(each.id), verdicts[each.id], pictures)
            for each in EXHIBITS.values()
            if each.paper == paper
        ]
        head = "| exhibit | the paper's claim | verdict | paper and here | reduction | command |"
        parts.append("\n".join([f"\n## {title}\n", head, "| --- | --- | --- | --- | --- | --- |", *rows]) + "\n")
    return "".join(parts)


def verdict_of(exhibit: Exhibit, result: Mapping[str, Any] | None) -> Verdict:
    """The verdict on an exhibit, from its result if there is one."""
    if exhibit.measure is None or result is None:
        return exhibit.verdict(Measured((), {})) if exhibit.measure is None else Verdict("not run yet", "")
    return exhibit.verdict(measured(result["seeds"]))


def row(exhibit: Exhibit, result: Mapping[str, Any] | None, verdict: Verdict, pictures: Path = PICTURES) -> str:
    """The row of an exhibit."""
    figures, made, reduction = "", "", exhibit.reduction or "none"
    if exhibit.measure is None:
        reduction = ""
    elif result is None:
        made = f"`{command(exhibit, ['0', '1', '2'])}`, {hours(exhibit.hours)} on two cores"
    else:
        told = quantities(exhibit, measured(result["seeds"]))
        figures = "<br>".join(filter(None, [embedded(exhibit.id, pictures), told]))
        spent = sum(each["hours"] for each in result["seeds"].values())
        machines = ", ".join(dict.fromkeys(made_on(each) for each in result["seeds"].values()))
        sources = ", ".join(dict.fromkeys(each["source"] for each in result["seeds"].values() if each["source"]))
        made = f"`{result['command']}`, {hours(spent)} ({machines}), revision {sources}"
    alone = ", one seed" if result is not None and len(result["seeds"]) == 1 else ""
    told = f"**{verdict.kind}{alone}**" + (f". {verdict.why}" if verdict.why else "")
    told += f" {exhibit.remark}" if exhibit.remark and result is not None else ""
    cells = [exhibit.id, exhibit.claim, told, figures, reduction, made]
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def made_on(result: Mapping[str, Any]) -> str:
    """The machine of a result in a few words. Older results have nothing but these words."""
    machine = result["machine"]
    if isinstance(machine, str):
        return machine
    if "accelerator" in machine:
        return f"one {machine['accelerator']}"
    return f"{result['cores']} cores"


def quantities(exhibit: Exhibit, found: Measured) -> str:
    """The paper's figures and ours, a line for each quantity."""
    names = list(exhibit.shown or found.values)
    lines = []
    for name in names[:SHOWN]:
        published = exhibit.published.get(name)
        ours = figure(found.mean(name), found.spread(name))
        lines.append(f"{name}: {ours}" + (f" (paper {figure(published, None)})" if published is not None else ""))
    if len(names) > SHOWN:
        lines.append(f"and {len(names) - SHOWN} more in its file")
    seeds = f"{len(found.seeds)} seeds" if len(found.seeds) > 1 else f"seed {found.seeds[0]}"
    return "<br>".join([*lines, f"({seeds})"])


def figure(mean: float | None, spread: float | None) -> str:
    """A number as a reader wants it: three digits, and how far seeds differ."""
    if mean is None:
        return "-"
    told = short(mean)
    return told if spread is None else f"{told} ± {short(spread)}"


def short(value: float) -> str:
    """A number with up to two decimals, or three digits where it is small or large."""
    if value == round(value) and abs(value) < 1e7:
        return f"{value:.0f}"
    return f"{value:.2f}" if 0.1 <= abs(value) < 1000 else f"{value:.3g}"


def hours(value: float) -> str:
    """A duration in words."""
    if value >= 0.1:
        return f"{value:.1f} hours"
    minutes = round(60 * value)
    return f"{minutes} minute{'s' * (minutes > 1)}" if minutes else "under a minute"
