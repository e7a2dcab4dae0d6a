"""Pages from templates: one HTML text that needs nothing else, fetches nothing and runs only known scripts."""

import json
from base64 import b64encode
from collections.abc import Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from fedstrata.report.catalogue import WORDS, fill, plain_sentence, sentence
from fedstrata.report.drawing import Chart
from fedstrata.report.words import brief, capital, duration, format_number, plural, ranges, size


@cache
def templates() -> Environment:
    """Return the templates in the folder ``templates``; whatever they show is escaped."""
    made = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"number": format_number, "brief": brief, "size": size, "duration": duration, "ranges": ranges}
    made.globals |= {
        "plural": plural,
        "capital": capital,
        "words": WORDS,
        "fill": fill,
        "decision_text": sentence,
        "plain_text": plain_sentence,
    }
    return made


def render_page(
    template: str, charts: Sequence[Chart], matrices: Any = None, clients: Any = None, /, **content: Any
) -> str:
    """Return a page with charts.

    Args:
        template: The name of a template that extends ``base.html``.
        charts: The charts that have a place on the page.
        matrices: The data of the slider through the matrices; None where there is no slider.
        clients: What the page shows of a client that is clicked; None where it has no details.
        content: What else the template shows.
    """
    # The text of the bundle, as plotly ships it, holds no `</script`; the names of a run never get into it.
    plotly = get_plotlyjs()
    script = templates().get_template("page.js").render()
    return (
        templates()
        .get_template(template)
        .render(
            figures=_json({chart.name: chart.figure for chart in charts}),
            matrices=_json(matrices),
            client_details=_json(clients),
            plotly=Markup(plotly),
            script=Markup(script),
            # Only these two texts may run, whatever a name contains, and nothing may be fetched.
            hashes=f"{script_hash(plotly)} {script_hash(script)}",
            **content,
        )
    )


def script_hash(script: str) -> str:
    """Return how a content security policy names a script that may run."""
    return f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'"


def _json(content: Any) -> Markup:
    """Return plain values for the script of the page; no text in them can end it."""
    return Markup(json.dumps(content, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c"))
