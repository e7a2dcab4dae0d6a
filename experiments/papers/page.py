"""Write ``docs/evidence/exhibits.md``: a section for every exhibit, with the paper's figures beside ours."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.tools.outcomes import table

from .catalogue import EXHIBITS, PAPERS
from .exhibit import DOES_NOT_HOLD, HERE, HOLDS, IN_PART, NOT_COMPARABLE, Exhibit, Measured, Verdict
from .pictures import FOLDER as PICTURES
from .pictures import embedded
from .running import command, measured

PAGE = HERE.parents[1] / "docs" / "evidence" / "exhibits.md"

SHOWN = 18
"""A section names at most so many quantities; the rest is in the file of the result."""

KINDS = {"F": "Figure", "T": "Table", "H": "Headline number"}
"""What the letter of an exhibit's id stands for."""

HEAD = """<!-- made by python -m experiments.papers.reproduce --page; to change it, change experiments/papers -->
# The papers' exhibits

This page holds the library against the four papers that it implements. For every table, figure and headline number it
answers: what does the paper claim, and what comes out here? An exhibit is named after its paper and its place there:
L-F4 is Figure 4 of the LayerCFL paper, T stands for a table, and L-H for its headline number.

{counts}

## How to read an exhibit

- **The verdict** follows from the measured quantities alone. A claim is written as conditions. A condition holds when
  it does in the mean and for two thirds of the seeds at least. The verdict is "{not_comparable}" where what the claim
  is about never happened. A claim whose settings were fitted by looking at outcomes holds in part at best. The tables
  say which condition failed, and on how many seeds a verdict rests; with fewer than three, what the missing ones take.
- **The figures here** are means over seeds, with their standard deviation behind ±. "-" stands for no number, such as
  the round of a split that never came. Pictures are of seed 0; a click shows one in full size.
- **The reduction** says how the conditions differ from the paper's. [Semantics](../methods/semantics.md) says how the
  library reads what the papers leave open.
- **To make it again**, run its command in the root of a clone, with `FEDSTRATA_DATA` naming the folder of the data.
  Finished runs are kept in `runs/exhibits`, so a command that was stopped goes on. A GPU is used where there is one.
- **The revision** of the library that made it repeats it. A later one repeats its digits unless the changelog says what
  changed, on the same machine: another one rounds otherwise, and later rounds may then differ by more. To be sure, put
  the `src` of that revision first on `PYTHONPATH`.

Each result is a file in [`experiments/results/exhibits`](../../experiments/results/exhibits), and each setting an
experiment file in [`experiments/papers`](../../experiments/papers).
"""


def write_page(results: Path, page: Path = PAGE) -> None:
    """Write the page from the results and pictures that there are."""
    page.write_text(page_text(results))


def page_text(results: Path, pictures: Path = PICTURES) -> str:
    """The page, from the results and pictures that there are."""
    found = {path.stem: json.loads(path.read_text()) for path in sorted(results.glob("*.json"))}
    verdicts = {name: verdict_of(exhibit, found.get(name)) for name, exhibit in EXHIBITS.items()}
    counts = Counter(verdict.kind for verdict in verdicts.values())
    told = ", ".join(f'{count} "{kind}"' for kind, count in counts.most_common())
    parts = [HEAD.format(counts=f"The verdicts on {len(EXHIBITS)} exhibits: {told}.", not_comparable=NOT_COMPARABLE)]
    for paper, title in PAPERS.items():
        shown = [each for each in EXHIBITS.values() if each.paper == paper]
        rows = [
            (f"[{each.id}](#{anchor(each)})", each.claim, *told_of(verdicts[each.id], found.get(each.id)))
            for each in shown
        ]
        parts.append(f"## {title}\n\n{table('exhibit | the paper claims | verdict | not so here | seeds', rows)}")
        parts += [section(each, found.get(each.id), verdicts[each.id], pictures) for each in shown]
    return "\n".join(parts)


def verdict_of(exhibit: Exhibit, result: Mapping[str, Any] | None) -> Verdict:
    """The verdict on an exhibit, from its result if there is one."""
    if exhibit.measure is None or result is None:
        return exhibit.verdict(Measured((), {})) if exhibit.measure is None else Verdict("not run yet", "")
    return exhibit.verdict(measured(result["seeds"]))


