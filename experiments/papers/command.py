"""The command ``python -m experiments.papers.reproduce``."""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from .catalogue import EXHIBITS, PAPERS, chosen
from .exhibit import Exhibit
from .page import write_page
from .pictures import FOLDER as PICTURES
from .running import FOLDER, RESULTS, draw_again, finished, judge_again, reproduce


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line asks for; 1 when an exhibit failed."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.papers.reproduce",
        description="Make exhibits of the papers again: run what they need, measure it, and judge the paper's claim.",
    )
    parser.add_argument("ids", nargs="*", metavar="ID", help="such as H-T5, or all")
    parser.add_argument("--paper", choices=PAPERS, help="the exhibits of one paper")
    parser.add_argument("--seeds", default="0,1,2", help="every exhibit is run with one seed before the next seed")
    parser.add_argument("--out", type=Path, default=FOLDER, help="the folder of the runs; finished ones are kept")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder of the results")
    parser.add_argument("--pictures", type=Path, default=PICTURES, help="the folder of the pictures")
    parser.add_argument("--draw", action="store_true", help="run nothing; draw the runs that are finished")
    parser.add_argument("--measure", action="store_true", help="run nothing; measure the runs that are finished")
    parser.add_argument("--list", action="store_true", help="name the exhibits and what they take")
    parser.add_argument(
        "--page", action="store_true", help="judge the results again, and write docs/evidence/exhibits.md"
    )
    given = parser.parse_args(arguments)
    if unknown := [each for each in given.ids if each != "all" and each not in EXHIBITS]:
        parser.error(f"there is no exhibit {unknown[0]!r}; --list names them all")
    if not (given.ids or given.paper or given.list or given.page):
        parser.error("name exhibits, or give --paper, --list or --page")
    if given.list:
        show(chosen(given.ids or ["all"], given.paper))
        return 0
    for each in given.ids:
        if each in EXHIBITS and EXHIBITS[each].waits:
            print(f"{each}: {EXHIBITS[each].waits}", file=sys.stderr)
    seeds = [int(seed) for seed in given.seeds.split(",")]
    exhibits = chosen(given.ids, given.paper)
    failed = False
    if given.draw:
        draw_all(exhibits, given.out, given.pictures)
        seeds = []
    for seed in seeds:
        for exhibit in exhibits:
            if not given.measure or finished(exhibit, seed, given.out):
                failed |= not attempt(exhibit, seed, given.out, given.results, given.pictures)
    if given.page:
        judge_again(EXHIBITS.values(), given.results)
        write_page(given.results)
    return int(failed)


def draw_all(exhibits: Sequence[Exhibit], out: Path, pictures: Path) -> None:
    """Draw exhibits from their finished runs, and name the files."""
    for exhibit in exhibits:
        if file := draw_again(exhibit, out, pictures):
            print(file)


def attempt(exhibit: Exhibit, seed: int, out: Path, results: Path, pictures: Path) -> bool:
    """Make an exhibit with one seed. An error is shown, and the next exhibit goes on."""
    try:
        verdict = reproduce(exhibit, seed, out, results, pictures)
    except Exception:
        print(f"{exhibit.id}, seed {seed}:", file=sys.stderr)
        traceback.print_exc()
        return False
    print(f"{exhibit.id}, seed {seed}: {verdict.kind}. {verdict.why}", flush=True)
    return True


def show(exhibits: Sequence[Exhibit]) -> None:
    """Name exhibits, the cheapest first, and what they take."""
    for exhibit in exhibits:
        runs = len(exhibit.settings)
        print(f"{exhibit.id:6} {exhibit.hours:5.1f} h {runs:3} runs a seed  {exhibit.claim}")
