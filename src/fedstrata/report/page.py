"""The page: records in, one HTML file out that needs nothing else."""

import json
import os
from base64 import b64encode
from hashlib import sha256
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from fedstrata.report.groups import Groups
from fedstrata.report.pictures import pictures
from fedstrata.report.pictures.explorer import explorer
from fedstrata.report.read import read
from fedstrata.report.records import Records
from fedstrata.report.summary import assumption, described, sentence, tiles, title
from fedstrata.report.table import clients, means
from fedstrata.report.words import brief, duration, number, plural, ranges, size, told

NOT_SHOWN = "kept"
"""Pictures that the slider has too."""


def build(folder: Path) -> Path:
    """Write ``report.html`` into a run folder, from the records there alone.

    The same records give the same bytes. The page is replaced in one step, so a reader never sees half of one.

    Returns:
        The path of the page.

    Raises:
        RecordError: when the folder is not that of a run, or its rounds are damaged before the last line.
    """
    page = folder / "report.html"
    partial = folder / "report.html.partial"
    partial.write_text(render(read(folder)), encoding="utf-8", newline="\n")
    os.replace(partial, page)
    return page


def render(records: Records) -> str:
    """The page as text."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"number": number, "brief": brief, "size": size, "duration": duration, "ranges": ranges}
    environment.globals |= {"plural": plural, "told": told}
    groups = Groups(records)
    plots = pictures(groups) if records.rounds else {}
    shown = {name: some for name, some in plots.items() if name != NOT_SHOWN}
    frames = explorer(groups) if groups.sought else None
    # `</script` cannot occur in the bundle's own text as plotly ships it; the names of a run never get in here.
    plotly = get_plotlyjs()
    script = environment.get_template("script.html").render()
    return environment.get_template("page.html").render(
        records=records,
        groups=groups,
        last=records.last,
        title=title(records),
        sentence=sentence(groups),
        assumption=assumption(records),
        described=described(records),
        tiles=tiles(groups),
        plots=shown,
        drawn=_json({plot.name: plot.figure for some in shown.values() for plot in some}),
        explorer=frames,
        frames=_json(frames),
        means=means(groups),
        clients=clients(groups),
        plotly=Markup(plotly),
        script=Markup(script),
        # Only these two texts may run, whatever a name contains, and nothing may be fetched.
        hashes=" ".join(f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'" for text in (plotly, script)),
    )


def _json(content: Any) -> Markup:
    """Plain values for the page's script; no text in them can end it."""
    return Markup(json.dumps(content, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c"))
