"""Write ``docs/algorithms`` and ``docs/keys.md`` from what the code says about itself, and fill all tables.

python experiments/pages.py
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from descriptions import FACTS, clustering, facts, key_table, keys_of, limits, paragraphs
from outcomes import table
from tables import ROOT, filled, renewed
from tables import main as fill

from fedstrata.algorithms import ALGORITHMS
from fedstrata.config.tables import Choice, Events, Experiment, Method, Table
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
    (
        r"Needs ",
        (
            ("needs", "**Needs** {}."),
            ("work", "**Local work beyond one training:** {}."),
            ("keeps", "**Stays on the device:** {}."),
            ("sends", "**Travels beyond one model each way:** {}."),
            ("decides", "**Decides** {}."),
            ("evidence", "**From** {}."),
            ("when", "**When:** {}."),
        ),
    ),
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

COLUMNS = {
    "needs": "needs (default)",
    "work": "local work beyond one training",
    "keeps": "stays on the device",
    "sends": "travels beyond one model each way",
    "evidence": "from",
    "fraction": "where a round asks only some",
}
"""What the columns of facts are called, where not as the facts are."""

ALIKE = """20 clients of 300 MNIST images each, dealt at random: the right number of clusters is 1. "1 in 9, 3 in 1" is
one cluster in nine seeds and three in one; the other numbers are those after 20 rounds."""

INDEX = """# Algorithms

One of these is `algorithm.name` in an experiment file; its keys are on its page, and those of all in
[one list](../keys.md). What each needs, sends and decides is compared in [how to choose one](../choosing.md). Each is
one file that reads like the pseudo-code of its paper. The tables on the pages are made from
[results](../../experiments/results); every [experiment](../../experiments) has its command in its head.
"""

KEYS = """# Keys

All keys of an experiment file. Unknown keys, wrong types and values out of range are errors before any data is read;
`--set table.key=value` changes one on the command line. Where "auto" is yes, the key also takes `"auto"`.

Layers are named by selectors: `conv`, `linear`, `head` (the last linear layer), `first_linear`, `smallest_linear`,
`all` (conv and linear), the name of a layer, or a pattern such as `conv*`; a list of several makes one selection.
"""

LIMITS = """What is larger is refused in one line, before it takes minutes or the memory of the machine. All limits are
in [one file](../src/fedstrata/limits.py). An experiment and data are read only from regular files, not from pipes or
devices. No code comes from an experiment or from data, with one exception: `model.name = "package.module:factory"`
imports that module. Use it only with code that you trust."""

CHOSEN = {
    "partition": "`scheme` names one of these, by default `iid`; those with `inside` compose with another.",
    "model": "`name` names one of these, or `package.module:factory` with the factory's own keys; by default the data\n"
    "set's own.",
    "algorithm": f"`name` names one of these, by default `{Method().name}`. `[algorithms.NAME]` has the keys of\n"
    "another, for comparisons.",
}
"""What the first key of a table chooses."""

TABLES = {
    name: shown
    for name, field in Experiment.model_fields.items()
    if isinstance(shown := field.annotation, type)
    and issubclass(shown, Table)
    and not issubclass(shown, Choice | Events)
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
        sys.exit(f"{FACTS}: expected what {', '.join(missing)} needs, sends and decides; add a table for each")
    folder = ROOT / "docs" / "algorithms"
    made = {folder / f"{name}.md": page(name) for name in ALGORITHMS}
    made |= {folder / "README.md": index(), ROOT / "docs" / "keys.md": every_key()}
    choosing = ROOT / "docs" / "choosing.md"
    return {choosing: compared(choosing.read_text()), **{path: filled(MADE + text) for path, text in made.items()}}


def page(name: str) -> str:
    """One algorithm: what it is, what it needs, its keys, its source, and what was measured."""
    kind, told, keys = ALGORITHMS[name], facts()[name], keys_of(ALGORITHMS[name])
    text = [f"# {title(name)}", *paragraphs(kind.__doc__)]
    untold = [pair for words, pairs in SAID if not re.search(words, kind.__doc__ or "") for pair in pairs]
    if said := [f"- {words.format(told[fact])}" for fact, words in untold if fact in told]:
        text.append("\n".join(said))
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
    text += ["## On clients that are alike", ALIKE, "<!-- table iid -->\n<!-- end -->"]
    return "\n\n".join(text) + "\n"


def every_key() -> str:
    """Every key of an experiment file."""
    own = [key for key in keys_of(Experiment) if key.name in ("seed", "rounds")]
    text = [KEYS.strip(), key_table(own).strip()]
    for name, shown in TABLES.items():
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
    text += ["## Limits", LIMITS, table("what | at most", limits()).strip()]
    return "\n\n".join(text) + "\n"


def compared(text: str) -> str:
    """A page with its tables of facts, named after ``facts``, made anew."""
    return renewed(text, "facts", lambda *names: _of_all(names, "algorithms/"))


def _link(name: str, folder: str = "") -> str:
    return f"[`{name}`]({folder}{name}.md)"


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
