from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedstrata.base.errors import PartitionError
from fedstrata.partition import Partition, partition_samples, scheme_from
from fedstrata.partition.partitioning import deal_folds
from fedstrata.partition.scheme import IntArray, class_counts

CLASSES = 5
EXACT: dict[str, dict[str, object]] = {
    "iid": {"scheme": "iid"},
    "rotation": {"scheme": "rotation", "groups": 3},
    "concept": {"scheme": "concept", "groups": 3},
    "majority": {"scheme": "majority", "groups": 3, "share": 0.6},
    "label_groups": {"scheme": "label_groups", "labels": [[0, 1], [1, 2, 3], [4]]},
    "class_pairs": {"scheme": "class_pairs"},
    "mixes": {"scheme": "dirichlet", "alpha": 0.1, "over": "classes"},
    "both": {"scheme": "concept", "groups": 2, "inside": {"scheme": "majority", "groups": 2, "share": 0.6}},
}
VARIED: dict[str, dict[str, object]] = {
    "dirichlet": {"scheme": "dirichlet", "alpha": 1.0},
    "quantity": {"scheme": "quantity", "alpha": 1.0},
    "shards": {"scheme": "shards", "per_client": 2},
    "natural": {"scheme": "natural", "column": "owner"},
    "rotated": {"scheme": "rotation", "groups": 2, "inside": {"scheme": "dirichlet", "alpha": 2.0}},
}
BY_CLASS = ["majority", "label_groups", "class_pairs", "mixes", "dirichlet"]

seeds = st.integers(0, 2**32)
counts = st.integers(5, 8)


def world(seed: int, each: int) -> tuple[IntArray, IntArray]:
    """Labels with `each` samples of each class, and one of 8 owners for each sample, in random order."""
    rng = np.random.default_rng(seed)
    return rng.permutation(np.repeat(np.arange(CLASSES), each)), rng.permutation(np.arange(CLASSES * each) % 8)


def partition_of(
    keys: dict[str, object], clients: int, samples: int, seed: int, test: float = 0.2, folds: int | None = None
) -> tuple[Partition, IntArray]:
    labels, owner = world(seed=clients, each=600)
    scheme, columns = scheme_from(keys), {"owner": owner}
    sizes: dict[str, Any] = {"clients": clients, "samples": samples, "classes": CLASSES}
    return partition_samples(scheme, labels, **sizes, test=test, seed=seed, columns=columns, folds=folds), labels


def mixes(made: Partition, labels: IntArray) -> list[list[int]]:
    both = zip(made.train, made.test, strict=True)
    return [class_counts(labels[np.concatenate(parts)], CLASSES).tolist() for parts in both]


@pytest.mark.parametrize("name", EXACT)
@settings(max_examples=12, deadline=None)
@given(clients=counts, samples=st.integers(1, 30), test=st.floats(0.01, 0.6), seed=seeds)
def test_every_client_has_exactly_the_samples_asked_for(
    name: str, clients: int, samples: int, test: float, seed: int
) -> None:
    made, _ = partition_of(EXACT[name], clients, samples, seed, test)  # Partition refuses a sample that occurs twice
    assert {len(part) for part in made.train} == {samples}
    assert {len(part) for part in made.test} == {max(1, round(samples * test / (1 - test)))}


@pytest.mark.parametrize("name", VARIED)
@settings(max_examples=12, deadline=None)
@given(clients=counts, samples=st.integers(20, 40), seed=seeds)
def test_where_sizes_vary_their_mean_is_what_was_asked_for(name: str, clients: int, samples: int, seed: int) -> None:
    made, _ = partition_of(VARIED[name], clients, samples, seed)
    total = sum(map(len, made.train)) + sum(map(len, made.test))
    assert total == clients * (samples + round(samples / 4))
    for train, test in zip(made.train, made.test, strict=True):
        assert abs(len(test) - 0.2 * (len(train) + len(test))) <= 0.5 or len(test) == 1


