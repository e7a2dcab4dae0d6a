"""Write the pages of algorithms and keys from what the code says about itself, and fill all tables.

python -m experiments.tools.pages
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from experiments.strata.comparisons import COMPARED
from experiments.tools.descriptions import (
    FACTS,
    clustering,
    facts,
    key_table,
    keys_of,
    limits,
    papers,
    paragraphs,
    title_of,
)
from experiments.tools.outcomes import table
from experiments.tools.references import described
from experiments.tools.references import pages as described_pages
from experiments.tools.tables import ROOT, filled, renewed
from experiments.tools.tables import main as fill
from experiments.tools.textbook import opening
from fedstrata.algorithms import ALGORITHMS
from fedstrata.base.registry import Registry
from fedstrata.config.tables import AlgorithmTable, ChoiceTable, EventsTable, Experiment, Table
from fedstrata.data import DATASETS
from fedstrata.models import MODELS
from fedstrata.objective import LOSSES
from fedstrata.partition import PARTITIONS
from fedstrata.personal import PERSONAL
from fedstrata.uploads.attacks.updates import named_attacks
from fedstrata.uploads.rules import AGGREGATIONS

MADE = "<!-- made by experiments/tools/pages.py; to change it, change the docstrings, textbook.toml or facts.toml -->\n"

_DEFAULTS = "Groups and alike clients with default keys"
SECTIONS = {
    "cfl": ((_DEFAULTS, "defaults cfl"),),
    "layercfl": ((_DEFAULTS, "defaults layercfl"),),
    "adacfl": ((_DEFAULTS, "defaults adacfl"), ("Groups that differ in their main class", "preclustered")),
    "ifca": (("How often random starts collapse", "ifca_starts"),),
    "pacfl": (("What the vectors show of the data", "vectors"),),
}
"""Further results of an algorithm: title and table. ``docs/evidence/thresholds.md`` has more about thresholds."""

REMARKS = {
    "defaults": """The rules behind the automatic values were found with seeds below 10 on these data. The table has the
seeds from 100 on, which chose nothing: of federations with groups the ARI of each in the last round (1 is exact) and
the rounds of its splits, and of federations of clients that are alike how many were split, and when. It is made by
[`defaults.py`](../../../experiments/papers/defaults.py). What 50 rounds do to alike clients, also to eight and to three
of them, is in [another table](../../evidence/strata-results.md#clients-that-are-alike).""",
    "ifca_starts": """Twenty clients in four rotations, 20 rounds. A start has collapsed if the groups of the last round
are not the true ones; with eight models that cannot be told from the ARI. No kind of start is safe, and five
federations are too few to rank them. Start a run with several seeds, or take an algorithm that needs no start. The
table is made by
[`ifca_starts.py`](../../../experiments/papers/ifca_starts.py).""",
    "preclustered": """The paper's partition, with SGD and the automatic cut: 100 clients in five groups, 80 % of a
client's MNIST images are of one class, pre-clustering is on. The clients are clustered once, after round 1
([`adacfl_mnist_majority.toml`](../../../experiments/papers/adacfl_mnist_majority.toml), three rounds). An ARI of 1 is
exact.""",
    "vectors": """The first singular vector of a class shows its class mean: the first column is the cosine of the two.
Where it is near 1, the server of PACFL has the class means of every client, as the network reads them. The second
column is the share of the length of a single sample that lies in the span of its class's three vectors. Of a class with
up to three samples, the samples lie in it entirely. The server keeps the vectors for newcomers, also after the run.
[Privacy](../privacy.md#singular-vectors) has a picture. The table is made by
[`leaks.py`](../../../experiments/trust/leaks.py), as means over ten clients and three seeds.""",
}
"""What a table shows, in words."""

BESIDE = """[Comparisons](../../evidence/comparisons.md) has this algorithm beside others, on clients in groups
and on clients that all differ."""

CALLED = """An experiment selects it by `algorithm.name = "{name}"`. In Python, it is the class
[`{kind}`](../../reference/algorithms.md). This page begins with the algorithm itself. Then it has what it needs and
decides, its keys, its source, and what was measured."""

