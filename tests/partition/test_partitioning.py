from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedstrata.base.errors import PartitionError
from fedstrata.partition import Partition, Scheme, hold_out, partition_samples, scheme_from
from fedstrata.partition.scheme import IntArray, class_counts
from fedstrata.partition.ungrouped import IID, Natural

LABELS = np.tile(np.arange(10), 300)  # 300 samples of each class


def partition_of(scheme: str, clients: int = 8, samples: int = 40, **keys: object) -> Partition:
    return split(LABELS, clients, scheme_from({"scheme": scheme, **keys}), samples=samples, seed=7)


def split(labels: IntArray, clients: int, scheme: Scheme, **changes: Any) -> Partition:
    """All samples, a fifth of them to test, unless it is told otherwise."""
    keys = {"samples": 0, "test": 0.2, "seed": 0, "classes": int(labels.max()) + 1, **changes}
    return partition_samples(scheme, labels, clients=clients, **keys)


def counts(made: Partition) -> list[list[int]]:
    """Samples of each class of each client, training and test together (n, classes)."""
    return [class_counts(LABELS[np.concatenate(both)], 10).tolist() for both in zip(made.train, made.test, strict=True)]


def all_of(made: Partition) -> list[list[int]]:
    return [np.sort(np.concatenate(both)).tolist() for both in zip(made.train, made.test, strict=True)]


def truth(made: Partition) -> list[int]:
    assert made.truth is not None
    return [int(group) for group in made.truth]


def test_more_clients_leave_the_samples_of_the_others_alone() -> None:
    few, many = partition_of("iid", clients=3), partition_of("iid", clients=9)
    assert all_of(few) == all_of(many)[:3]
    assert all(np.array_equal(a, b) for a, b in zip(few.test, many.test, strict=False))


def test_groups_are_contiguous_and_as_even_as_possible() -> None:
    assert truth(partition_of("rotation", clients=10, groups=4)) == [0, 0, 0, 1, 1, 1, 2, 2, 3, 3]
    assert truth(partition_of("rotation", clients=6, sizes=[3, 2, 1])) == [0, 0, 0, 1, 1, 2]


def test_two_rotations_are_upright_and_upside_down_and_four_are_quarter_turns() -> None:
    for groups, turns in ((1, [0, 0, 0, 0]), (2, [0, 0, 2, 2]), (3, [0, 0, 1, 2]), (4, [0, 1, 2, 3])):
        assert partition_of("rotation", clients=4, groups=groups).turns.tolist() == turns


def test_rotation_and_concept_use_the_same_samples_as_iid() -> None:
    upright = all_of(partition_of("iid"))
    assert all_of(partition_of("rotation", groups=4)) == all_of(partition_of("concept", sizes=[7, 1])) == upright


def test_concept_shifts_the_labels_of_each_group_by_its_own_step() -> None:
    made = partition_of("concept", clients=3, groups=3)  # 10 classes // 3 groups = 3
    assert [row.tolist() for row in made.relabel] == [[*range(by, 10), *range(by)] for by in (0, 3, 6)]
    assert made.turns.tolist() == [0, 0, 0]


def test_concept_relabels_the_classes_that_are_named() -> None:
    same, other = partition_of("concept", clients=2, groups=2, classes=[3, 8]).relabel.tolist()
    assert same == list(range(10)) and other == [0, 1, 2, 8, 4, 5, 6, 7, 3, 9]
    # 4 classes // 2 groups = 2 places on, in the order of the list.
    _, other = partition_of("concept", clients=2, groups=2, classes=[9, 1, 4, 0]).relabel.tolist()
    assert other == [1, 0, 2, 3, 9, 5, 6, 7, 8, 4]


def test_majority_holds_its_share_in_every_client() -> None:
    made = partition_of("majority", clients=4, groups=2, share=0.64)  # 50 drawn: 32, and 18 over 9 others
    assert counts(made) == [[32] + [2] * 9] * 2 + [[2, 32] + [2] * 8] * 2
    assert truth(made) == [0, 0, 1, 1]


def test_majority_of_all_there_is_gives_as_many_as_the_shares_allow() -> None:
    made = partition_of("majority", clients=4, samples=0, groups=2, share=1.0)  # 300 of one class for two clients
    assert counts(made) == [[150] + [0] * 9] * 2 + [[0, 150] + [0] * 8] * 2


def test_label_groups_hold_their_classes_equally_and_equal_sets_are_one_group() -> None:
    made = partition_of("label_groups", clients=4, labels=[[1, 2], [8, 9, 0, 5, 6], [2, 1], [3]])
    assert counts(made)[0] == [0, 25, 25, 0, 0, 0, 0, 0, 0, 0]
    assert counts(made)[1] == [10, 0, 0, 0, 0, 10, 10, 0, 10, 10]
    assert truth(made) == [0, 1, 0, 2]


