import subprocess
import sys
from dataclasses import fields

import pytest

from fedstrata.errors import ExperimentError
from fedstrata.partition import PARTITIONS, Scheme, keys_of, scheme_from
from fedstrata.partition.alike import Rotation
from fedstrata.partition.plain import IID, Dirichlet, Natural
from fedstrata.partition.skewed import ClassPairs, Majority

EVERY: list[dict[str, object]] = [
    {"scheme": "iid"},
    {"scheme": "rotation", "groups": 4},
    {"scheme": "rotation", "sizes": [12, 5, 3]},
    {"scheme": "concept", "groups": 2, "inside": {"scheme": "quantity", "alpha": 0.5}},
    {"scheme": "majority", "groups": 4, "share": 0.8},
    {"scheme": "label_groups", "labels": [[0, 1], [1, 2, 3]]},
    {"scheme": "class_pairs", "inside": {"scheme": "dirichlet", "alpha": 1.0, "over": "clients"}},
    {"scheme": "shards", "per_client": 3},
    {"scheme": "dirichlet", "alpha": 0.3, "over": "classes"},
    {"scheme": "quantity", "alpha": 1.0},
    {"scheme": "natural", "column": "subject"},
]


@pytest.mark.parametrize("keys", EVERY, ids=str)
def test_keys_of_returns_the_keys_that_made_a_scheme(keys: dict[str, object]) -> None:
    assert keys_of(scheme_from(keys)) == keys
    assert scheme_from(keys_of(scheme_from(keys))) == scheme_from(keys)


def test_keys_of_writes_defaults_and_leaves_out_what_is_not_there() -> None:
    assert keys_of(Dirichlet(alpha=1.0)) == {"scheme": "dirichlet", "alpha": 1.0, "over": "clients"}
    assert keys_of(Rotation(groups=2)) == {"scheme": "rotation", "groups": 2}


def test_a_scheme_may_be_given_ready_made() -> None:
    assert scheme_from({"scheme": "rotation", "groups": 2, "inside": IID()}) == Rotation(groups=2, inside=IID())


