"""Every kind of decision and of event has its sentence, made of the values that it has."""

import pytest

from fedstrata.report.catalogue import COMPARED_BY, SIMILARITIES, WORDS, event_text, plain_sentence, sentence
from fedstrata.report.words import ClientNames

THEOREM = {"first_part": 2.0, "second_part": 3.0, "cross_max": -0.5, "bound": 0.866, "gamma": 0.5}
SIDES = {"reference": 4.0, "with_reference": 2.0, "without": 3.0, "cross_mean": -0.25, "at_ending": 0.0}
PREFERRED = {"round": 3.0, "p": 0.001, "level": 0.025}
ASKED = {"answered": 4, "asked": 5, "not_ready": 1, "min_split": 2, "quorum": 0.5}
UNSTABLE = {"every_member": 1.0, "stability": 0.02, "max_stability": 0.04, "epsilon": 0.03}
FEW = {"round": 2.0, "members": 3.0, "least": 4.0, "samples": 16.0}
PERSONAL = {**PREFERRED, "gain": 0.5, "groups": 2, "p_gain": 0.004, "level_gain": 0.025}
SCAN = {"compared_clients": 20.0, "rounds": 1.0, "level": 0.02, "correlation": 0.8, "p": 0.001, "agreement": 0.95}
LARGER = {**SCAN, "largest_correlation": 0.95, "largest_p": 0.2}


@pytest.mark.parametrize(
    ("kind", "values", "words"),
    [
        ("too_few_members", ASKED, "4 of 5 asked members answered, 1 of them too few times since"),
        ("no_stable_layer", UNSTABLE, "no layer is stable in every member: 0.04 is not below 0.03"),
        ("split", THEOREM, "2 and 3 clients, largest cosine across -0.500, Theorem 1's bound 0.866 is above gamma"),
        ("split", SIDES, "2 clients with client 4, the reference, and 3 without; mean cosine across -0.250"),
        ("no_separation", {**SCAN, "bias_p": 0.001}, "20 clients in 1 round may still be there, and the bias of"),
        ("p_above_level", PREFERRED, "p = 0.001, level 0.025 in round 3; the candidate groups differ most in conv"),
        (
            "groups_differ",
            {**PREFERRED, "gain": 0.5, "groups": 4},
            "models of 4 groups lower the mean loss on such data by",
        ),
        (
            "groups_differ",
            PERSONAL,
            "of 2 groups lower the mean loss on such data beyond chance (by 0.5 nats, p = 0.004",
        ),
        ("groups_on_trial", {**PREFERRED, "gain": 0.5, "groups": 3}, "personal models of 3 groups are compared next"),
        ("too_few_for_trial", FEW, "3 members answered, and 4 with at least 16 training samples are needed"),
        ("groups_differ_without_gain", {**PREFERRED, "gain": -0.5, "groups": 1}, "do not lower the mean loss on such"),
        ("groups_differ_without_gain", PERSONAL, "do not lower the mean loss on such data beyond chance"),
        ("layer_chosen", {**SCAN, "agreement": 0.3}, "but the choice is unstable, as only 30% of repeats"),
        ("layer_chosen", LARGER, "that of another layer is 0.95, but by itself it may be chance (p = 0.2), and 95%"),
    ],
)
def test_a_decision_is_told_by_its_values(kind: str, values: dict[str, float], words: str) -> None:
    assert words in sentence(kind, "conv", values)


def test_an_unknown_kind_is_told_by_its_name() -> None:
    assert sentence("some_new_kind", None, {}) == "some new kind" and "some_new_kind" not in WORDS["decision"]


def test_an_algorithm_from_outside_brings_its_own_sentence() -> None:
    values = {"far": 0.25, "client": 1.0}
    names = ClientNames(("Ghent", "Lyon"))
    told = sentence("{client} is {far:.1f} away, {near} is {far}", None, values, names)
    assert told == "Lyon is 0.2 away, {near} is 0.25"
    told = sentence("{far:999999999d} {far.real} {client:.2f}", None, values, names)
    assert told == "{far:999999999d} {far.real} Lyon"


def test_every_threshold_and_every_similarity_is_explained() -> None:
    thresholds = WORDS["threshold"]
    assert {*thresholds, *thresholds.values()} <= {*WORDS["value"]}
    assert {*SIMILARITIES} <= {*COMPARED_BY}


@pytest.mark.parametrize(
    ("p", "text"), [(0.4, "in 40 % of cases"), (0.012, "in 1.2 %"), (1e-15, "in less than 0.01 %")]
)
def test_chance_is_told_in_plain_words(p: float, text: str) -> None:
    assert text in plain_sentence("groups_differ", {**PREFERRED, "p": p})


@pytest.mark.parametrize(
    ("kind", "values", "words"),
    [
        ("groups_differ", PREFERRED, "A model for each group fitted such data better than one model did."),
        (
            "groups_differ",
            PERSONAL,
            "The personal models that clients make from a model for each group fitted such data",
        ),
        ("too_few_for_trial", FEW, "Groups were not looked for: at least 4 clients with 16 training samples each"),
        ("groups_differ_without_gain", PREFERRED, "A model for each group did not fit such data better"),
        ("groups_differ_without_gain", PERSONAL, "did not clearly fit such data better"),
    ],
)
def test_a_trial_is_told_in_plain_words(kind: str, values: dict[str, float], words: str) -> None:
    assert words in plain_sentence(kind, values)


@pytest.mark.parametrize(
    ("event", "text"),
    [
        ({"kind": "split", "node": 1, "into": [2, 3], "layer": "fc"}, "node 1 split into 2 and 3 on fc"),
        ({"kind": "rejected", "reason": "not finite"}, "a number in the answer is not finite"),
        ({"kind": "diverged", "reason": "loss", "loss": None, "guessing": 2.3}, "loss is not finite; guessing has 2.3"),
        ({"kind": "join", "clients": [1]}, ""),
    ],
)
def test_an_event_is_described_where_its_keys_do_not_say_it(event: dict[str, object], text: str) -> None:
    assert event_text(event).endswith(text)