@pytest.mark.parametrize("name", ["iid", "rotation", "concept", "mixes", *VARIED])
@settings(max_examples=6, deadline=None)
@given(clients=st.just(8), seed=seeds)
def test_all_there_are_means_every_sample(name: str, clients: int, seed: int) -> None:
    made, labels = partition_of({**EXACT, **VARIED}[name], clients, 0, seed)
    every = np.concatenate([*made.train, *made.test])
    assert np.array_equal(np.sort(every), np.arange(len(labels)))


@pytest.mark.parametrize("name", [*EXACT, *VARIED])
@settings(max_examples=6, deadline=None)
@given(clients=counts, samples=st.sampled_from([0, 20]), seed=seeds)
def test_the_same_seed_gives_the_same_partition(name: str, clients: int, samples: int, seed: int) -> None:
    (one, _), (two, _) = (partition_of({**EXACT, **VARIED}[name], clients, samples, seed) for _ in range(2))
    for a, b in zip((*one.train, *one.test), (*two.train, *two.test), strict=True):
        assert np.array_equal(a, b)
    other, _ = partition_of({**EXACT, **VARIED}[name], clients, samples, seed + 1)
    assert not all(np.array_equal(a, b) for a, b in zip(one.test, other.test, strict=True))


@pytest.mark.parametrize("name", BY_CLASS)
@settings(max_examples=6, deadline=None)
@given(clients=counts, seed=seeds, order=seeds)
def test_the_order_of_the_samples_leaves_the_classes_of_every_client_alone(
    name: str, clients: int, seed: int, order: int
) -> None:
    labels, _ = world(seed=0, each=50)
    moved = np.random.default_rng(order).permutation(labels)
    scheme = scheme_from({**EXACT, **VARIED}[name])
    sizes: dict[str, Any] = {"clients": clients, "samples": 0, "classes": CLASSES}
    one, two = (partition_samples(scheme, each, **sizes, test=0.2, seed=seed) for each in (labels, moved))
    assert mixes(one, labels) == mixes(two, moved)


@settings(max_examples=20, deadline=None)
@given(counts, st.integers(1, CLASSES), st.floats(0.2, 1.0), st.integers(0, 60), seeds)
def test_majority_keeps_its_promise(clients: int, groups: int, share: float, samples: int, seed: int) -> None:
    keys: dict[str, object] = {"scheme": "majority", "groups": groups, "share": share}
    made, labels = partition_of(keys, clients, samples, seed)
    assert made.truth is not None
    for group, mix in zip(made.truth, mixes(made, labels), strict=True):
        assert abs(mix[group] - share * sum(mix)) < 1
        others = mix[:group] + mix[group + 1 :]
        assert max(others) - min(others) <= 1
    assert len({sum(mix) for mix in mixes(made, labels)}) == 1


@settings(max_examples=15, deadline=None)
@given(sizes=st.lists(st.integers(1, 4), min_size=1, max_size=4), name=st.sampled_from(["rotation", "concept"]))
def test_truth_is_the_sizes_that_were_asked_for(sizes: list[int], name: str) -> None:
    made, _ = partition_of({"scheme": name, "sizes": sizes}, sum(sizes), 10, seed=0)
    assert made.truth is not None and np.bincount(made.truth).tolist() == sizes
    pairs = {(int(turn), tuple(row.tolist())) for turn, row in zip(made.turns, made.relabel, strict=True)}
    assert len(pairs) == len(sizes)


@settings(max_examples=8, deadline=None)
@given(alpha=st.sampled_from([1e-3, 1e-2, 0.1, 10.0]), over=st.sampled_from(["clients", "classes"]), seed=seeds)
def test_dirichlet_never_hangs_and_leaves_nobody_short(alpha: float, over: str, seed: int) -> None:
    labels, _ = world(seed=0, each=200)
    keys = {"scheme": "dirichlet", "alpha": alpha, "over": over}
    try:
        made = partition_samples(scheme_from(keys), labels, clients=50, samples=0, test=0.2, seed=seed, classes=CLASSES)
    except PartitionError as error:
        assert over == "clients" and "short" in str(error)
    else:
        assert min(map(len, made.train)) >= 1 and min(map(len, made.test)) >= 1


