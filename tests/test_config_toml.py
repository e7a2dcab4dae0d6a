import pytest

from fedstrata.config import load
from fedstrata.config.toml import bounded, deeper, parse
from fedstrata.errors import ExperimentError


def nested(depth: int) -> object:
    value: object = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("text", "is_deeper"),
    [
        ("a.b.c = 1", False),
        ("a.b.c.d = 1", True),
        ('"a.b"."c.d" = 1', False),
        ('"a"."b, = "."c".d = 1', True),
        ("[a.b.c.d]", True),
        ("x = {a . b .\tc.d = 1}", True),
        ("x = [0.5, 0.25, 0.125, 0.0625]", False),
        ('x = "a.b.c.d.e" # f.g.h.i.j', False),
        ("x = [[[1]]]", True),
        ("x = [[1], [2], [3], [4]]", False),
        ('x = """[[[ \\""" [[["""', False),
        ("x = '[[[' \ny = '[[['", False),
    ],
)
def test_parts_of_keys_and_open_brackets_are_counted_outside_of_texts(text: str, is_deeper: bool) -> None:
    assert deeper(text, 2) == is_deeper


def test_thirty_two_levels_are_read_and_one_more_is_refused() -> None:
    assert parse(f"x = {'[' * 32}{']' * 32}")
    with pytest.raises(ValueError, match="more than 32 levels"):
        parse(f"x = {'[' * 33}{']' * 33}")


def test_a_mapping_has_the_same_limits_as_a_file() -> None:
    bounded({"a": nested(31), "seed": 2**128 - 1, "name": "x" * 10_000, "k" * 100: 1})
    for given in ({"a": nested(40)}, {"seed": 2**128}, {"name": "x" * 10_001}, {"k" * 101: 1}):
        with pytest.raises(ExperimentError):
            load(given)


@pytest.mark.parametrize("clients", [100_000, 1_000_000])
def test_a_million_clients_are_an_experiment(clients: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedstrata.config.reading.find", lambda name, root: None)
    assert load({"data": {"name": "mnist", "clients": clients}}).data.clients == clients
