"""Write ``docs/algorithms`` and ``docs/keys.md`` from what the code says about itself, and fill all tables.

python experiments/pages.py
"""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from typing import Any, get_args

from descriptions import FACTS, clustering, facts, key_table, keys_of, paragraphs
from outcomes import table
from tables import ROOT, filled
from tables import main as fill

from fedstrata.algorithms import ALGORITHMS
from fedstrata.config.tables import Events, Experiment
from fedstrata.data import DATASETS
from fedstrata.models import MODELS
from fedstrata.partition import PARTITIONS
from fedstrata.registry import Registry

MADE = "<!-- made by experiments/pages.py; to change it, change the docstrings or facts.toml -->\n"

SECTIONS = {
    "adacfl": (
        ("Where the groups differ in their main class", "compared adacfl"),
        ("When clients come late", "join"),
    ),
    "hicfl": (("Beside CFL", "compared hicfl"),),
    "fedtsdp": (("Where every client is different, and where none is", "compared fedtsdp"),),
    "ifca": (("With the true number of clusters", "compared ifca"),),
    "layercfl": (
        ("On the layer that it scouts", "scouted"),
        ("When only some of the clients take part", "compared partial"),
        ("On people", "compared natural"),
    ),
}
"""Further results of an algorithm: title and table. More about LayerCFL's thresholds is in ``docs/thresholds.md``."""

REMARKS = {
    "scouted": """Folds of the clients' data prove when a cluster has groups; the compared layer says where it is cut.
Then every layer does about as well. The paper's rule, convolutions for skew of features and linear layers for skew of
labels, does not show in these small networks: their linear layer tells rotations apart at least as clearly as their
convolutions do, which is why the scout names it.""",
    "compared hicfl": """Whole MNIST and Fashion-MNIST, as in the paper. CFL, with automatic thresholds, splits nothing
within the 30 rounds. With many groups (Non-IID-1, CIFAR-10) HiCFL finds them, but goes on and tears some: in a cluster
without groups the sign of a cosine still has two sides.""",
}
"""What a table shows, in words."""

SAID = (
    (r"Needs ", (("needs", "**Needs** {}."), ("sends", "**Sends** {}."), ("decides", "**Decides** {}."))),
    (
        r"absent|were away|that answered|did not answer",
        (
            ("absent", "**Who is absent** {}."),
            ("newcomers", "**Newcomers** {}."),
            ("fraction", "**Where a round asks only some:** {}."),
        ),
    ),
)
"""How a page puts the facts, unless the docstring has these words: then it tells them itself."""

ALIKE = """20 clients of 300 MNIST images each, dealt at random: the right number of clusters is 1. "1 in 9, 3 in 1" is
one cluster in nine seeds and three in one; the other numbers are those after 20 rounds."""

INDEX = """# Algorithms

One of these is `algorithm.name` in an experiment file; its keys are on its page, and those of all in
[one list](../keys.md). Each is one file that reads like the pseudo-code of its paper. The tables on the pages are made
from [results](../../experiments/results); every [experiment](../../experiments) has its command in its head.
"""

ABSENCE = """Whoever was not asked in a round, did not answer, or sent something that is no number, is absent from it,
and no old update stands in for it. A client whose cluster is not known is pending: it is offered every cluster below
its place in the tree, and most algorithms let it take the one of lowest loss on its training data. Newcomers are
clients that join late and those whose data changed; `fedstrata assign` places a new client by a finished run in the
same way. A quorum is a share, by default half: of those who were asked in the round, or, where clients send something
once, of all clients."""

KEYS = """# Keys

All keys of an experiment file. Unknown keys, wrong types and values out of range are errors before any data is read;
`--set table.key=value` changes one on the command line. Where "auto" is yes, the key also takes `"auto"`.

Layers are named by selectors: `conv`, `linear`, `head` (the last linear layer), `first_linear`, `smallest_linear`,
`all` (conv and linear), the name of a layer, or a pattern such as `conv*`; a list of several makes one selection.
"""

CHOSEN = {
    "partition": "`scheme` names one of these, by default `iid`; those with `inside` compose with another.",
    "model": "`name` names one of these, or `package.module:factory` with the factory's own keys; by default the data\n"
    "set's own.",
    "algorithm": "`name` names one of these, by default `layercfl`. `[algorithms.NAME]` has the keys of another, for\n"
    "comparisons.",
}
"""What the first key of a table chooses."""

TABLES = ("data", "local", "cohort", "engine", "probe")


