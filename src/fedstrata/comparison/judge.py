"""What the runs of a comparison say: a row for each algorithm, their differences, and what each client gains."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import combinations
from statistics import mean, stdev
from typing import Any

import numpy as np
from numpy import float64, int64
from numpy.typing import NDArray

from fedstrata.objective.metric_info import MetricInfo
from fedstrata.records.arrays import last_predictions
from fedstrata.records.schema import VALIDATION_MEASURE, Predictions
from fedstrata.report.comparison.folder import SAME_TESTS, Difference, Outcome, Row, Site, SiteDifference, Statistic
from fedstrata.report.comparison.words import COLUMNS
from fedstrata.report.differences import Effect, holm, of_clients, of_samples, over_seeds, sample_gains
from fedstrata.report.references import ALGORITHMS as REFERENCES
from fedstrata.report.summary import stage_cost

_DECIMALS = 12
"""The decimals of a difference. Those after them are errors of rounding, by which equal results would differ."""


class Judge:
    """The finished runs of a comparison, by algorithm and seed.

    Args:
        runs: The runs, with folders that can be read.
        metric: The metric of all runs.
        folds: The number of folds of a cross-validation; None where each seed draws its test samples.
    """

    def __init__(self, runs: Sequence[Outcome], metric: MetricInfo, folds: int | None = None) -> None:
        """Sort the runs; their predictions are read when they are asked for."""
        self._all = runs
        self.metric = metric
        # Two folds of one shuffle have no sample in common, but their training samples have: they count as two random
        # divisions of the same samples, as by Bouckaert and Frank, "Evaluating the replicability of significance tests
        # for comparing learning algorithms", 2004.
        self._least_overlap = 1 / folds if folds else 0.0
        self._runs: dict[str, dict[int, Outcome]] = {}
        for run in runs:
            if run.summary is not None:
                self._runs.setdefault(run.algorithm, {})[run.seed] = run

    @cached_property
    def table(self) -> tuple[Row, ...]:
        """The measures of every algorithm over the seeds, in the order of their first runs."""
        attacked = any(run.summary is not None and honest_score(run.summary) is not None for run in self._all)
        names = dict.fromkeys(run.algorithm for run in self._all)
        return tuple(
            _row(name, [run for run in self._all if run.algorithm == name], attacked=attacked) for name in names
        )

    @cached_property
    def _predictions(self) -> dict[str, dict[int, dict[int, Predictions]]]:
        """What the clients' models predict, by algorithm, seed and client."""
        return {
            name: {seed: last_predictions(run.folder) for seed, run in runs.items()}
            for name, runs in self._runs.items()
        }

    @cached_property
    def overlap(self) -> float | None:
        """The share of test samples that two seeds have in common; None where that is not known."""
        by_seed = {seed: found for runs in self._predictions.values() for seed, found in runs.items() if found}
        return self._overlap([np.concatenate([each.sample for each in found.values()]) for found in by_seed.values()])

    def _overlap(self, tests: Sequence[NDArray[int64]]) -> float | None:
        """The mean share of test samples that two seeds have in common, given those of each seed."""
        if len(tests) < 2:
            return None
        _, counts = np.unique(np.concatenate([np.unique(each) for each in tests]), return_counts=True)
        shared = float((counts * (counts - 1)).sum()) / float((len(tests) - 1) * counts.sum())
        return max(shared, self._least_overlap)

    @cached_property
    def differences(self) -> tuple[Difference, ...]:
        """The difference of every two algorithms that have a seed in common, in the order of the runs.

        All runs of a seed have the same clients, data and cohorts.
        """
        found = []
        for one, other in combinations(self._runs, 2):
            seeds = [seed for seed in self._runs[one] if seed in self._runs[other]]
            if seeds:
                found.append(self._difference(one, other, seeds))
        corrected = iter(holm([each.effect.p for each in found if each.effect is not None]))
        return tuple(each if each.effect is None else replace(each, corrected=next(corrected)) for each in found)

    def _difference(self, one: str, other: str, seeds: Sequence[int]) -> Difference:
        """The difference of two algorithms, with the one of the better mean first."""
        scores = {name: [_score(self._runs[name][seed]) for seed in seeds] for name in (one, other)}
        pairs = zip(scores[one], scores[other], strict=True)
        values = tuple(round(self.metric.gain(own, others), _DECIMALS) for own, others in pairs)
        if mean(values) < 0:
            return self._difference(other, one, seeds)
        alike = all(self._never_grouped(name) for name in (one, other))
        smallest = self.metric.smallest_gain(*map(mean, scores.values()))
        effect = None
        if self.overlap is not None:
            effect = self._effect(values, self.overlap, lambda: self._of_clients(one, other, seeds), smallest)
        return Difference(one, other, tuple(seeds), values, smallest, effect, another_start=alike)

    def _effect(
        self, values: Sequence[float], overlap: float, of_models: Callable[[], Effect | None], smallest: float = 0.0
    ) -> Effect | None:
        """The difference of two methods over several seeds.

        Where all seeds have the same test samples, other starts and other test samples both have to say the same: of
        the two effects it is that of the larger p-value.

        Args:
            values: The difference with each seed.
            overlap: The overlap of their test samples.
            of_models: Compares the models on these samples.
            smallest: A spread over seeds that cannot be seen, and so says nothing about chance.
        """
        if len(values) < 2 or stdev(values) < smallest:
            return None
        if overlap < SAME_TESTS:
            return over_seeds(values, overlap)
        both = [over_seeds(values, 0.0), of_models()]
        known = [each for each in both if each is not None]
        return max(known, key=lambda each: each.p) if len(known) == len(both) else None

    def _gains(self, one: str, other: str, seeds: Sequence[int], client: int) -> NDArray[float64] | None:
        """What each test sample of a client says for one of two algorithms, the mean over seeds with the same ones."""
        found = list[NDArray[float64]]()
        for seed in seeds:
            own, others = (self._predictions[name][seed].get(client) for name in (one, other))
            gains = None if own is None or others is None else sample_gains(own, others, self.metric)
            if gains is None or (found and len(gains) != len(found[0])):
                return None
            found.append(gains)
        means: NDArray[float64] = np.mean(found, axis=0)
        return means

    def _of_clients(self, one: str, other: str, seeds: Sequence[int]) -> Effect | None:
        """The difference of two algorithms, the mean over clients, on test samples that are those of all seeds."""
        tests = self._predictions[one][seeds[0]]
        gains = {client: self._gains(one, other, seeds, client) for client in tests}
        known = {client: each for client, each in gains.items() if each is not None}
        if not known or len(known) < len(tests):
            return None
        return of_clients(known.values(), (tests[client].unit for client in known))

    def _never_grouped(self, name: str) -> bool:
        """Whether an algorithm is FedAvg, or never did anything else."""
        return name == "fedavg" or all(run.one_group for run in self._runs[name].values())

    @cached_property
    def sites(self) -> tuple[Site, ...]:
        """What is said to each client, those who would lose first; none where there is no reference."""
        references = [name for name in REFERENCES if name in self._runs]
        pairs = [
            (name, reference)
            for place, reference in enumerate(references[::-1])  # training alone is that of all others
            for name in self._runs
            if name not in (reference, *references[::-1][:place])
        ]
        if not pairs:
            return ()
        every = [run.clients or {} for runs in self._runs.values() for run in runs.values()]
        found = [self._site(client, pairs) for client in sorted(set().union(*every))]
        effects = [each.effect for site in found for each in site.differences]
        corrected = iter(holm([effect.p for effect in effects if effect is not None]))

        def judged(each: SiteDifference) -> SiteDifference:
            return each if each.effect is None else replace(each, corrected=next(corrected))

        found = [replace(site, differences=tuple(map(judged, site.differences))) for site in found]
        return tuple(sorted(found, key=lambda site: min((each.by for each in site.effects), default=0.0)))

    def _site(self, client: int, pairs: Sequence[tuple[str, str]]) -> Site:
        """What is said to a client, before the p-values are corrected.

        Args:
            client: The client.
            pairs: Each algorithm and the reference that it is compared with.
        """
        every = [pair for runs in self._predictions.values() for pair in runs.items()]
        tested = {seed: found[client] for seed, found in every if client in found}
        overlap = self._overlap([each.sample for each in tested.values()])
        scores = {
            name: {seed: run.clients[client] for seed, run in runs.items() if run.clients and client in run.clients}
            for name, runs in self._runs.items()
        }
        compared = []
        for name, reference in pairs:
            seeds = [seed for seed in scores[name] if seed in scores[reference]]
            values = [self.metric.gain(scores[name][seed], scores[reference][seed]) for seed in seeds]

            def of_models(name: str = name, reference: str = reference, seeds: Sequence[int] = seeds) -> Effect | None:
                gains = self._gains(name, reference, seeds, client)
                return None if gains is None else of_samples(gains, tested[seeds[0]].unit, self.metric)

            effect = None
            if len(seeds) == 1:
                effect = of_models()
            elif seeds and overlap is not None:
                effect = self._effect(values, overlap, of_models)
            compared.append(SiteDifference(name, reference, effect, None))
        of_classes = [each.truth for each in tested.values() if each.of_classes]
        counts = [int(np.unique(truth, return_counts=True)[1].min()) for truth in of_classes]
        means = {name: mean(by_seed.values()) if by_seed else None for name, by_seed in scores.items()}
        return Site(client, means, tuple(compared), min(counts, default=None))