def told_of(verdict: Verdict, result: Mapping[str, Any] | None) -> tuple[str, str, str]:
    """A verdict in a row of the table: its kind, the first condition that failed, and the seeds that it rests on."""
    failed = [condition for condition, holds in verdict.conditions.items() if not holds]
    if verdict.kind not in (IN_PART, DOES_NOT_HOLD):
        failed = []
    why = failed[0] if failed else ""
    if len(failed) > 1:
        why += f", and {len(failed) - 1} more"
    return verdict.kind, why, seeds_of(result)


def seeds_of(result: Mapping[str, Any] | None) -> str:
    """The number of seeds of a result; where there are fewer than three, what each missing one takes."""
    if result is None:
        return "-"
    seeds = result["seeds"]
    if len(seeds) >= 3:
        return str(len(seeds))
    each = sum(seed["hours"] for seed in seeds.values()) / len(seeds)
    return f"{len(seeds)}; each further one takes {hours(each)}"


def heading(exhibit: Exhibit) -> str:
    """The heading of an exhibit: its id, and where it is in its paper."""
    place = exhibit.id.partition("-")[2]
    return f"{exhibit.id}: {KINDS[place[0]]} {place[1:]}".rstrip()


def anchor(exhibit: Exhibit) -> str:
    """The anchor of that heading."""
    return heading(exhibit).lower().replace(":", "").replace(" ", "-")


def section(exhibit: Exhibit, result: Mapping[str, Any] | None, verdict: Verdict, pictures: Path = PICTURES) -> str:
    """All about an exhibit: the claim, the verdict, the figures of the paper beside ours, and how they were made."""
    seeds = result["seeds"] if result else {}
    parts = [f"### {heading(exhibit)}", f"**Claim.** {exhibit.claim}"]
    parts += judgement(verdict, ", one seed" if len(seeds) == 1 else "", exhibit.remark if result else "")
    if result is not None:
        parts += [embedded(exhibit.id, pictures), quantities(exhibit, measured(seeds))]
    if exhibit.measure is not None:
        parts += [f"**Reduction.** {exhibit.reduction or 'None'}.".replace("..", "."), how_made(exhibit, result)]
    return "\n\n".join(filter(None, parts)) + "\n"


def judgement(verdict: Verdict, seeds: str, remark: str) -> list[str]:
    """A verdict with what it rests on: its conditions, or why there is none, and what explains the outcome."""
    if verdict.kind in (HOLDS, IN_PART, DOES_NOT_HOLD):
        rows = [(condition, "yes" if holds else "no") for condition, holds in verdict.conditions.items()]
        told = table("condition of the claim | holds here", rows).strip()
        return [f"**Verdict: {verdict.kind}{seeds}.** {remark}".strip(), told]
    return [f"**Verdict: {verdict.kind}{seeds}.** {verdict.why} {remark}".strip()]


def how_made(exhibit: Exhibit, result: Mapping[str, Any] | None) -> str:
    """The command that makes an exhibit, and what it took."""
    if result is None:
        return f"To make it: `{command(exhibit, ['0', '1', '2'])}`, {hours(exhibit.hours)} on two cores."
    seeds = result["seeds"].values()
    machines = ", ".join(dict.fromkeys(made_on(each) for each in seeds))
    sources = ", ".join(dict.fromkeys(each["source"] for each in seeds if each["source"]))
    spent = hours(sum(each["hours"] for each in seeds))
    return f"Made by `{result['command']}` in {spent} ({machines}), revision {sources}."


def made_on(result: Mapping[str, Any]) -> str:
    """The machine of a result in a few words. Older results have nothing but these words."""
    machine = result["machine"]
    if isinstance(machine, str):
        return machine
    if "accelerator" in machine:
        return f"one {machine['accelerator']}"
    return f"{result['cores']} cores"


def quantities(exhibit: Exhibit, found: Measured) -> str:
    """The figures of the paper and ours, a row for each quantity; without a column that would be empty."""
    names = list(exhibit.shown or found.values)
    seeds = f"{len(found.seeds)} seeds" if len(found.seeds) > 1 else f"seed {found.seeds[0]}"
    published = [name for name in names[:SHOWN] if name in exhibit.published]
    rows = []
    for name in names[:SHOWN]:
        theirs = (figure(exhibit.published[name], None) if name in published else "",) if published else ()
        rows.append((name, *theirs, figure(found.mean(name), found.spread(name))))
    more = f"\nThe file of the result has {len(names) - SHOWN} more.\n" if len(names) > SHOWN else ""
    return table(f"quantity |{' paper |' if published else ''} here ({seeds})", rows).strip() + more.rstrip()


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
