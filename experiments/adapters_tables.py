"""The tables of the page of adapters, from the results of `adapters` and `adapters_memory`."""

import json
from collections.abc import Callable, Mapping
from statistics import mean
from typing import Any

from experiments.tools.outcomes import MISSING, RESULTS, table

METHODS = ("Strata", "one adapter for all", "alone", "one adapter for all, A trained too")
KINDS = ("sources", "manuals", "licences")


def perplexities() -> str:
    """A row for each method and number of documents: the groups, and the perplexity of each kind of text."""
    path = RESULTS / "adapters.json"
    held: list[dict[str, Any]] = json.loads(path.read_text()) if path.exists() else []
    rows = list[tuple[str, ...]]()
    for count in sorted({each["documents"] for each in held}):
        for method in METHODS:
            runs = [each for each in held if (each["documents"], each["method"]) == (count, method)]
            seeds = ", ".join(str(each["seed"]) for each in runs)
            found = ", ".join(f"{each['ari']:.2f}" for each in runs) if method == "Strata" else ""
            kinds = tuple(f"{mean(_of_kind(each, kind) for each in runs):.2f}" if runs else MISSING for kind in KINDS)
            rows.append((str(count), method, seeds or MISSING, found, *kinds))
    return table(f"documents of a client | method | seeds | ARI | {' | '.join(KINDS)}", rows)


def _of_kind(run: Mapping[str, Any], kind: str) -> float:
    """The mean perplexity of the clients of a kind."""
    return mean(value for name, value in run["perplexity"].items() if name.startswith(kind))


def memory() -> str:
    """The peak of a run whose base has 25 million weights, beside what it may be."""
    held: dict[str, dict[str, int]] = json.loads((RESULTS / "adapters_memory.json").read_text())
    rows = [
        (
            f"a {given}",
            *(f"{each[key] / 1e6:.1f}" for key in ("base", "rows")),
            f"{1.5 * (each['base'] + each['rows']) / 1e6:.1f}",
            *(f"{each[key] / 1e6:.1f}" for key in ("training", "with the page")),
        )
        for given, each in held.items()
    ]
    heads = "the model is given as | base | rows of twelve clients | 1.5 times both | peak in training | with the page"
    return table(heads, rows)


ADAPTERS: Mapping[str, Callable[[], str]] = {"adapters": perplexities, "adapters_memory": memory}
