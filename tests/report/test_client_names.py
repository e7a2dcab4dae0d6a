from fedstrata.report.catalogue import sentence
from fedstrata.report.words import NO_NAMES, ClientNames

SITES = ClientNames(("Ghent", "Lyon", "Oslo\x1b[31m"))


def test_clients_without_names_are_listed_as_ranges_of_their_ids() -> None:
    assert NO_NAMES.listed([4, 0, 1, 2]) == "0\N{EN DASH}2, 4" == ClientNames(("0", "1", "2")).listed([0, 1, 2, 4])


def test_names_are_listed_one_by_one_and_on_one_line() -> None:
    assert SITES.listed([1, 0]) == "Lyon, Ghent"
    assert SITES.of(2) == "Oslo\\x1b[31m"
    assert SITES.of(7) == "7"


def test_a_decision_about_a_client_names_it_and_no_other_number() -> None:
    values = {"reference": 1.0, "client": 0.0, "distance": 1.0, "epsilon": 0.5}
    assert sentence("same_direction", None, values, SITES).endswith("client Lyon, the reference")
    said = sentence("newcomer_beyond_epsilon", None, values, SITES)
    assert said.startswith("client Ghent was 1 away")


def test_of_many_clients_some_are_listed_and_the_others_counted() -> None:
    """Every second id is a range of its own, and one range holds many ids."""
    assert NO_NAMES.listed(range(0, 1000, 2)).endswith(", 396, 398 and 300 more")
    assert NO_NAMES.listed(range(100_000)) == "0\N{EN DASH}99999"
    named = ClientNames(tuple(f"site {client}" for client in range(1500)))
    assert named.listed(range(1500)).endswith(", site 199 and 1,300 more")
    assert named.listed(range(200)).endswith(", site 199")
