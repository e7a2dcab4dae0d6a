from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from in_process import Peer

from fedstrata.base.errors import InputError, RecordError
from fedstrata.flower.client_registry import NEVER, NO_NODE, ClientRegistry, load_registry, save_registry
from fedstrata.flower.replies import ClientInfo

EMPTY = ClientRegistry(("a", "b"), 3)


@dataclass(frozen=True)
class Claim:
    """What a node says of itself, and what Flower says of it; the public key is a text."""

    key: str
    node: int
    public: str
    name: str
    train: int
    test: int


def claimed(registry: ClientRegistry, claim: Claim, round: int = 0, online: Collection[int] = ()) -> ClientRegistry:
    node = Peer(claim.node, claim.public.encode(), claim.name)
    return registry.register(node, ClientInfo(claim.key, claim.train, claim.test), round, online)


def digits(public: str) -> str:
    return public.encode().hex()


FIRST = Claim("a", 1, "key of a", "a", 20, 5)
MET = claimed(EMPTY, FIRST)


def test_a_listed_key_has_the_id_of_its_place_and_another_the_next_free_one() -> None:
    late = claimed(claimed(EMPTY, Claim("c", 3, "key of c", "", 8, 2), 4), replace(FIRST, key="b", name="b"))
    assert {key: registration.client for key, registration in late.registrations.items()} == {"c": 2, "b": 1}
    assert late.joins() == {0: NEVER, 1: 0, 2: 4}
    assert late.by_id()[2] == ("c", late.registrations["c"]) and 0 not in late.by_id()


@pytest.mark.parametrize(
    ("most", "allowed", "claim"),
    [
        (20, 20, replace(FIRST, train=21)),
        (20, 20, replace(FIRST, train=0)),
        (20, 20, replace(FIRST, test=-1)),
        (0, 10**9, replace(FIRST, train=2**62)),
        (2**62, 10**9, replace(FIRST, test=10**9 + 1)),
    ],
)
def test_a_client_that_claims_more_samples_than_the_federation_allows_is_refused(
    most: int, allowed: int, claim: Claim
) -> None:
    """Its weight in the mean is what it says, and nobody can count."""
    bounded = replace(EMPTY, max_samples=most)
    assert claimed(bounded, replace(FIRST, train=allowed)).registrations["a"].train == allowed
    with pytest.raises(InputError, match=f"node 1 claims the client a with .* samples: expected 1 to {allowed}"):
        claimed(bounded, claim)


def test_no_id_is_left_for_a_stranger() -> None:
    full = claimed(EMPTY, Claim("c", 3, "key of c", "", 8, 2))
    with pytest.raises(InputError, match="a node claims the client d: expected one of a, b; no id is left"):
        claimed(full, Claim("d", 4, "key of d", "", 8, 2))


@pytest.mark.parametrize(
    ("claim", "message"),
    [
        (Claim("a", 2, "another", "b", 20, 5), "node 2 claims the client a, but is registered as b"),
        (Claim("b", 1, "another", "", 20, 5), "node 1 claims the client b, but is the client a"),
        (Claim("b", 2, "key of a", "", 20, 5), "node 2 claims the client b, but is the client a"),
        (Claim("a", 2, "another", "a", 20, 5), "node 2 claims the client a, for whom node 1 speaks"),
    ],
)
def test_a_taken_key_is_refused(claim: Claim, message: str) -> None:
    with pytest.raises(InputError, match=message):
        claimed(MET, claim, online={1, 2})


def test_a_registered_client_is_not_to_be_had_by_a_node_with_another_key_even_when_it_is_away() -> None:
    """Whoever could register a node under the client's name would have its registration else."""
    for name in ("", "a"):
        with pytest.raises(InputError, match="whose node has another public key; register the new"):
            claimed(MET, Claim("a", 2, "another", name, 20, 5), online={2})


PINNED = replace(EMPTY, public_keys={"a": digits("key of a")})


def test_a_client_speaks_by_the_public_key_in_the_operators_folder_alone() -> None:
    assert claimed(PINNED, FIRST).registrations == MET.registrations
    with pytest.raises(InputError, match=r"with another public key than nodes/a/key\.pub in the federation's folder"):
        claimed(PINNED, replace(FIRST, public="another"))


def test_a_new_machine_has_the_registration_once_the_operator_has_its_public_key() -> None:
    moved = replace(MET, public_keys={"a": digits("key of the new machine")})
    again = claimed(moved, Claim("a", 2, "key of the new machine", "a", 20, 5), 7, online={2})
    assert (again.registrations["a"].node, again.registrations["a"].joined) == (2, 0)


def test_nobody_speaks_for_a_client_whose_nodes_public_key_has_changed() -> None:
    same, reasons = MET.without_changed_keys({1: digits("key of a")})
    assert same == MET and reasons == []
    assert MET.without_changed_keys({}) == (MET, []), "one that is away has not changed"
    replaced = replace(MET, public_keys={"a": digits("a new one")})
    for registry, online in ((MET, {1: digits("another")}), (replaced, {1: digits("key of a")})):
        changed, reasons = registry.without_changed_keys(online)
        assert changed.registrations["a"].node == NO_NODE
        assert reasons == ["node 1 does not speak for a any more: its public key has changed"]
        assert changed.without_changed_keys(online) == (changed, []), "it is told once"


@pytest.mark.parametrize("key", ["", "a\nround 1: all is well", "a\x1b[2J", "a\u2028b", "a\u202eb", "x" * 101, " a"])
def test_a_key_that_would_forge_a_line_of_the_log_is_no_key(key: str) -> None:
    with pytest.raises(InputError, match="expected a key of 1 to 100 visible characters") as refused:
        claimed(EMPTY, Claim(key, 1, "key", "", 20, 5))
    assert str(refused.value).isprintable() and len(str(refused.value)) < 200


def test_without_registration_a_restarted_node_is_known_by_its_key_alone() -> None:
    """Its id and its public key are new at every start."""
    loose = claimed(EMPTY, replace(FIRST, name=""))
    assert claimed(loose, Claim("a", 2, "another", "", 20, 5), 5, online={2}).registrations["a"].joined == 0


@pytest.mark.parametrize("known", [("a", "a"), ("a", "b", "c", "d")])
def test_keys_that_cannot_be_clients_are_refused(known: tuple[str, ...]) -> None:
    with pytest.raises(InputError, match="expected at most 3 different keys"):
        ClientRegistry(known, 3)


@pytest.mark.parametrize("node", [1, 2**64 - 1])
def test_who_was_met_is_kept_in_a_file(node: int, tmp_path: Path) -> None:
    """Flower draws the ids of nodes from all numbers of 64 bits."""
    path = tmp_path / "clients.json"
    assert load_registry(path, EMPTY) == EMPTY
    met = claimed(EMPTY, replace(FIRST, node=node))
    save_registry(path, met)
    assert load_registry(path, EMPTY) == met and met.registrations["a"].node == node
    for damaged in ("{", '{"a": {"client": 1}}', "[]"):
        path.write_text(damaged)
        with pytest.raises(RecordError, match="expected the registered clients, found"):
            load_registry(path, EMPTY)
