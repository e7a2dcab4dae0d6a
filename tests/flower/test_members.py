from collections.abc import Mapping
from pathlib import Path

import pytest
from in_process import Peer, Ticks

from fedstrata.base.errors import EngineError, InputError, RecordError
from fedstrata.flower.members import NEVER, Members

A, B = Peer(1, b"key of a", "a"), Peer(2, b"key of b", "b")
STRANGER = Peer(3, b"key of c", "c")


class Heard(list[str]):
    """What was told, line by line."""

    def of(self, places: int = 3, keys: Mapping[str, str] | None = None, **planned: int) -> Members:
        """Members a and b of a run with so many places."""
        rounds = {"ab".index(name): round for name, round in planned.items()}
        return Members(["a", "b"], places, keys or {}, rounds, self.append)


@pytest.fixture
def heard() -> Heard:
    return Heard()


def test_a_listed_name_has_the_id_of_its_place_and_another_the_next_free_one(heard: Heard) -> None:
    members = heard.of()
    members.update([STRANGER], 4)
    members.update([STRANGER, B], 5)
    assert members.nodes == {2: 3, 1: 2}
    assert members.joins == {0: NEVER, 1: 5, 2: 4}
    assert members.all_names == ("a", "b", "c") and heard == []


def test_a_client_joins_when_it_comes_and_not_before_it_may(heard: Heard) -> None:
    members = heard.of(a=6, b=2)
    members.update([A, B], 4)
    assert members.joins == {0: 6, 1: 4, 2: NEVER}
    members.update([B], 7)
    members.update([A, B], 8)
    assert members.joins[0] == 6, "one that was away has joined before"


def test_a_place_that_nobody_has_has_a_name_that_no_node_has(heard: Heard) -> None:
    assert heard.of(4).all_names == ("a", "b", "free place 2", "free place 3")


def test_a_node_without_a_name_is_called_by_its_id() -> None:
    members = Members([])
    members.update([Peer(8, b""), Peer(7, b"")], 0)
    assert members.names == ["7", "8"]
    members.limit(2)
    assert members.nodes == {0: 7, 1: 8} and members.joins == {0: 0, 1: 0}


def test_no_place_is_left_for_a_stranger_which_is_told_once(heard: Heard) -> None:
    members = heard.of(2)
    for round in range(3):
        members.update([A, STRANGER], round)
    assert members.nodes == {0: 1}
    assert heard == ["node 3 is refused: no place is left for c beside a, b"]


def test_a_second_node_of_a_name_is_refused_as_long_as_the_first_is_there(heard: Heard) -> None:
    members = heard.of()
    members.update([A], 0)
    other = Peer(0, b"another", "a")
    members.update([other, A], 1)
    assert members.nodes == {0: 1}
    assert heard == ["node 0 is refused: node 1 is connected under the same name, a"]
    members.update([other], 2)
    assert (members.nodes, members.joins[0]) == ({0: 0}, 0)


def test_nobody_speaks_for_a_client_with_another_public_key_than_the_operator_has(heard: Heard) -> None:
    """Whoever could register a node under the client's name would have its place else."""
    members = heard.of(keys={"a": b"key of a".hex()})
    members.update([A], 0)
    assert members.nodes == {0: 1}
    for node in (2, 1):  # another node, and the same one with a new key
        members.update([Peer(node, b"another", "a")], 1)
        assert members.nodes == {}
    assert heard[0] == ("node 2 is refused: it has another public key than nodes/a/key.pub in the federation's folder")


@pytest.mark.parametrize(
    "name", ["a\nround 1: all is well", "a\x1b[2J", "a\u2028b", "a\u202eb", "x" * 101, " a", "free place 2"]
)
def test_a_name_that_would_forge_a_line_of_the_log_is_no_name(name: str, heard: Heard) -> None:
    heard.of().update([Peer(1, b"", name)], 0)
    assert heard == [
        "node 1 is refused: expected a name of 1 to 100 visible characters that does not begin with 'free place'"
    ]


@pytest.mark.parametrize("names", [["a", "a"], ["a", "b", "c", "d"]])
def test_names_that_cannot_be_clients_are_refused(names: list[str]) -> None:
    with pytest.raises(InputError, match=r"expected (different names|at most 3 names)"):
        Members(names, 3)


def test_too_few_nodes_are_an_error_when_time_is_up(heard: Heard) -> None:
    ticks = Ticks()
    with pytest.raises(
        EngineError, match=r"expected 2 nodes of a, b within 5 s, found b; start the other nodes, or lo"
    ):
        heard.of().wait(lambda: [B], 2, 5.0, ticks.clock, key="min_clients")
    assert ticks.time == 5


def test_those_that_are_listed_are_waited_for_by_name(heard: Heard) -> None:
    ticks = Ticks()
    with pytest.raises(EngineError, match="expected 2 nodes of a, b, c within 5 s, found a, c"):
        heard.of().wait(lambda: [A, STRANGER], ("a", "b"), 5.0, ticks.clock, key="min_clients")


def test_a_resumed_run_keeps_the_ids_of_its_clients(heard: Heard, tmp_path: Path) -> None:
    """Whoever is listed since then comes behind them, and who is not listed any more keeps its place."""
    path, before = tmp_path / "nodes.json", heard.of(4)
    before.update([A, B, STRANGER], 0)
    before.save(path)
    later = Members(["a", "b", "c", "d"], 4)
    assert later.load(path) and later.all_names == ("a", "b", "c", "d")
    for listed in (["a", "b", "d"], ["b"]):
        with pytest.raises(InputError, match="expected those of the run first, a, b, c"):
            Members(listed, 4).load(path)


def test_those_that_come_in_time_are_waited_for(heard: Heard) -> None:
    ticks, members = Ticks(), heard.of()
    members.wait(lambda: [A, B] if ticks.time >= 3 else [A], 2, 5.0, ticks.clock, round=4, key="min_clients")
    assert ticks.time == 3 and members.joins == {0: 4, 1: 4, 2: NEVER}


def test_who_was_met_is_kept_in_a_file(heard: Heard, tmp_path: Path) -> None:
    path, before = tmp_path / "nodes.json", heard.of(4)
    again = heard.of(4)
    again.load(path)
    assert again.all_names == before.all_names, "there is no file yet"
    before.update([A, STRANGER], 3)
    before.save(path)
    again.load(path)
    assert (again.all_names, again.joins) == (before.all_names, before.joins)
    alone = Members([])
    alone.load(path)
    assert (alone.all_names, alone.joins) == (before.all_names, before.joins)
    for damaged in ("{", '{"places": 1}', '{"places": 1, "clients": [{"name": "a", "joined": "soon"}]}', "[]"):
        path.write_text(damaged)
        with pytest.raises(RecordError, match="expected the nodes of the run, found"):
            again.load(path)
