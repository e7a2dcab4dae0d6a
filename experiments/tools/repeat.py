"""Run the cheapest committed results again, and say whether they repeat.

    python -m experiments.tools.repeat [--count 3]

Where the machine and the versions of the libraries are those of the result, every number is the same to the last digit.
Elsewhere the measures in `TOLERANCES` differ by no more than is said there, and those in `EQUAL` not at all;
`instructions.py` measured by how much. Results that do not tell their machine, or whose data are not here, are left
out. Exhibits take longer; ``python -m experiments.papers.reproduce`` runs them again.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from experiments.strata.study import outcomes
from experiments.tools.outcomes import RESULTS
from fedstrata.base.errors import DataError
from fedstrata.config import load_experiment

EXPERIMENTS = {path.stem: path for path in Path(__file__).parents[1].glob("*/*.toml")}

MADE = ("seconds", "seconds_server", "versions", "machine")
"""What a result says about its making."""

TOLERANCES = {"acc_client": 0.005, "loss": 1e-4}
"""How far a measure after the last round may be from the committed one on another machine: 2 of 420 test samples, and
some thousand times what `instructions.py` measured. It is meant for small networks without convolutions, whose results
are the cheapest; larger ones differ by more."""

EQUAL = ("clusters", "ari")
"""Measures after the last round that are the same on every machine."""


@dataclass(frozen=True)
class Committed:
    """A committed result: one run of a study.

    Attributes:
        experiment: The experiment file.
        result: What is kept of the run.
    """

    experiment: Path
    result: Mapping[str, Any]

    @property
    def title(self) -> str:
        """What was run."""
        return f"{self.experiment.stem}, {self.result['variant']}, seed {self.result['seed']}"

    def again(self) -> Mapping[str, Any]:
        """The result of the same run, made now."""
        (found,) = outcomes(self.experiment, [self.result["variant"]], "", self.result["seed"])
        # As a file has it: with text as keys, and lists.
        plain: Mapping[str, Any] = json.loads(json.dumps(found))
        return plain


def main() -> None:
    """Run the cheapest results again; status 1 when one does not repeat."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=3, help="how many results")
    failed = False
    for each in cheapest(parser.parse_args().count):
        after = each.again()
        found = deviations(each.result, after)
        where = "to the last digit" if same_machine(each.result, after) else "on another machine"
        print(f"{each.title}: {'; '.join(found) or f'repeats {where}'}", flush=True)
        failed |= bool(found)
    sys.exit(failed)


def cheapest(count: int) -> list[Committed]:
    """The results that took the least time, one for each variant of an experiment."""
    found = dict[tuple[Path, str], Committed]()
    here = [each for each in committed() if _has_data(each.experiment)]
    for each in sorted(here, key=lambda each: float(each.result["seconds"])):
        found.setdefault((each.experiment, each.result["variant"]), each)
    return list(found.values())[:count]


@cache
def _has_data(experiment: Path) -> bool:
    """Whether the data of an experiment are found."""
    try:
        load_experiment(experiment)
    except DataError:
        return False
    return True


def committed() -> Iterator[Committed]:
    """The results of studies that tell their machine."""
    for path in sorted(RESULTS.glob("*.json")):
        content = json.loads(path.read_text())
        experiment = EXPERIMENTS.get(path.stem)
        if isinstance(content, list) and experiment is not None:
            yield from (Committed(experiment, result) for result in content if result.get("machine"))


def same_machine(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Whether two results were made on the same kind of machine with the same libraries."""
    return all(before[key] == after[key] for key in ("machine", "versions"))


def deviations(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """What does not repeat as it should, in words."""
    if same_machine(before, after):
        one, other = (
            {key: value for key, value in leaves(result) if key.split(".")[0] not in MADE} for result in (before, after)
        )
        return [
            f"{key} was {one.get(key)}, is {other.get(key)}"
            for key in {**one, **other}
            if key not in one or key not in other or one[key] != other[key]
        ]
    last = [last_round(result) for result in (before, after)]
    return [
        f"{key} was {last[0][key]}, is {last[1][key]}"
        for key in (*EQUAL, *TOLERANCES)
        if abs(last[0][key] - last[1][key]) > TOLERANCES.get(key, 0.0)
    ]


def last_round(result: Mapping[str, Any]) -> dict[str, float]:
    """The measures after the last round; without true groups the agreement with them counts as 0."""
    return {key: result["curves"][key][-1] or 0.0 for key in (*EQUAL, *TOLERANCES)}


def leaves(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Every number and text inside nested tables and lists, by the names on the way to it."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from leaves(inner, f"{place}.{key}" if place else str(key))
    elif isinstance(value, list):
        yield f"{place} has", len(value)
        for number, inner in enumerate(value):
            yield from leaves(inner, f"{place}.{number}")
    else:
        yield place, value


if __name__ == "__main__":
    main()
