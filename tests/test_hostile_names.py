"""Names of clients lead nowhere but into their own folder, whatever is in them."""

import re
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedstrata.flower.scaffold import node_keys
from fedstrata.results.export import _file_name

EXAMPLES = 1_000
HOSTILE = ("..", ".", "/", "\\", "\0", "%2e%2e", "%2f", "%00", "~", "$HOME", "`id`", ";", "|", "\n", "-rf", "*", "CON")
"""What names of files are made of by those who want to get out of a folder."""

names = st.lists(st.sampled_from(HOSTILE) | st.text(max_size=4), max_size=12).map("".join)
many = settings(deadline=None, max_examples=EXAMPLES, suppress_health_check=[HealthCheck.too_slow])


@many
@given(st.lists(names, min_size=1, max_size=3))
def test_the_folder_of_a_node_is_a_plain_name(found: list[str]) -> None:
    keys = node_keys(found)
    assert len(set(keys)) == len(found)
    assert all(re.fullmatch(r"[\w.-]{1,80}", key, re.ASCII) and not key.startswith((".", "-")) for key in keys)


@many
@given(st.lists(names, min_size=1, max_size=3))
def test_the_file_of_a_client_is_a_plain_name(found: list[str]) -> None:
    taken = set[str]()
    files = [_file_name(client, id, taken) for id, client in enumerate(found)]
    assert len({file.lower() for file in files}) == len(found)
    for file in files:
        assert Path(file).name == file and file.startswith("client-") and file.isprintable()


def test_a_name_that_looks_like_another_with_its_number_is_not_taken_for_it() -> None:
    """The third name was given the key, and the file, of the first."""
    names = ["a-2", "a", "A"]
    assert node_keys(names) == ("a-2", "a", "A-2-2")
    taken = set[str]()
    files = [_file_name(client, id, taken) for id, client in enumerate(names)]
    assert files == ["client-a-2", "client-a", "client-A-2-2"]
