import json
from types import MappingProxyType
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fedstrata.records.json_text import finite, to_indented_json, to_json

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=20,
)


@given(VALUES)
def test_json_is_that_of_the_standard_library_with_null_for_what_is_not_finite(value: Any) -> None:
    assert to_json(value) == json.dumps(finite(value), allow_nan=False)
    assert to_indented_json(value) == json.dumps(finite(value), allow_nan=False, indent=1)


def test_mappings_and_tuples_of_every_kind_can_be_written() -> None:
    value = MappingProxyType({"a": (1, float("inf")), "b": MappingProxyType({"c": (), "d": ((2,), {})})})
    assert to_json(value) == json.dumps(finite(value))
    assert to_indented_json(value) == json.dumps(finite(value), indent=1)
