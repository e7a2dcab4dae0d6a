"""What takes longer to make than most tests take, made once in this process: compiled templates, and the digits."""

from functools import cache

from fedstrata.data import digits
from fedstrata.report import template

template.templates = cache(template.templates)
digits.read_digits = cache(digits.read_digits)