@settings(max_examples=15, deadline=None)
@given(sizes=st.lists(st.integers(1, 12), min_size=2, max_size=9), test=st.floats(0.05, 0.95), seed=seeds)
def test_no_unit_is_divided_and_no_choice_of_units_is_closer(sizes: list[int], test: float, seed: int) -> None:
    unit = np.repeat(np.arange(len(sizes)), sizes)
    iid = scheme_from({"scheme": "iid"})
    made = partition_samples(iid, unit * 0, clients=1, samples=0, test=test, seed=seed, classes=1, unit=unit)
    assert not set(unit[made.train[0]]) & set(unit[made.test[0]])
    sums = [sum(s for i, s in enumerate(sizes) if chosen >> i & 1) for chosen in range(1, 2 ** len(sizes) - 1)]
    best = min(abs(total - test * sum(sizes)) for total in sums)
    assert abs(len(made.test[0]) - test * sum(sizes)) == pytest.approx(best)


@pytest.mark.parametrize("classes", [5, 6, 7, 10])
def test_majorities_that_are_no_larger_than_the_rest_are_one_group(classes: int) -> None:
    scheme = scheme_from({"scheme": "majority", "groups": 3, "share": 1 / classes})
    labels = np.arange(classes * 60) % classes
    found = partition_samples(scheme, labels, clients=6, samples=classes, test=0.0, seed=0, classes=classes)
    assert found.truth is not None and found.truth.tolist() == [0] * 6


# With the other schemes, a client may have fewer samples than folds.
@pytest.mark.parametrize("name", [*EXACT, "shards", "natural"])
@settings(max_examples=6, deadline=None)
@given(clients=counts, samples=st.sampled_from([0, 20]), folds=st.integers(2, 5), repeat=seeds)
def test_the_seeds_of_a_repeat_test_every_sample_of_every_client_once(
    name: str, clients: int, samples: int, folds: int, repeat: int
) -> None:
    keys, own = {**EXACT, **VARIED}[name], range(repeat * folds, (repeat + 1) * folds)
    made = [partition_of(keys, clients, samples, seed, test=1 / folds, folds=folds)[0] for seed in own]
    for client in range(clients):
        tested = np.sort(np.concatenate([each.test[client] for each in made]))
        for each in made:
            assert np.array_equal(np.sort(np.concatenate([each.train[client], each.test[client]])), tested)
        assert max(len(each.test[client]) for each in made) - min(len(each.test[client]) for each in made) <= 1


units_of_classes = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5)), min_size=2, max_size=20)


@settings(max_examples=60, deadline=None)
@given(units=units_of_classes, folds=st.integers(2, 6), seed=seeds)
def test_folds_have_whole_units_and_as_many_of_each_class_to_one_unit(
    units: list[tuple[int, int]], folds: int, seed: int
) -> None:
    folds = min(folds, len(units))
    classes, sizes = np.array(units).T
    labels, unit = np.repeat(classes, sizes), np.repeat(np.arange(len(units)), sizes)
    found = deal_folds(labels, folds, np.random.default_rng(seed), unit)
    fold_of_unit = [set(found[unit == each].tolist()) for each in range(len(units))]
    assert {len(each) for each in fold_of_unit} == {1}
    dealt = np.array([each.pop() for each in fold_of_unit])
    for some in (np.isin(classes, label) for label in ([0], [1], [2], [3], range(4))):
        of_fold = np.bincount(dealt[some], minlength=folds)
        assert of_fold.max() - of_fold.min() <= 1
    assert np.bincount(dealt, minlength=folds).min() >= 1


@settings(max_examples=30, deadline=None)
@given(labels=st.lists(st.integers(0, 3), min_size=3, max_size=30), seed=seeds)
def test_folds_do_not_depend_on_the_numbers_that_stand_for_the_classes(labels: list[int], seed: int) -> None:
    renamed = np.array([2, 0, 3, 1])[labels]
    one, two = (deal_folds(each, 3, np.random.default_rng(seed)) for each in (np.array(labels), renamed))
    assert np.array_equal(one, two)
