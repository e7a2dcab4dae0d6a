"""What takes longer to make than most tests take, made once in this process: templates, Plotly's script, the digits."""

from functools import cache

from fedstrata.data import libraries
from fedstrata.report import template

template.templates = cache(template.templates)
template.get_plotlyjs = cache(template.get_plotlyjs)  # type: ignore[attr-defined]  # which it imports
template.script_hash = cache(template.script_hash)
libraries.read_digits = cache(libraries.read_digits)