FACTS_SHOWN = (
    ("needs", "**Needs**: {}."),
    ("work", "**Local work beyond one training**: {}."),
    ("keeps", "**Stays on the device**: {}."),
    ("sends", "**Travels beyond one model each way**: {}."),
    ("stores", "**The server keeps of single clients**: {}."),
    ("receives", "**A client receives**: {}."),
    ("decides", "**Decides**: {}."),
    ("evidence", "**Evidence**: {}."),
    ("when", "**When**: {}."),
    ("absent", "**An absent client**: {}."),
    ("newcomers", "**Newcomers**: {}."),
    ("fraction", "**When a round selects only some clients**: {}."),
)
"""How a page puts each fact."""

AGAINST_THE_PAPER = """Tests compare the library with a few lines of numpy that are written from the paper:
[`test_{0}.py`](../../../tests/papers/test_{0}.py). The constant `KEYS` there has the keys that follow the paper."""

DIFFERENCES = (
    ("open", "The paper does not say, or says in two ways:"),
    ("differs", "With any keys, the library differs from the paper:"),
    ("defaults", "These defaults are not the paper's:"),
    ("added", "The library adds to the paper:"),
)
"""How a page introduces each list of sentences about a paper."""

COLUMNS = {
    "needs": "needs (default)",
    "work": "local work beyond one training",
    "keeps": "stays on the device",
    "sends": "travels beyond one model each way",
    "uploads": "a client sends in a round",
    "stores": "the server keeps of single clients",
    "receives": "a client receives",
    "absent": "an absent client",
    "fraction": "when a round selects only some clients",
}
"""What the columns of facts are called, where not as the facts are."""

ALIKE = """20 clients with 150 random MNIST images each and a network of one hidden layer. One cluster is right. Every
algorithm has its default keys, unless the row names others. "1 in 2, 3 in 1" means one cluster in two seeds and three
clusters in one seed. "Acted in" counts the runs with more than one cluster after some round; FedTSDP also acts when it
makes a layer personal. The accuracy is that after 20 rounds, with its standard deviation over the seeds. The difference
to FedAvg on the same seeds has its 95 % t-interval."""

INDEX = """# Algorithms

This page lists all algorithms. The key `algorithm.name` of an experiment selects one by its name, and so does
`fs.run(..., algorithm="strata")` in Python. Each algorithm has a page with its keys and its source.

- To select one, read [Choosing an algorithm](../choosing.md). It compares what they need, send and decide.
- To know what exactly they compute, read [Semantics](../semantics.md).
- To know how accurate they are on the same clients, read [Comparisons](../../evidence/comparisons.md).

The tables are made from [results](../../../experiments/results). Each [experiment](../../../experiments) has its
command in its first lines.
"""

REFERENCE = """# fedstrata.algorithms

This page has the class of each algorithm. An object of it is an algorithm with its keys, which are checked when the
object is made:

```python
import fedstrata as fs
from fedstrata.algorithms.ifca import IFCA

run = fs.run("experiment.toml", algorithm=IFCA(k=3))
```

The name in an experiment file, such as `"ifca"`, means the same class. `fs.ALGORITHMS` maps all names to classes, and
`fs.Strata` is `fedstrata.algorithms.strata.Strata`. All classes have the functions of
[`Algorithm`](core.md#protocols). [Choosing an algorithm](../methods/choosing.md) compares them.
"""

KINDS_OF_ALGORITHM: Mapping[str, Callable[[Mapping[str, Any]], bool]] = {
    "Clusters of clients": lambda told: told["decides"] != "nothing",
    "Personal models and layers": lambda told: told["keeps"] != "nothing",
    "One model, and references": lambda told: True,
}
"""The sections of the reference. An algorithm is in the first one that its facts fit."""

KEYS = """# Keys

This page lists all keys of an experiment file. Look here for what a key means, which values it takes, and what it is by
default. A key without a default is left out unless you set it.

- `--set table.key=value` changes a key on the command line.
- Where `"auto"` is a value, the library chooses, as the meaning says.
- Unknown keys, wrong types and values out of range are errors before any data is read.

Selectors name layers: `conv`, `linear`, `head` (the last linear layer), `first_linear`, `smallest_linear`, `all` (conv
and linear), the name of a layer, or a pattern such as `conv*`. A list of selectors selects all of their layers.
"""

LIMITS = """Larger inputs are refused with one line, before they take minutes or the memory of the machine. All limits
are in [one file](../../src/fedstrata/base/limits.py). Experiments and data are read from regular files only, not from
pipes or devices. No code comes from data, and from an experiment with one exception: a name of the form
`package.module:name` imports that module. `model.name`, `algorithm.name`, `attack.kind` and `loss`, `metric` and
`transform` of `[local]` may be such names. Use them only with code that you trust."""

