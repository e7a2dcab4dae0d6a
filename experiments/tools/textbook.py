"""How the page of an algorithm begins: idea, pseudo-code, formula, picture and example, of ``textbook.toml``."""

from __future__ import annotations

import tomllib
from functools import cache
from typing import Any

from experiments.tools.descriptions import FACTS, wrapped
from experiments.tools.schemes import SCHEMES

TEXTBOOK = FACTS.with_name("textbook.toml")

EXPERIMENT: dict[str, dict[str, Any]] = {
    "data": {"name": "digits", "clients": 8, "samples": 60},
    "partition": {"scheme": "concept", "groups": 2},
    "local": {"lr": 0.1, "batch": 10, "epochs": 5},
}
"""The tables of an example, where it has none of its own."""

SHOWN = {
    "acc_client": 'round(run.summary["acc_client"], 2)',
    "clusters": 'run.summary["clusters"]',
    "clusters_and_ari": 'run.summary["clusters"], run.summary["ari"]',
}
"""What an example may print."""

EXAMPLE = """import fedstrata as fs
from fedstrata.algorithms import {kind}

experiment = {{
{tables}
}}
algorithm = {call}
run = fs.run(experiment, algorithm=algorithm, rounds={rounds}, quiet=True)
print({shown})  # {prints}"""

ABOUT_EXAMPLES = {
    "concept": "Eight clients share the digits of scikit-learn. Four of them call the digits by other labels.",
    "label_groups": "Eight clients share the digits of scikit-learn. Four have the digits 0 to 4, the others 5 to 9.",
}
"""What an example is about, by its partition."""

PRINTED = {
    "acc_client": "The example prints the mean accuracy of the models that clients use.",
    "clusters": "The example prints the number of clusters.",
    "clusters_and_ari": "The example prints the number of clusters, and the ARI: 1 means the true groups.",
}
"""What an example prints, in words."""


@cache
def textbook() -> dict[str, dict[str, Any]]:
    """Idea, pseudo-code, formula, picture and example of each algorithm, by name."""
    told: dict[str, dict[str, Any]] = tomllib.loads(TEXTBOOK.read_text(encoding="utf-8"))
    return told


def opening(name: str) -> list[str]:
    """The first sections of the page of an algorithm."""
    told = textbook()[name]
    picture, example = told["picture"], told["example"]
    about = ABOUT_EXAMPLES[{**EXPERIMENT, **example}["partition"]["scheme"]]
    return [
        "## Idea",
        wrapped(" ".join(told["idea"].split())),
        "## Pseudo-code",
        f"```\n{told['pseudo_code'].strip()}\n```",
        "## Decision" if "⇔" in told["formula"] or "cluster of" in told["formula"] else "## Formula",
        f"```\n{told['formula'].strip()}\n```",
        f"![{SCHEMES[picture].__doc__}](schemes/{picture}.svg)",
        "## Example",
        wrapped(f"{about} {PRINTED[example['shows']]}"),
        f"```python\n{example_of(name)}\n```",
    ]


def example_of(name: str) -> str:
    """The program of an algorithm's example."""
    told = textbook()[name]["example"]
    tables = ({**EXPERIMENT, **told}[table] for table in EXPERIMENT)
    lines = (f'    "{table}": {_python(keys)},' for table, keys in zip(EXPERIMENT, tables, strict=True))
    return EXAMPLE.format(
        kind=told["call"].split("(")[0],
        tables="\n".join(lines),
        call=told["call"],
        rounds=told["rounds"],
        shown=SHOWN[told["shows"]],
        prints=told["prints"],
    )


def _python(keys: dict[str, Any]) -> str:
    """A dict as a program has it."""
    return repr(keys).replace("'", '"')
