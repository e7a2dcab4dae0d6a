"""The tables of the page of adapters, from the results of `adapters` and `adapters_memory`."""

import json
from collections.abc import Callable, Mapping
from statistics import mean
from typing import Any

from experiments.tools import outcomes
from experiments.tools.outcomes import MISSING, table

METHODS = ("Strata", "one adapter for all", "alone", "one adapter for all with A trained too")
KINDS = ("sources", "manuals", "licences")


def perplexities() -> str:
    """A row for each method: the groups, and the perplexity of each kind of text."""

    def row(method: str) -> tuple[str, ...]:
        runs = [each for each in _read("adapters", []) if each["method"] == method]
        if not runs:
            return method, MISSING, "", *[MISSING] * len(KINDS)
        found = ", ".join(f"{each['ari']:.2f}" for each in runs) if method == "Strata" else ""
        seeds = ", ".join(str(each["seed"]) for each in runs)
        return method, seeds, found, *(_of_kind(runs, kind) for kind in KINDS)

    return table(f"method | seeds | ARI | {' | '.join(KINDS)}", map(row, METHODS))


def _of_kind(runs: list[dict[str, Any]], kind: str) -> str:
    """The mean perplexity of the clients of a kind, over all runs."""
    return f"{mean(value for run in runs for name, value in run['perplexity'].items() if name.startswith(kind)):.2f}"


def memory() -> str:
    """The peak of a run whose base has 25 million weights, beside what it may be, in megabytes."""
    held = _read("adapters_memory", {})

    def row(given: str) -> tuple[str, ...]:
        if given not in held:
            return given, *[MISSING] * 5
        found: dict[str, float] = held[given]
        base, rows, *peaks = (found[key] for key in ("base", "rows", "training", "with the page"))
        return given, *(f"{each / 1e6:.1f}" for each in (base, rows, 1.5 * (base + rows), *peaks))

    heads = (
        "the model is given as a | base | rows of twelve clients | 1.5 times both | peak in training | with the page"
    )
    return table(heads, map(row, ("network", "factory")))


def _read(name: str, nothing: Any) -> Any:
    """The results of an experiment; nothing while it has not been run."""
    path = outcomes.RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else nothing


ADAPTERS: Mapping[str, Callable[[], str]] = {"adapters": perplexities, "adapters_memory": memory}