CHOSEN = {
    "partition": "`scheme` is one of these, by default `iid`. Those with `inside` take another scheme for the groups.",
    "model": "`name` is one of these, or `package.module:factory` with the factory's own keys. The default depends on\n"
    "the data set.",
    "personal": "`method` is one of these, or `none`, the default. [Personal models](../methods/personal.md) compares "
    "them.",
    "algorithm": f"`name` is one of these, by default `{AlgorithmTable().name}`. `[algorithms.NAME]` has the keys of "
    "another\nalgorithm, for comparisons.",
}
"""What the first key of a table chooses."""

NAMES: dict[str, tuple[str, Mapping[str, Any]]] = {
    "data": ("Known data sets", DATASETS),
    "local": ("The losses", LOSSES),
    "server": ("The rules", AGGREGATIONS),
    "attack": ("The attacks", dict.fromkeys(named_attacks())),
}
"""What a key of a table may name: the words before the names, and the names."""

WITH_FACTS = ("methods/choosing.md", "methods/privacy.md")
"""The documents with tables of facts."""

TABLES = {
    name: shown
    for name, field in Experiment.model_fields.items()
    if isinstance(shown := field.annotation, type)
    and issubclass(shown, Table)
    and not issubclass(shown, ChoiceTable | EventsTable)
}
"""The tables with keys of their own; those that choose something have the keys of what they choose."""


def main() -> None:
    """Write all pages, and fill the tables of all documents."""
    for path, text in pages().items():
        path.write_text(text)
    fill()


def pages() -> dict[Path, str]:
    """The text of every page that is made, by where it is."""
    missing = [name for name in ALGORITHMS if name not in facts()]
    if missing:
        sys.exit(
            f"{FACTS}: expected a table for {', '.join(missing)}, found none; add what it needs, sends and decides"
        )
    folder = ROOT / "docs" / "methods" / "algorithms"
    made = {folder / f"{name}.md": page(name) for name in ALGORITHMS}
    made |= {folder / "README.md": index(), ROOT / "docs" / "reference" / "keys.md": every_key()}
    made[ROOT / "docs" / "reference" / "algorithms.md"] = described(reference())
    beside = [ROOT / "docs" / name for name in WITH_FACTS]
    return {
        **{path: compared(path.read_text()) for path in beside},
        **described_pages(),
        **{path: filled(MADE + text) for path, text in made.items()},
    }


def page(name: str) -> str:
    """One algorithm as a textbook has it; then what it needs, its keys, its source, and what was measured."""
    kind, told, keys = ALGORITHMS[name], facts()[name], keys_of(ALGORITHMS[name])
    first, *more = paragraphs(kind.__doc__)
    text = [f"# {title_of(name)}", first, CALLED.format(name=name, kind=kind.__name__), *opening(name)]
    text += ["## What it needs and decides", *more]
    text.append("\n".join(f"- {words.format(told[fact])}" for fact, words in FACTS_SHOWN if fact in told))
    text += ["## Keys", key_table(keys).strip() if keys else "None."]
    file = Path(inspect.getfile(kind)).relative_to(ROOT)
    text += ["## Source", *paragraphs(inspect.getmodule(kind).__doc__), f"Code: [`{file.name}`](../../../{file})."]
    if name in papers():
        text += ["## What the paper leaves open, and what differs here", AGAINST_THE_PAPER.format(name)]
        for kind_of_difference, introduction in DIFFERENCES:
            sentences = papers()[name].get(kind_of_difference)
            text += [introduction, "\n".join(f"- {sentence}" for sentence in sentences)] if sentences else []
    if name in clustering():
        text += ["## Clients that are alike", ALIKE, f"<!-- table iid {name} -->\n<!-- end -->"]
        text += [BESIDE] if name in compared_algorithms() else []
    for heading, wanted in SECTIONS.get(name, ()):
        text += [
            f"## {heading}",
            *filter(None, [REMARKS.get(wanted.split()[0])]),
            f"<!-- table {wanted} -->\n<!-- end -->",
        ]
    return "\n\n".join(text) + "\n"


