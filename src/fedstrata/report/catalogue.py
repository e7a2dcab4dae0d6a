"""The catalogue of words: the texts of ``words.toml``, filled in with the values of a record."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from functools import cache, partial
from math import isfinite
from pathlib import Path
from typing import Any

from jinja2 import DictLoader, Environment, StrictUndefined, Template, TemplateError

from fedstrata.clustering.client_measures import CLIENT_MEASURES
from fedstrata.report.words import NO_NAMES, ClientNames, brief, capital, format_number, joined, plural, ranges, size

WORDS: Mapping[str, Mapping[str, Any]] = tomllib.loads(Path(__file__).with_name("words.toml").read_text("utf-8"))
"""The texts by what they are about and by their kind."""

COMPARED_BY: Mapping[str, str] = {
    **{name: measure.about for name, measure in CLIENT_MEASURES.items()},
    **WORDS["compared_by"],
}
"""What clients are compared by in matrices and gaps, with its unit and range."""

SIMILARITIES = (*(name for name, measure in CLIENT_MEASURES.items() if measure.larger_is_closer), "likeness")
"""Client measures of which a larger value means that clients are closer."""

COMPARABLE = tuple(name for name, measure in CLIENT_MEASURES.items() if measure.fixed_scale)
"""Client measures whose values mean the same in every round, so that all matrices share one colour scale."""

_FORMATS = {"whole": ".0f", "f1": ".1f", "f2": ".2f", "f3": ".3f", "g": "g", "g2": ".2g", "g4": ".4g", "percent": ".0%"}
"""How numbers are written, by the name that a text has for it."""

_OWN_VALUE = re.compile(r"\{(\w+)(?::(\.\d[efg%]))?\}")
"""A value in a sentence that an algorithm from outside brings. A record may be anybody's, so no more can be asked."""


def sentence(kind: str, layer: str | None, values: Mapping[str, Any], names: ClientNames = NO_NAMES) -> str:
    """Return what was decided, in one sentence.

    Args:
        kind: The kind of the decision. One that is not in the catalogue is the sentence itself, such as
            ``"the distance, {distance:.2f}, is too large"``, or a name that is shown as it is.
        layer: The layers that were compared.
        values: The values of the decision. A record that lacks one of them has the kind alone.
        names: The names of the clients.
    """
    known = {**names.in_values(values), "layer": layer}
    if text := _text("decision", kind, known):
        return text
    return kind.replace("_", " ") if kind.isidentifier() else _OWN_VALUE.sub(partial(_own_value, known), kind)


def plain_sentence(kind: str, values: Mapping[str, Any], names: ClientNames = NO_NAMES) -> str:
    """Return what was decided for a reader who knows no statistics, in whole sentences.

    Args:
        kind: The kind of the decision. A kind without such sentences has an empty text.
        values: The values of the decision. A record that lacks one of them has an empty text.
        names: The names of the clients.
    """
    return _text("plain", kind, names.in_values(values))


def event_text(event: Mapping[str, Any], names: ClientNames = NO_NAMES) -> str:
    """Return an event in words: a split, a layer scan, a rejected answer; empty where its keys say it all."""
    if event.get("kind") == "scout":
        layer = event.get("layer") or event.get("best_layer")
        return sentence(str(event.get("why")), layer, event.get("values", {}), names)
    return _text("event", str(event.get("kind")), event)


def event_line(event: Mapping[str, Any], names: ClientNames = NO_NAMES) -> str:
    """Return an event in words, and to whom it happened; where there are no words, its keys and values."""
    text = event_text(event, names)
    if not text:
        known = {key: value for key, value in names.in_values(event).items() if value not in (None, [], {})}
        del known["kind"]
        known |= {key: ", ".join(map(str, value)) for key, value in known.items() if isinstance(value, list)}
        known |= {key: brief(value) for key, value in known.items() if isinstance(value, float)}
        if "clients" in known:
            known["clients"] = names.listed(event["clients"])
        return "; ".join(f"{key} {value}" for key, value in known.items())
    if event.get("clients"):
        return f"clients {names.listed(event['clients'])}: {text}"
    nodes = event.get("nodes") or [node for node in [event.get("node")] if node is not None]
    return f"nodes {ranges(nodes)}: {text}" if nodes and event["kind"] != "split" else text


def say(about: str, kind: str, /, **values: Any) -> str:
    """Return a text of the catalogue with its values.

    Args:
        about: The table of the text, such as ``"client"``.
        kind: Which text.
        values: Its values. One that is None is unknown, and the text must ask for that.
    """
    return fill(WORDS[about][kind], values)


def fill(text: str, values: Mapping[str, Any]) -> str:
    """Return a text of the catalogue with its values, as `say`."""
    return _template(text).render({name: value for name, value in values.items() if value is not None})


def compared_by(measure: str) -> str:
    """Return what a measure of clients means, with its unit and range; its name where that is not known."""
    return COMPARED_BY.get(measure, measure)


def _text(about: str, kind: str, values: Mapping[str, Any]) -> str:
    """Return a text with its values; empty where there is none, or where the record lacks a value of it."""
    if kind not in WORDS[about]:
        return ""
    known = {"layer": None} | {name: value for name, value in values.items() if value is not None}
    try:
        return _template(WORDS[about][kind]).render(known)
    except (TemplateError, TypeError, ValueError, OverflowError):
        return ""


def _own_value(known: Mapping[str, Any], found: re.Match[str]) -> str:
    """Return a value of a sentence from outside; as it stands there if the record has no such number."""
    value = known.get(found[1])
    try:
        return found[0] if value is None else format(value, found[2] or "")
    except (TypeError, ValueError):
        return str(value)


@cache
def _template(text: str) -> Template:
    return _environment().from_string(text)


@cache
def _environment() -> Environment:
    parts = {name: text for table in ("part", "plain_part") for name, text in WORDS[table].items()}
    made = Environment(
        loader=DictLoader(parts), undefined=StrictUndefined, variable_start_string="{", variable_end_string="}"
    )
    made.filters |= {name: f"{{:{spec}}}".format for name, spec in _FORMATS.items()}
    made.filters |= {"chance": _chance, "brief": brief, "number": format_number, "finite": isfinite, "size": size}
    made.filters |= {"joined": joined, "capital": capital, "plural": lambda count, noun: plural(int(count), noun)}
    return made


def _chance(share: float) -> str:
    """Return a probability as a share of cases, with two digits where it is small."""
    if share < 1e-4:
        return "less than 0.01 %"
    return f"{100 * share:.2g} %" if share < 0.1 else f"{100 * share:.0f} %"