def test_class_pairs_wrap_around_the_last_class() -> None:
    made = partition_of("class_pairs", clients=20)
    assert truth(made) == [group for group in range(10) for _ in range(2)]
    assert [np.flatnonzero(row).tolist() for row in counts(made)[::2]] == [sorted([j, (j + 1) % 10]) for j in range(10)]


def test_dirichlet_inside_label_groups_stays_inside_them() -> None:
    sets = [[0, 1, 2, 3], [3, 4, 5, 6], [4, 5, 6, 7, 8, 9], list(range(10))]
    made = partition_of("label_groups", clients=12, labels=sets, inside={"scheme": "dirichlet", "alpha": 1.0})
    sizes = [len(part) for part in all_of(made)]
    assert truth(made) == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert all(set(np.flatnonzero(row)) <= set(sets[i // 3]) for i, row in enumerate(counts(made)))
    assert [sum(sizes[a : a + 3]) for a in (0, 3, 6, 9)] == [150] * 4 and len(set(sizes)) > 4


def test_rotation_holds_what_is_inside_and_both_decide_who_belongs_together() -> None:
    made = partition_of("rotation", groups=2, inside={"scheme": "majority", "groups": 2, "share": 1.0})
    assert made.turns.tolist() == [0, 0, 0, 0, 2, 2, 2, 2]
    assert truth(made) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert counts(made)[1] == [50] + [0] * 9 and counts(made)[7] == [0, 50] + [0] * 8


def test_turns_and_labels_of_what_is_inside_are_kept() -> None:
    made = partition_of("majority", groups=2, share=0.5, inside={"scheme": "rotation", "sizes": [1, 3]})
    assert made.turns.tolist() == [0, 2, 2, 2, 0, 2, 2, 2] and truth(made) == [0, 1, 1, 1, 2, 3, 3, 3]
    both = partition_of("rotation", groups=2, inside={"scheme": "concept", "groups": 2})
    assert both.relabel[:, 0].tolist() == [0, 0, 5, 5, 0, 0, 5, 5] and both.turns.tolist() == [0] * 4 + [2] * 4


def test_a_shortage_inside_names_the_group() -> None:
    message = "^group 0 of the outer scheme: every client needs 2 samples, but the best"
    with pytest.raises(PartitionError, match=message):
        partition_of("rotation", clients=100, samples=4, groups=2, inside={"scheme": "dirichlet", "alpha": 1e-3})


def test_truth_is_unknown_where_every_client_has_a_mix_of_its_own() -> None:
    assert partition_of("dirichlet", alpha=0.5).truth is None and partition_of("shards").truth is None
    assert partition_of("dirichlet", alpha=0.5, over="classes").truth is None
    assert truth(partition_of("quantity", alpha=1.0)) == [0] * 8


def recordings() -> tuple[IntArray, dict[str, IntArray]]:
    """Three subjects of 4, 5 and 6 trials of 10 windows."""
    trial = np.repeat(np.arange(15), 10)
    return np.zeros(150, dtype=np.int64), {"subject": np.repeat([1, 2, 3], [40, 50, 60]), "trial": trial}


def test_natural_clients_are_subjects_and_no_trial_is_on_both_sides() -> None:
    labels, columns = recordings()
    made = split(labels, 3, Natural(column="subject"), columns=columns, unit=columns["trial"])
    assert [len(part) for part in made.test] == [10, 10, 10]  # of 40, 50, 60: 8, 10 and 12 asked
    for train, test, subject in zip(made.train, made.test, [1, 2, 3], strict=True):
        assert not set(columns["trial"][train]) & set(columns["trial"][test])
        assert set(columns["subject"][[*train, *test]]) == {subject}
    assert made.truth is None


def test_a_client_of_one_trial_or_one_sample_cannot_be_split() -> None:
    labels, columns = recordings()
    with pytest.raises(PartitionError, match="client 0 cannot be split: it has 1 independent unit and needs 2"):
        split(labels, 3, IID(), unit=columns["subject"] * 0)
    with pytest.raises(PartitionError, match="client 1 cannot be split: it has 1 samples and needs 2, one to train"):
        split(integers(0, 1, 0), 2, IID())


def test_each_fold_of_a_subject_has_whole_trials_and_repeats_are_shuffled_anew() -> None:
    """Subjects of 4, 5 and 6 trials in 2 folds: fold 0 of a client has the odd trial."""
    labels, columns = recordings()
    trials = columns["trial"]
    splits = [
        split(labels, 3, Natural(column="subject"), test=0.5, columns=columns, unit=trials, folds=2, seed=seed)
        for seed in range(20)
    ]
    for first, second in zip(splits[::2], splits[1::2], strict=True):
        assert [len(part) for part in first.test] == [20, 30, 30]
        assert [len(part) for part in second.test] == [20, 20, 30]
        for client in range(3):
            assert np.array_equal(first.test[client], second.train[client])
            assert not set(trials[first.test[client]]) & set(trials[second.test[client]])
    assert len({tuple(each.test[2].tolist()) for each in splits[::2]}) > 1


def test_a_client_with_fewer_units_or_samples_than_folds_is_named() -> None:
    labels, columns = recordings()
    keys: dict[str, Any] = {"columns": columns, "folds": 5, "test": 0.2}
    with pytest.raises(PartitionError, match="client 1 cannot be split: it has 4 independent units and needs 5"):
        split(labels, 3, Natural(column="subject"), unit=columns["trial"], **keys)
    with pytest.raises(PartitionError, match="client 0 cannot be split: it has 4 samples and needs 5"):
        split(integers(0, 1, 0, 1), 1, IID(), **keys)


def test_a_column_that_is_not_there_is_an_error_that_lists_the_others() -> None:
    labels, columns = recordings()
    with pytest.raises(PartitionError, match=r"^partition.column = 'user': the data has subject, trial$"):
        split(labels, 3, Natural(column="user"), columns=columns)
    with pytest.raises(PartitionError, match="the data has no further columns"):
        partition_of("natural", column="user")


def integers(*values: int) -> IntArray:
    return np.array(values, dtype=np.int64)


def test_a_partition_checks_its_rules() -> None:
    good = Partition(
        train=(integers(0, 1), integers(4)),
        test=(integers(2), integers(3)),
        truth=integers(0, 1),
        turns=integers(0, 3),
        relabel=np.array([[0, 1], [1, 0]]),
    )
    for changed, rule in (
        ({"test": good.test[:1]}, "every client has a test split"),
        ({"test": (integers(2), integers())}, "who trains is tested, and no one else"),
        ({"truth": integers(0)}, "truth has one group per client, from 0"),
        ({"truth": integers(0, 2)}, "truth has one group per client, from 0 without gaps"),
        ({"turns": integers(0, 4)}, "turns are 0 to 3 per client"),
        ({"relabel": np.array([[0, 1], [1, 1]])}, "relabel has a permutation of the classes per client"),
        ({"train": (integers(0, 1), integers(2))}, "no sample occurs twice"),
    ):
        with pytest.raises(PartitionError, match=rule):
            replace(good, **changed)
    assert replace(good, truth=None).truth is None


@pytest.mark.parametrize(("share", "counts"), [(1 / 3, [10, 10, 10, 10]), (0.2, [0, 0, 10, 10])])
def test_units_that_are_held_out_are_spread_over_the_classes(share: float, counts: list[int]) -> None:
    """Four classes of three units of ten samples: a third is one unit of each class, whatever the seed.

    To a fifth, 24 of 120, two units are nearest. They are of different classes.
    """
    labels = np.repeat(np.tile(np.arange(4), 3), 10)
    units = np.repeat(np.arange(12), 10)
    for seed in range(20):
        held = hold_out(labels, share, np.random.default_rng(seed), units, spread=True)
        assert sorted(class_counts(labels[held], 4).tolist()) == counts
        assert len(np.intersect1d(units[held], units[~held])) == 0


def test_every_class_keeps_a_unit_to_train_on_where_it_has_two() -> None:
    labels = np.repeat([0, 0, 1, 1, 2], [30, 30, 5, 5, 50])
    units = np.repeat(np.arange(5), [30, 30, 5, 5, 50])
    held = hold_out(labels, 0.9, np.random.default_rng(0), units, spread=True)
    assert class_counts(labels[~held], 3).tolist() == [30, 5, 50]


def test_every_class_gives_the_whole_units_in_its_share_however_long_they_are() -> None:
    """A fifth of five recordings is one of each class, though one class has recordings that fill the share alone."""
    lengths = np.array([[40, 10, 10, 10, 10], [2, 2, 2, 2, 2], [3, 1, 3, 1, 3], [90, 90, 90, 90, 90]])
    labels = np.repeat(np.repeat(np.arange(4), 5), lengths.flatten())
    units = np.repeat(np.arange(20), lengths.flatten())
    for seed in range(20):
        held = hold_out(labels, 0.2, np.random.default_rng(seed), units, spread=True)
        chosen = np.unique(units[held])
        assert np.isin(np.arange(4), chosen // 5).all()
        assert len(np.intersect1d(chosen, units[~held])) == 0
