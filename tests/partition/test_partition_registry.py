import subprocess
import sys
from dataclasses import fields

import pytest

from fedstrata.base.errors import ExperimentError
from fedstrata.partition import PARTITIONS, keys_of, scheme_from
from fedstrata.partition.grouped import Rotation
from fedstrata.partition.ungrouped import Dirichlet

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
    {"scheme": "natural", "column": "subject", "order": "given"},
]


@pytest.mark.parametrize("keys", EVERY, ids=str)
def test_keys_of_returns_the_keys_that_made_a_scheme(keys: dict[str, object]) -> None:
    assert keys_of(scheme_from(keys)) == keys
    assert scheme_from(keys_of(scheme_from(keys))) == scheme_from(keys)


def test_keys_of_writes_defaults_and_leaves_out_what_is_not_there() -> None:
    assert keys_of(Dirichlet(alpha=1.0)) == {"scheme": "dirichlet", "alpha": 1.0, "over": "clients"}
    assert keys_of(Rotation(groups=2)) == {"scheme": "rotation", "groups": 2}


@pytest.mark.parametrize("name", PARTITIONS)
def test_every_scheme_describes_itself_and_its_keys(name: str) -> None:
    kind = PARTITIONS[name]
    description = kind.__doc__ or ""
    assert description.splitlines()[0].endswith(".") and kind.source
    descriptions = "".join(base.__doc__ or "" for base in kind.__mro__)
    assert all(f"        {field.name}: " in descriptions for field in fields(kind))


IID_INSIDE: dict[str, object] = {"scheme": "iid"}
SHARES = {"scheme": "majority", "groups": 2, "share": 0.5}
NATURAL = {"scheme": "natural", "column": "x"}
NESTED = {"scheme": "class_pairs", "inside": {"scheme": "rotation", "groups": 2}}
WRONG: list[tuple[object, dict[str, object], str]] = [
    (None, {}, "partition.scheme: expected one of iid, rotation, "),
    (3, {}, "partition.scheme = 3: unknown partition; expected one of iid, "),
    ("rotations", {}, "partition.scheme = 'rotations': unknown partition; expected one of iid, "),
    ("rotation", {"group": 4}, "partition.group: unknown key; did you mean groups?"),
    ("iid", {"alpha": 1}, "partition.alpha: unknown key; there are no others"),
    ("iid", {"inside": IID_INSIDE}, "partition.inside: unknown key; there are no others"),
    ("rotation", {}, "partition: expected either groups or sizes"),
    ("rotation", {"groups": 2, "sizes": [1, 2]}, "partition: expected either groups or sizes"),
    ("rotation", {"groups": True}, "partition.groups = true: expected a valid integer"),
    ("concept", {"sizes": [3, 0]}, "partition.sizes[1] = 0: expected a number greater than or equal to 1"),
    ("majority", {"groups": 2}, "partition.share: expected a value, found none"),
    ("majority", {"groups": 2, "share": 1.5}, "partition.share = 1.5: expected a number less than or equal to 1"),
    ("label_groups", {"labels": [[0], [1, 1]]}, "partition.labels[1] = [1, 1]: expected a list that names each class"),
    ("label_groups", {"labels": [[0], []]}, "partition.labels[1] = []: List should have at least 1 item"),
    ("dirichlet", {"alpha": 0}, "partition.alpha = 0: expected a number greater than 0"),
    ("dirichlet", {"alpha": float("inf")}, "partition.alpha = inf: "),
    ("dirichlet", {"alpha": 1, "over": "x"}, "partition.over = 'x': expected 'clients' or 'classes'"),
    ("natural", {"column": ""}, "partition.column = '': String should have at least 1 character"),
    ("concept", {"groups": 2, "inside": 3}, "partition.inside = 3: expected a table"),
    ("concept", {"groups": 2, "inside": {"scheme": "shards", "per_client": 0}}, "partition.inside.per_client = 0: "),
    ("class_pairs", {"inside": NATURAL}, "partition.inside = {'scheme': 'natural', 'column': 'x'}: expected a scheme"),
    ("rotation", {"groups": 2, "inside": NESTED}, "partition.inside = {'scheme': 'class_pairs', 'inside': {'scheme'"),
]
"""A scheme, its keys, and how the line about them begins."""

UNFIT: list[tuple[str, dict[str, object], str]] = [
    ("rotation", {"groups": 5}, "partition.groups = 5: expected at most 4, as there are quarter turns"),
    ("rotation", {"groups": 4}, "partition.groups = 4: expected at most 3, the number of clients"),
    ("rotation", {"sizes": [1] * 5}, "partition.sizes = [1, 1, 1, 1, 1]: expected at most 4 groups"),
    ("rotation", {"groups": 2, "inside": SHARES}, "partition.inside.groups = 2: expected at most 1"),
    ("concept", {"sizes": [2, 2]}, "partition.sizes = [2, 2]: expected a sum of 3, the number of clients, found 4"),
    ("concept", {"groups": 5}, "partition.groups = 5: expected at most 4, the number of classes"),
    ("concept", {"groups": 3, "classes": [0, 1]}, "partition.groups = 3: expected at most 2, the number of relabelled"),
    ("concept", {"groups": 2, "classes": [0, 4]}, "partition.classes = [0, 4]: expected classes of 0 to 3"),
    ("concept", {"groups": 1, "classes": [2, 2]}, "partition.classes = [2, 2]: expected a list that names each class"),
    ("majority", {"groups": 5, "share": 0.5}, "partition.groups = 5: expected at most 4, the number of classes"),
    ("majority", {"groups": 4, "share": 0.5}, "partition.groups = 4: expected at most 3, the number of clients"),
    ("label_groups", {"labels": [[0], [3, 4]]}, "partition.labels[1] = [3, 4]: expected classes of 0 to 3"),
    ("label_groups", {"labels": [[0]] * 4}, "partition.labels: expected at most 3 groups, the number of clients"),
    ("class_pairs", {}, "partition.scheme = 'class_pairs': expected at least one client per class, 4, found"),
]
"""What three clients and four classes forbid."""


@pytest.mark.parametrize(("scheme", "keys", "message"), [*WRONG, *UNFIT], ids=str)
def test_wrong_keys_are_named_with_their_value_and_what_is_allowed(
    scheme: object, keys: dict[str, object], message: str
) -> None:
    with pytest.raises(ExperimentError) as caught:
        scheme_from({**keys, "scheme": scheme} if scheme is not None else keys).check(clients=3, classes=4)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_checking_and_partitioning_never_import_torch() -> None:
    script = (
        "import sys, numpy, fedstrata.partition as p\n"
        "for keys in ({'scheme': 'iid'}, {'scheme': 'concept', 'groups': 2}):\n"
        "    scheme, labels = p.scheme_from(keys), numpy.array([0, 1] * 20)\n"
        "    p.partition_samples(scheme, labels, clients=2, samples=0, test=0.2, seed=0, classes=2)\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
