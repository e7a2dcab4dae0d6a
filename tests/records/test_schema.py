import json
from types import MappingProxyType
from typing import Any

import pytest

from fedstrata.base.files import json_text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"a": 0.1, "b": [1, None, "x"]}, '{"a": 0.1, "b": [1, null, "x"]}'),
        ([float("nan"), float("inf"), 1.0], "[null, null, 1.0]"),
        (
            MappingProxyType({"a": (1, float("inf")), "b": MappingProxyType({"c": ()})}),
            '{"a": [1, null], "b": {"c": []}}',
        ),
    ],
)
def test_json_has_null_for_what_is_not_finite_and_takes_every_mapping(value: Any, text: str) -> None:
    assert json_text(value) == text
    assert json_text(value, indent=1) == json.dumps(json.loads(text), indent=1)