def main() -> None:
    """Write all pages, and fill the tables of all documents."""
    for path, text in pages().items():
        path.write_text(text)
    fill()


def pages() -> dict[Path, str]:
    """The text of every page that is made, by where it is."""
    missing = [name for name in ALGORITHMS if name not in facts()]
    if missing:
        sys.exit(f"{FACTS}: expected what {', '.join(missing)} needs, sends and decides; add a table for each")
    folder = ROOT / "docs" / "algorithms"
    made = {folder / f"{name}.md": page(name) for name in ALGORITHMS}
    made |= {folder / "README.md": index(), ROOT / "docs" / "keys.md": every_key()}
    return {path: filled(MADE + text) for path, text in made.items()}


def page(name: str) -> str:
    """One algorithm: what it is, what it needs, its keys, its source, and what was measured."""
    kind, told, keys = ALGORITHMS[name], facts()[name], keys_of(ALGORITHMS[name])
    text = [f"# {title(name)}", *paragraphs(kind.__doc__)]
    if untold := [fact for words, facts in SAID if not re.search(words, kind.__doc__ or "") for fact in facts]:
        text.append("\n".join(f"- {said.format(told[fact])}" for fact, said in untold))
    text += ["## Keys", key_table(keys).strip() if keys else "None."]
    file = Path(inspect.getfile(kind)).relative_to(ROOT)
    text += ["## Source", *paragraphs(inspect.getmodule(kind).__doc__), f"Code: [`{file.name}`](../../{file})."]
    if name in clustering():
        text += ["## On clients that are alike", ALIKE, f"<!-- table iid {name} -->\n<!-- end -->"]
    for heading, wanted in SECTIONS.get(name, ()):
        text += [f"## {heading}", *filter(None, [REMARKS.get(wanted)]), f"<!-- table {wanted} -->\n<!-- end -->"]
    return "\n\n".join(text) + "\n"


def title(name: str) -> str:
    """What an algorithm is called: what its docstring says before the colon, if that is a name."""
    called, colon, _ = paragraphs(ALGORITHMS[name].__doc__)[0].partition(":")
    return called if colon and len(called.split()) <= 2 else ALGORITHMS[name].__name__


def index() -> str:
    """All algorithms, and how they differ."""
    rows = [(_link(name), paragraphs(kind.__doc__)[0], kind.source) for name, kind in ALGORITHMS.items()]
    text = [INDEX.strip(), table("algorithm | what it is | source", rows).strip()]
    text += ["## What each needs, sends and decides", _compared("needs", "sends", "decides")]
    text += ["## Who is absent, and who is new", ABSENCE, _compared("absent", "newcomers", "fraction")]
    text += ["## On clients that are alike", ALIKE, "<!-- table iid -->\n<!-- end -->"]
    return "\n\n".join(text) + "\n"


def every_key() -> str:
    """Every key of an experiment file."""
    own = [key for key in keys_of(Experiment) if key.name in ("seed", "rounds")]
    text = [KEYS.strip(), key_table(own).strip()]
    for name in TABLES:
        shown = Experiment.model_fields[name].annotation
        text += [f"## [{name}]", *paragraphs(shown.__doc__), key_table(keys_of(shown)).strip()]
        text += [f"Known data sets are {', '.join(f'`{known}`' for known in DATASETS)}."] * (name == "data")
    text += ["## [events]", paragraphs(Events.__doc__)[0]]
    for key in keys_of(Events):
        event = get_args(get_args(key.kind)[0])[0]
        sentence = key.sentence[0].upper() + key.sentence[1:]
        text += [f"### [[events.{key.name}]]", sentence, key_table(keys_of(event)).strip()]
    registries: dict[str, Registry[Any]] = {"partition": PARTITIONS, "model": MODELS, "algorithm": ALGORITHMS}
    for table_name, registry in registries.items():
        text += [f"## [{table_name}]", CHOSEN[table_name]]
        for name, kind in registry.items():
            keys = keys_of(kind)
            text += [f"### {name}", paragraphs(kind.__doc__)[0], key_table(keys).strip() if keys else "No keys."]
    return "\n\n".join(text) + "\n"


def _link(name: str) -> str:
    return f"[`{name}`]({name}.md)"


def _compared(*wanted: str) -> str:
    """Some facts of all algorithms, side by side."""
    rows = ((_link(name), *(facts()[name][fact] for fact in wanted)) for name in ALGORITHMS)
    return table(f"algorithm | {' | '.join(wanted)}", rows).strip()


if __name__ == "__main__":
    main()
