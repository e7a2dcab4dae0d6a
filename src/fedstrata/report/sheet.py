"""What all pages have in common: one HTML text that needs nothing else, fetches nothing and runs two known scripts."""

import json
from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from fedstrata.files import replace_file
from fedstrata.report.pictures import Plot
from fedstrata.report.words import brief, duration, happened, number, plural, ranges, size


def environment() -> Environment:
    """The templates beside this file; whatever they show is escaped."""
    made = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"number": number, "brief": brief, "size": size, "duration": duration, "ranges": ranges}
    made.globals |= {"plural": plural, "happened": happened}
    return made


def drawn(template: str, pictures: Sequence[Plot], frames: Any = None, **content: Any) -> str:
    """A page with pictures.

    Args:
        template: that extends ``base.html``.
        pictures: that have a place on the page.
        frames: of the slider through the matrices, if there is one.
        content: what else the template shows.
    """
    templates = environment()
    # `</script` cannot occur in the bundle's own text as plotly ships it; the names of a run never get in here.
    plotly, script = get_plotlyjs(), templates.get_template("page.js").render()
    return templates.get_template(template).render(
        figures=_json({plot.name: plot.figure for plot in pictures}),
        frames=_json(frames),
        plotly=Markup(plotly),
        script=Markup(script),
        # Only these two texts may run, whatever a name contains, and nothing may be fetched.
        hashes=" ".join(map(hashed, (plotly, script))),
        **content,
    )


def hashed(script: str) -> str:
    """How a content security policy names a script that may run."""
    return f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'"


def replace(page: Path, text: str) -> Path:
    """Write a page in one step, so that a reader never sees half of one."""
    replace_file(page, text.encode())
    return page


def _json(content: Any) -> Markup:
    """Plain values for the page's script; no text in them can end it."""
    return Markup(json.dumps(content, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c"))