@pytest.mark.parametrize("name", PARTITIONS)
def test_every_scheme_describes_itself_and_its_keys(name: str) -> None:
    kind = PARTITIONS[name]
    description = kind.__doc__ or ""
    assert description.splitlines()[0].endswith(".") and kind.source
    assert all(f"        {field.name}: " in description for field in fields(kind))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({}, "partition.scheme is missing; known are iid, rotation, "),
        ({"scheme": 3}, "partition.scheme = 3: unknown; known are iid, "),
        (
            {"scheme": "rotations"},
            "partition.scheme = 'rotations': unknown (did you mean rotation?); known are iid, ",
        ),
        (
            {"scheme": "rotation", "group": 4},
            "partition.group = 4: unknown to rotation (did you mean groups?); its keys are groups, sizes, inside",
        ),
        ({"scheme": "iid", "alpha": 1}, "partition.alpha = 1: unknown to iid; it has no keys"),
        (
            {"scheme": "iid", "inside": {"scheme": "iid"}},
            "partition.inside = {'scheme': 'iid'}: unknown to iid; it has no groups to deal inside; rotation, ",
        ),
        ({"scheme": "rotation"}, "partition: give either groups or sizes"),
        ({"scheme": "rotation", "groups": 2, "sizes": [1, 2]}, "partition: give either groups or sizes"),
        ({"scheme": "rotation", "groups": "2"}, "partition.groups = '2': input should be a valid integer"),
        ({"scheme": "rotation", "groups": True}, "partition.groups = true: input should be a valid integer"),
        ({"scheme": "rotation", "groups": 0}, "partition.groups = 0: input should be greater than or equal to 1"),
        ({"scheme": "concept", "sizes": []}, "partition.sizes = []: "),
        (
            {"scheme": "concept", "sizes": [3, 0]},
            "partition.sizes[1] = 0: input should be greater than or equal to 1",
        ),
        ({"scheme": "majority", "groups": 2}, "partition.share is missing; majority needs it"),
        (
            {"scheme": "majority", "groups": 2, "share": 1.5},
            "partition.share = 1.5: input should be less than or eq",
        ),
        (
            {"scheme": "label_groups", "labels": [[0], [1, 1]]},
            "partition.labels[1] = [1, 1]: a class is named twice",
        ),
        ({"scheme": "label_groups", "labels": [[0], []]}, "partition.labels[1] = []: "),
        ({"scheme": "label_groups", "labels": [[0], [-1]]}, "partition.labels[1][0] = -1: input should be greater"),
        ({"scheme": "dirichlet", "alpha": 0}, "partition.alpha = 0: input should be greater than 0"),
        ({"scheme": "dirichlet", "alpha": float("nan")}, "partition.alpha = nan: "),
        ({"scheme": "dirichlet", "alpha": float("inf")}, "partition.alpha = inf: "),
        (
            {"scheme": "dirichlet", "alpha": 1, "over": "x"},
            "partition.over = 'x': input should be 'clients' or 'cl",
        ),
        ({"scheme": "natural", "column": ""}, "partition.column = '': "),
        ({"scheme": "concept", "groups": 2, "inside": 3}, "partition.inside = 3: must be a table with a scheme"),
        (
            {"scheme": "concept", "groups": 2, "inside": {"scheme": "shards", "per_client": 0}},
            "partition.inside.per_client = 0: input should be greater than or equal to 1",
        ),
        (
            {"scheme": "concept", "groups": 2, "inside": {"scheme": "natural", "column": "x"}},
            "partition.inside = {'scheme': 'natural', 'column': 'x'}: a column of the data cannot be dealt inside",
        ),
        (
            {"scheme": "class_pairs", "inside": {"scheme": "majority", "groups": 2, "share": 1}},
            "partition.inside = {'scheme': 'majority', 'groups': 2, 'share': 1}: its groups would differ by the cl",
        ),
        (
            {
                "scheme": "rotation",
                "groups": 2,
                "inside": {"scheme": "class_pairs", "inside": {"scheme": "rotation", "groups": 2}},
            },
            "partition.inside = {'scheme': 'class_pairs', 'inside': {'scheme': 'rotation'...: its ",
        ),
    ],
    ids=str,
)
def test_wrong_keys_are_named_with_their_value_and_what_is_allowed(keys: dict[str, object], message: str) -> None:
    with pytest.raises(ExperimentError) as caught:
        scheme_from(keys)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"scheme": "rotation", "groups": 5}, "partition.groups = 5: at most 4, as there are quarter turns"),
        ({"scheme": "rotation", "groups": 4}, "partition.groups = 4: at most 3, the number of clients"),
        ({"scheme": "rotation", "sizes": [1] * 5}, "partition.sizes = [1, 1, 1, 1, 1]: at most 4 groups, as there"),
        (
            {"scheme": "concept", "sizes": [2, 2]},
            "partition.sizes = [2, 2]: they sum to 4 and must sum to the number of clients, 3",
        ),
        ({"scheme": "concept", "groups": 5}, "partition.groups = 5: at most 4, the number of classes"),
        (
            {"scheme": "majority", "groups": 5, "share": 0.5},
            "partition.groups = 5: at most 4, the number of classes",
        ),
        (
            {"scheme": "majority", "groups": 4, "share": 0.5},
            "partition.groups = 4: at most 3, the number of clients",
        ),
        (
            {"scheme": "label_groups", "labels": [[0], [3, 4]]},
            "partition.labels[1] = [3, 4]: the classes are 0 to 3",
        ),
        (
            {"scheme": "label_groups", "labels": [[0]] * 4},
            "partition.labels: 4 groups, at most 3, the number of cli",
        ),
        (
            {"scheme": "class_pairs"},
            "partition.scheme = 'class_pairs': needs at least one client per class, 4, there",
        ),
        (
            {"scheme": "rotation", "groups": 2, "inside": {"scheme": "majority", "groups": 2, "share": 0.5}},
            "partition.inside.groups = 2: at most 1, the number of clients",
        ),
    ],
    ids=str,
)
def test_check_says_what_three_clients_and_four_classes_forbid(keys: dict[str, object], message: str) -> None:
    with pytest.raises(ExperimentError) as caught:
        scheme_from(keys).check(clients=3, classes=4)
    assert str(caught.value).startswith(message)


def test_check_needs_different_pairs_and_other_classes() -> None:
    with pytest.raises(ExperimentError, match="needs at least 3 classes for different pairs, there are 2"):
        ClassPairs().check(clients=9, classes=2)
    with pytest.raises(ExperimentError, match=r"partition.share = 0.5: must be 1 where there is one class"):
        Majority(groups=1, share=0.5).check(clients=9, classes=1)


@pytest.mark.parametrize(
    "scheme", [IID(), Natural(column="x"), Rotation(groups=4), Rotation(sizes=(3, 2), inside=IID())]
)
def test_check_accepts_what_fits(scheme: Scheme) -> None:
    scheme.check(clients=5, classes=10)


def test_checking_and_dealing_never_import_torch() -> None:
    script = (
        "import sys, fedstrata.partition as p\n"
        "for keys in ({'scheme': 'iid'}, {'scheme': 'concept', 'groups': 2}):\n"
        "    p.deal(keys, [0, 1] * 20, clients=2, samples=0, test=0.2, seed=0, classes=2)\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