def compared_algorithms() -> set[str]:
    """The algorithms that the page of comparisons has a row of."""
    return {variant.split("+")[0] for comparison in COMPARED.values() for variant, _ in comparison.methods}


def index() -> str:
    """All algorithms, and how they differ."""
    rows = [(_link(name), f"`{name}`", _what_it_is(name), kind.source) for name, kind in ALGORITHMS.items()]
    text = [INDEX.strip(), table("algorithm | name | what it is | source", rows).strip()]
    text += ["## Clients that are alike", ALIKE, "<!-- table iid -->\n<!-- end -->"]
    return "\n\n".join(text) + "\n"


def reference() -> str:
    """The class of every algorithm, for mkdocstrings."""
    text = [REFERENCE.strip()]
    left = dict(facts())
    for heading, fits in KINDS_OF_ALGORITHM.items():
        text.append(f"## {heading}")
        for name in [name for name in ALGORITHMS if name in left and fits(left[name])]:
            del left[name]
            kind = ALGORITHMS[name]
            text.append(f"::: {kind.__module__}.{kind.__name__}\n    options:\n      members: false")
            link = f"[{title_of(name)}](../methods/algorithms/{name}.md)"
            text.append(f"The page {link} has its facts, its source and results.")
    return "\n\n".join(text) + "\n"


def _what_it_is(name: str) -> str:
    """The first sentence about an algorithm, without its title."""
    sentence = paragraphs(ALGORITHMS[name].__doc__)[0].removeprefix(f"{title_of(name)}:").strip()
    # A symbol, such as the k of "k models", keeps its case.
    return sentence if sentence[1] == " " else sentence[0].upper() + sentence[1:]


def every_key() -> str:
    """Every key of an experiment file."""
    own = [key for key in keys_of(Experiment) if key.name in ("seed", "rounds", "label")]
    text = [KEYS.strip(), key_table(own).strip()]
    for name, shown in TABLES.items():
        text += [f"## [{name}]", *paragraphs(shown.__doc__), key_table(keys_of(shown)).strip()]
        if name in NAMES:
            title, registry = NAMES[name]
            text.append(f"{title} are {', '.join(f'`{known}`' for known in registry)}.")
    text += ["## [events]", paragraphs(EventsTable.__doc__)[0]]
    for key in keys_of(EventsTable):
        event = get_args(get_args(key.kind)[0])[0]
        sentence = key.sentence[0].upper() + key.sentence[1:]
        text += [f"### [[events.{key.name}]]", sentence, key_table(keys_of(event)).strip()]
    registries: dict[str, Registry[Any]] = {
        "partition": PARTITIONS,
        "model": MODELS,
        "algorithm": ALGORITHMS,
        "personal": PERSONAL,
    }
    for table_name, choices in registries.items():
        text += [f"## [{table_name}]", CHOSEN[table_name]]
        for name, kind in choices.items():
            keys = keys_of(kind)
            text += [f"### {name}", paragraphs(kind.__doc__)[0], key_table(keys).strip() if keys else "No keys."]
    text += ["## Limits", LIMITS, table("what | at most", limits()).strip()]
    return "\n\n".join(text) + "\n"


def compared(text: str) -> str:
    """A page with its tables of facts, named after ``facts``, made anew."""
    return renewed(text, "facts", lambda *names: _of_all(names, "algorithms/"))


def _link(name: str, folder: str = "") -> str:
    return f"[{title_of(name)}]({folder}{name}.md)"


def _of_all(wanted: Sequence[str], folder: str) -> str:
    """Some facts of all algorithms that have them, side by side; links lead to their pages in a folder."""
    able = [name for name in ALGORITHMS if all(fact in facts()[name] for fact in wanted)]
    rows = ((_link(name, folder), *(_cell(name, fact) for fact in wanted)) for name in able)
    return table(f"algorithm | {' | '.join(COLUMNS.get(fact, fact) for fact in wanted)}", rows)


def _cell(name: str, fact: str) -> str:
    """A fact; what is needed, with the keys that are to be chosen and their defaults."""
    told = facts()[name]
    if fact != "needs" or "choose" not in told:
        return str(told[fact])
    chosen = (key for key in keys_of(ALGORITHMS[name]) if key.name in told["choose"])
    return f"{told['needs']}: " + ", ".join(f"`{key.name}` (`{key.default}`)" for key in chosen)


if __name__ == "__main__":
    main()