def _score(run: Outcome) -> float:
    """The mean metric over the clients of a finished run."""
    assert run.summary is not None
    return float(run.summary["acc_client"])


def _row(name: str, runs: Sequence[Outcome], *, attacked: bool) -> Row:
    """The measures of one algorithm.

    Args:
        name: The name of the algorithm.
        runs: Its runs.
        attacked: Whether clients attack, so that the honest ones have a measure of their own.
    """
    summaries = [run.summary for run in runs if run.summary is not None]
    figures = {key: _over_seeds(_value_of(summary, key) for summary in summaries) for key in COLUMNS}
    if any(VALIDATION_MEASURE in summary for summary in summaries):
        figures[VALIDATION_MEASURE] = _over_seeds(summary.get(VALIDATION_MEASURE) for summary in summaries)
    if attacked:
        figures["acc_honest"] = _over_seeds(map(honest_score, summaries))
    failed = tuple(run.seed for run in runs if run.summary is None)
    return Row(name, tuple(run.seed for run in runs), failed, figures)


def _value_of(summary: Mapping[str, Any], key: str) -> float | None:
    """The value of a column of the table in a summary. Bytes and seconds are with those of the personal stage."""
    value: float | None
    if key in ("bytes", "seconds"):
        names = ("bytes_down", "bytes_up") if key == "bytes" else ("seconds",)
        value = sum(summary[name] + (stage_cost(summary, name) or 0) for name in names)
    else:
        value = summary[key]
    return value


def honest_score(summary: Mapping[str, Any]) -> float | None:
    """The mean metric of the clients that do not attack; None where none attack, or it is unknown."""
    found = summary.get("attack")
    value = found.get("acc_honest") if isinstance(found, Mapping) else None
    return float(value) if isinstance(value, int | float) else None


def _over_seeds(values: Iterable[float | None]) -> Statistic | None:
    known = [value for value in values if value is not None]
    if not known:
        return None
    return Statistic(mean(known), stdev(known) if len(known) > 1 else None, min(known), max(known))
