import pytest

from fedstrata.report.catalogue import event_text


@pytest.mark.parametrize(
    ("event", "text"),
    [
        ({"kind": "split", "node": 1, "into": [2, 3], "layer": "fc"}, "node 1 split into 2 and 3 on fc"),
        ({"kind": "rejected", "reason": "not finite"}, "a number in the answer is not finite"),
        ({"kind": "diverged", "reason": "loss", "loss": None, "guessing": 2.3}, "loss is not finite; guessing has 2.3"),
        ({"kind": "copied", "clients": [1]}, "the same update as another client of the cluster, which counts once"),
        ({"kind": "join", "clients": [1]}, ""),
    ],
)
def test_an_event_is_described_where_its_keys_do_not_say_it(event: dict[str, object], text: str) -> None:
    assert event_text(event).endswith(text)
