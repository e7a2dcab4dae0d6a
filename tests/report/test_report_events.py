import pytest

from fedstrata.report.catalogue import event_text


@pytest.mark.parametrize(
    ("event", "text"),
    [
        ({"kind": "split", "node": 1, "into": [2, 3], "layer": "fc"}, "node 1 split into 2 and 3 on fc"),
        ({"kind": "rejected", "reason": "not finite"}, "a number in the answer is not finite"),
        ({"kind": "rejected", "reason": "negative variance"}, "of a normalisation layer would be negative"),
        ({"kind": "diverged", "reason": "loss", "loss": None, "guessing": 2.3}, "loss is not finite; guessing has 2.3"),
        ({"kind": "reversed", "clients": [1]}, "they are not in its mean until they point forwards"),
        ({"kind": "doubted", "clients": [1]}, "these are split off, and others go on without them"),
        ({"kind": "oversized", "clients": [1]}, "much longer than those of the cluster; they are not in its mean"),
        ({"kind": "clipped", "clients": [1]}, "they count as shorter ones"),
        ({"kind": "one_sided", "clients": [1]}, "in nearly all columns; they are not in its mean"),
        ({"kind": "copied", "clients": [1]}, "the same update as another client of the cluster, which counts once"),
        ({"kind": "multi_round", "node": 0}, "are trained beside one for all for some rounds, and compared then"),
        ({"kind": "multi_round_given_up", "node": 0}, "too few clients answered, or a model diverged"),
        ({"kind": "drifted", "clients": [1]}, "as when data change; all models are offered in the next round"),
        ({"kind": "reset", "clients": [1]}, "they start from the shared ones again"),
        ({"kind": "join", "clients": [1]}, ""),
    ],
)
def test_an_event_is_described_where_its_keys_do_not_say_it(event: dict[str, object], text: str) -> None:
    assert event_text(event).endswith(text)
