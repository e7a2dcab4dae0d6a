"""What the runs of a comparison say, with numbers that a reader can redo."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from builders import compared
from fedstrata.comparison import Comparison
from fedstrata.objective.metric_info import ACCURACY
from fedstrata.records.schema import Predictions
from fedstrata.report.comparison.folder import Difference, Outcome
from fedstrata.report.comparison.words import difference_text, result_text, scope_text, site_answers
from fedstrata.report.differences import corrected

Rights = Mapping[int, list[bool]]


def predictions(right: list[bool], samples: list[int]) -> Predictions:
    place = np.array(samples)
    wrong = 1.0 - np.array(right)
    return Predictions(place * 0, place, place, wrong * 0, wrong, wrong * np.nan)


@pytest.fixture
def tested(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Outcome]:
    """Makes a run from which test samples of each client it recognises."""
    found = dict[Path, dict[int, Predictions]]()
    monkeypatch.setattr("fedstrata.comparison.judge.last_predictions", lambda folder: found.get(folder.resolve(), {}))

    def run(
        algorithm: str,
        seed: int,
        rights: Rights,
        samples: list[int] | None = None,
        one_model: bool = False,
        of_clients: Mapping[int, list[int]] | None = None,
    ) -> Outcome:
        folder = Path(f"{algorithm}-{seed}").resolve()
        count = len(next(iter(rights.values())))
        places = list(range(count)) if samples is None else samples
        own = of_clients or {client: [1000 * client + place for place in places] for client in rights}
        found[folder] = {client: predictions(right, own[client]) for client, right in rights.items()}
        clients = {client: float(np.mean(right)) for client, right in rights.items()}
        summary = {"acc_client": float(np.mean(list(clients.values()))), "acc_worst": 0.0, "clusters": 1, "ari": None}
        costs = {"rounds_to_partition": 1, "bytes_down": 1, "bytes_up": 1, "seconds": 1.0}
        return Outcome(algorithm, seed, folder, {**summary, **costs}, clients, one_model)

    return run


def difference(found: Comparison) -> Difference:
    (only,) = found.differences
    return only


def right(count: int, of: int = 40) -> list[bool]:
    """So many of the samples are recognised, the first ones."""
    return [place < count for place in range(of)]


def test_seeds_that_share_test_samples_say_less(tested: Callable[..., Outcome]) -> None:
    """Three seeds; differences of 2, 4 and 6 of 40 samples, first with samples of their own, then with half shared."""

    def runs(step: int) -> list[Outcome]:
        return [
            tested(name, seed, {0: right(20 + gain)}, list(range(step * seed, step * seed + 40)))
            for name, gains in {"strata": (2, 4, 6), "fedavg": (0, 0, 0)}.items()
            for seed, gain in enumerate(gains)
        ]

    alone, shared = difference(compared(runs(40))), difference(compared(runs(20)))
    assert compared(runs(40)).document.overlap == 0
    # Seeds 0 and 1, and 1 and 2 share 20 of 40, seeds 0 and 2 none.
    assert compared(runs(20)).document.overlap == pytest.approx(1 / 3)
    assert alone.effect is not None and shared.effect is not None
    # t = .1 / (.05 / sqrt(3)) = 3.464 with two degrees of freedom: p = .0742; then the variance is 1/3 + 1/2.
    assert alone.effect.p == pytest.approx(0.0742, abs=1e-4)
    assert shared.effect.high - 0.1 == pytest.approx((alone.effect.high - 0.1) * (2.5**0.5))


def test_folds_of_one_shuffle_count_as_divisions_of_the_same_samples(tested: Callable[..., Outcome]) -> None:
    runs = [
        tested(name, seed, {0: right(20 + seed * gain)}, list(range(40 * seed, 40 * seed + 40)))
        for name, gain in {"strata": 2, "fedavg": 0}.items()
        for seed in range(5)
    ]
    folds, others = compared(runs, folds=5), compared(runs)
    assert folds.document.overlap == others.document.overlap == 0
    effect, plain = difference(folds).effect, difference(others).effect
    assert effect is not None and plain is not None
    # The variance is 1/5 + 0.2 / 0.8 of s² in the place of 1/5.
    assert effect.high - effect.by == pytest.approx((plain.high - plain.by) * 1.5)
    assert "cross-validation" in scope_text(folds.document)


def test_on_the_same_test_samples_other_starts_and_other_samples_have_to_agree(tested: Callable[..., Outcome]) -> None:
    """With every start one sample of 40 more, or two: sure over starts, and not confirmed by other samples."""
    runs = [
        tested(name, seed, {0: right(20 + gain)})
        for name, gains in {"strata": (1, 2, 1, 1, 1, 1), "fedavg": (0,) * 6}.items()
        for seed, gain in enumerate(gains)
    ]
    found = compared(runs)
    only = difference(found)
    assert found.document.overlap == 1 and not only.clear
    assert only.effect is not None and only.effect.p > 0.1
    assert "All seeds have the same test samples" in scope_text(found.document)


def test_algorithms_that_never_grouped_differ_by_their_start(tested: Callable[..., Outcome]) -> None:
    """However sure the difference is."""
    runs = [
        tested(name, seed, {0: right(count)}, list(range(40 * seed, 40 * seed + 40)), one_model=True)
        for name, counts in {"ifca": (30, 31, 32, 30), "fedavg": (20, 20, 21, 20)}.items()
        for seed, count in enumerate(counts)
    ]
    found = compared(runs, same_clients=True)
    only = difference(found)
    assert only.corrected is not None and only.corrected < 0.001 and not only.clear
    assert found.sites == (), "nobody is told that grouping gains"
    assert difference(compared(runs, same_training=False)).clear, "settings of a sweep may train otherwise"
    text = difference_text(only, found.document)
    assert text.startswith("ifca and fedavg cannot be told apart") and "by their start alone" in text


def test_p_values_are_corrected_for_all_pairs(tested: Callable[..., Outcome]) -> None:
    runs = [
        tested(name, seed, {0: right(count)}, list(range(40 * seed, 40 * seed + 40)))
        for name, counts in {"a": (20, 22, 21), "b": (23, 26, 25), "c": (30, 33, 30)}.items()
        for seed, count in enumerate(counts)
    ]
    found = compared(runs).differences
    effects = [each.effect for each in found]
    assert [each.corrected for each in found] == corrected(effects)
    assert sum(each.effect is not None and each.corrected != each.effect.p for each in found) >= 2


def sites(tested: Callable[..., Outcome]) -> Comparison:
    """Clients 0 to 2 that divide their samples anew: 0 gains by both, 1 loses, of 2 nothing is known."""
    counts = {"local": (20, 36, 30), "fedavg": (34, 20, 30), "strata": (35, 21, 30)}
    runs = [
        tested(name, seed, {client: right(of + seed % 2, 45) for client, of in enumerate(some)}, samples_of(seed))
        for name, some in counts.items()
        for seed in range(6)
    ]
    for run in runs:  # what they gain differs a little from seed to seed
        assert run.clients is not None
        object.__setattr__(
            run, "clients", {key: value + 0.003 * hash_of(run, key) for key, value in run.clients.items()}
        )
    return compared(runs, same_clients=True, clients=("Ghent", "Lyon", "Bern"))


def samples_of(seed: int) -> list[int]:
    return list(range(45 * seed, 45 * seed + 45))


def hash_of(run: Outcome, client: int) -> int:
    return (len(run.algorithm) * 7 + run.seed * 5 + client * 3) % 4


def test_each_client_is_told_whether_it_gains_and_the_losers_come_first(tested: Callable[..., Outcome]) -> None:
    found = sites(tested)
    assert found.sites[0].client == 1
    verdicts = {
        (site.client, each.algorithm, each.reference): each.verdict for site in found.sites for each in site.differences
    }
    assert verdicts[0, "strata", "local"] == verdicts[0, "fedavg", "local"] == "better"
    assert verdicts[1, "strata", "local"] == "worse" and verdicts[2, "strata", "local"] == "unclear"
    assert (0, "local", "fedavg") not in verdicts, "training alone is compared once"
    answers = site_answers(found.document)
    assert answers["Who gains from joining?"] == [
        "fedavg and strata: better for Ghent; worse for Lyon; no clear gain or loss for Bern.",
    ]
    assert answers["Who should stay alone?"] == ["Lyon: worse with everything that was compared."]


def test_with_one_seed_clients_are_compared_sample_by_sample(tested: Callable[..., Outcome]) -> None:
    """Eight samples of forty more that one model recognises, and none less: p = 2 / 2^8."""
    runs = [tested("fedavg", 0, {0: right(20), 1: right(20)}), tested("local", 0, {0: right(28), 1: right(20)})]
    (first, second) = compared(runs).sites
    (effect,) = first.effects
    assert first.client == 0 and effect.p == pytest.approx(2 / 2**8)
    assert first.differences[0].verdict == "worse" and second.differences[0].verdict == "unclear"
    assert first.fewest == 40


def test_a_mean_lead_that_is_the_gain_of_one_client_is_told_with_its_name(tested: Callable[..., Outcome]) -> None:
    """Gains of 20, 2 and 0 of 40 samples are 18.3 points on average, and 2.5 points without the first."""

    def said(*gains: int) -> str:
        counts = {"local": (0,) * 3, "fedavg": gains}
        runs = [
            tested(name, 0, {client: right(10 + gain) for client, gain in enumerate(some)})
            for name, some in counts.items()
        ]
        return result_text(compared(runs, clients=("Ghent", "Lyon", "Bern")).document)

    assert said(20, 2, 0).endswith(
        "More than half of that is the gain of Ghent, 50.0 points: without it, fedavg is 2.5 points higher."
    )
    assert "More than half" not in said(4, 2, 2) + said(0, 0, 0)


def test_seeds_with_other_clients_say_nothing_to_one_client(tested: Callable[..., Outcome]) -> None:
    runs = [tested(name, seed, {0: right(20)}) for name in ("local", "fedavg") for seed in (0, 1)]
    assert compared(runs).sites == () and site_answers(compared(runs).document) == {}


def test_without_training_alone_the_page_says_what_to_add(tested: Callable[..., Outcome]) -> None:
    runs = [tested(name, 0, {0: right(20)}) for name in ("fedavg", "strata")]
    assert 'Add the algorithm "local"' in site_answers(compared(runs).document)["Who gains from joining?"][0]


def test_a_comparison_is_a_frame_and_a_table_of_latex(tested: Callable[..., Outcome]) -> None:
    found = compared([tested("fedavg", seed, {0: right(20 + seed)}) for seed in (0, 1)])
    frame = found.to_frame()
    assert frame.loc["fedavg", "acc_client"] == pytest.approx(0.5125) and frame.loc["fedavg", "seeds"] == 2
    text = found.to_latex()
    assert r"51.2 ± 1.8 \%" in text and text.startswith(r"\begin{tabular}")
    assert found.metric == ACCURACY


def test_clients_that_attack_are_told_nothing(tested: Callable[..., Outcome]) -> None:
    runs = [tested(name, 0, {0: right(20), 1: right(20)}) for name in ("fedavg", "local")]
    attacked = [replace(run, summary={**(run.summary or {}), "attack": {"clients": [1]}}) for run in runs]
    assert [site.client for site in compared(attacked).sites] == [0]


def test_one_test_set_for_other_clients_is_not_the_same_test(tested: Callable[..., Outcome]) -> None:
    """Both seeds test the samples 0 to 39, of which client 0 has the first half, and then the second."""
    halves = [list(range(20)), list(range(20, 40))]
    samples = {0: dict(enumerate(halves)), 1: dict(enumerate(halves[::-1]))}
    runs = [
        tested(name, seed, {0: right(10 + gain * seed, 20), 1: right(10, 20)}, of_clients=samples[seed])
        for name, gain in {"strata": 3, "fedavg": 0}.items()
        for seed in (0, 1)
    ]
    assert compared(runs).document.overlap == 0


def test_nobody_is_reassured_where_nothing_could_be_tested(tested: Callable[..., Outcome]) -> None:
    """Runs without predictions, as of earlier versions."""
    runs = [replace(tested(name, 0, {0: right(20)}), folder=Path("gone")) for name in ("fedavg", "local")]
    answers = site_answers(compared(runs).document)
    assert answers == {"Who gains from joining?": ["fedavg: not tested for 0."]}
