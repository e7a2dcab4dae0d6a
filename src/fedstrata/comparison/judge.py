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

from fedstrata.objective.metric_info import METRIC_INFOS, METRICS_OF_NUMBERS, MetricInfo
from fedstrata.records.arrays import last_predictions
from fedstrata.records.schema import VALIDATION_MEASURE, Predictions
from fedstrata.report.comparison.folder import (
    SAME_TESTS,
    Difference,
    Outcome,
    Row,
    Site,
    SiteDifference,
    Statistic,
    attackers_of,
)
from fedstrata.report.comparison.words import COLUMNS
from fedstrata.report.differences import DECIMALS, Effect, corrected, of_clients, of_samples, over_seeds, sample_gains
from fedstrata.report.summary import stage_cost

_MOST_OVERLAP = 0.9
"""A larger overlap of the test samples of one client counts as this one."""


class Judge:
    """The finished runs of a comparison, by algorithm and seed.

    Args:
        runs: The runs, with folders that can be read.
        metric: The metric of all runs.
        folds: The number of folds of a cross-validation; None where each seed draws its test samples.
        same_training: Whether all algorithms train alike. The settings of a sweep need not.
    """

    def __init__(
        self, runs: Sequence[Outcome], metric: MetricInfo, folds: int | None = None, *, same_training: bool = True
    ) -> None:
        """Sort the runs; their predictions are read when they are asked for."""
        self.metric = metric
        self._all = runs
        self._same_training = same_training
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
        attacked = any(run.summary is not None and _honest_score(run.summary) is not None for run in self._all)
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
    def _tests(self) -> dict[int, dict[int, Predictions]]:
        """The predictions of one run of each seed, by client: all runs of a seed have the same test samples."""
        return {seed: some for runs in self._predictions.values() for seed, some in runs.items() if some}

    @cached_property
    def overlap(self) -> float | None:
        """The share of test units that two seeds have in common; None where that is not known.

        Where all seeds have one set of test samples, and other clients get them, only those of the same client count.
        """
        shared = _overlap([np.concatenate([each.unit for each in some.values()]) for some in self._tests.values()])
        if shared is None or shared < SAME_TESTS:
            return shared
        return _overlap([_by_client(some) for some in self._tests.values()])

    @cached_property
    def differences(self) -> tuple[Difference, ...]:
        """The difference of every two algorithms that have a seed in common, in the order of the runs.

        All runs of a seed have the same clients, data and cohorts.
        """
        differences = [
            self._difference(one, other, seeds)
            for one, other in combinations(self._runs, 2)
            if (seeds := [seed for seed in self._runs[one] if seed in self._runs[other]])
        ]
        p_values = corrected([each.effect for each in differences])
        return tuple(replace(each, corrected=p) for each, p in zip(differences, p_values, strict=True))

    def _difference(self, one: str, other: str, seeds: Sequence[int]) -> Difference:
        """The difference of two algorithms, with the one of the better mean first."""
        scores = {name: [_score(self._runs[name][seed]) for seed in seeds] for name in (one, other)}
        pairs = zip(scores[one], scores[other], strict=True)
        values = tuple(round(self.metric.gain(own, others), DECIMALS) for own, others in pairs)
        if mean(values) < 0:
            return self._difference(other, one, seeds)
        alike = self._same_training and all(self._has_one_model(name) for name in (one, other))
        smallest = self.metric.smallest_gain(*map(mean, scores.values()))
        effect = self._effect(values, lambda: self._of_clients(one, other, seeds), smallest)
        return Difference(one, other, tuple(seeds), values, smallest, effect, another_start=alike)

    def _effect(
        self,
        values: Sequence[float],
        of_models: Callable[[], Effect | None],
        smallest: float = 0.0,
        overlap: float = 0.0,
    ) -> Effect | None:
        """The difference of two methods over several seeds.

        Where all seeds have the same test samples, other starts and other test samples both have to say the same: of
        the two effects it is that of the larger p-value.

        Args:
            values: The difference with each seed.
            of_models: Compares the models on these samples.
            smallest: The smallest difference that can be seen.
            overlap: The overlap of the test units of one client; that of all clients counts where it is larger.
        """
        if self.overlap is None:
            return None
        if self.overlap >= SAME_TESTS:
            both = [over_seeds(values, 0.0, smallest), of_models()]
            known = [each for each in both if each is not None]
            return max(known, key=lambda each: each.p) if len(known) == len(both) else None
        return over_seeds(values, min(max(self.overlap, overlap, self._least_overlap), _MOST_OVERLAP), smallest)

    def _gains(self, one: str, other: str, seeds: Sequence[int], client: int) -> NDArray[float64] | None:
        """What each test sample of a client says for one of two algorithms, the mean over seeds with the same ones."""
        gains_of_seeds = list[NDArray[float64]]()
        for seed in seeds:
            own, others = (self._predictions[name][seed].get(client) for name in (one, other))
            if own is None or others is None or not np.array_equal(own.sample, self._tests[seeds[0]][client].sample):
                return None
            gains = sample_gains(own, others, self.metric)
            if gains is None:
                return None
            gains_of_seeds.append(gains)
        means: NDArray[float64] = np.mean(gains_of_seeds, axis=0)
        return means

    def _of_clients(self, one: str, other: str, seeds: Sequence[int]) -> Effect | None:
        """The difference of two algorithms, the mean over clients, on test samples that are those of all seeds."""
        tests = self._tests.get(seeds[0], {})
        gains = (self._gains(one, other, seeds, client) for client in tests)
        return of_clients(gains, (each.unit for each in tests.values()))

    def _has_one_model(self, name: str) -> bool:
        """Whether an algorithm trained one model for all clients with every seed."""
        return all(run.one_model for run in self._runs[name].values())

    @cached_property
    def sites(self) -> tuple[Site, ...]:
        """What is said to each honest client, the least gain first; none where there is no reference."""
        names = list(self._runs)
        beside = [(name, "local") for name in names if "local" in names and name != "local"]
        grouping = [name for name in names if name not in ("local", "fedavg")]
        if self._same_training:
            # What never grouped differs from one model for all by its start.
            grouping = [name for name in grouping if not self._has_one_model(name)]
        beside += [(name, "fedavg") for name in grouping if "fedavg" in names]
        if not beside:
            return ()
        attackers = {client for run in self._all for client in attackers_of(run.summary)}
        clients = {client for runs in self._runs.values() for run in runs.values() for client in run.clients or ()}
        sites = [self._site(client, beside) for client in sorted(clients - attackers)]
        p_values = iter(corrected([each.effect for site in sites for each in site.differences]))
        judged = [
            replace(site, differences=tuple(replace(each, corrected=next(p_values)) for each in site.differences))
            for site in sites
        ]
        return tuple(sorted(judged, key=lambda site: min((each.by for each in site.effects), default=0.0)))

    def _site(self, client: int, beside: Sequence[tuple[str, str]]) -> Site:
        """What is said to a client, before the p-values are corrected.

        Args:
            client: The client.
            beside: Each algorithm and the reference that it is compared with.
        """
        scores = {
            name: {seed: run.clients[client] for seed, run in runs.items() if run.clients and client in run.clients}
            for name, runs in self._runs.items()
        }
        tests = [some[client] for some in self._tests.values() if client in some]
        overlap = _overlap([each.unit for each in tests]) or 0.0
        differences = tuple(
            SiteDifference(name, reference, self._site_effect(client, name, reference, scores, overlap), None)
            for name, reference in beside
        )
        means = {name: mean(by_seed.values()) if by_seed else None for name, by_seed in scores.items()}
        numbers = any(self.metric.name == METRIC_INFOS[key].name for key in METRICS_OF_NUMBERS)
        truths = [] if numbers else [each.truth for each in tests if each.of_classes]
        counts = [int(np.unique(truth, return_counts=True)[1].min()) for truth in truths]
        return Site(client, means, differences, min(counts, default=None))

    def _site_effect(
        self, client: int, name: str, reference: str, scores: Mapping[str, Mapping[int, float]], overlap: float
    ) -> Effect | None:
        """How much better a client is served by an algorithm than by a reference.

        Args:
            client: The client.
            name: The algorithm.
            reference: The reference.
            scores: The metric of the client by algorithm and seed.
            overlap: The overlap of the client's test samples.
        """
        seeds = [seed for seed in scores[name] if seed in scores[reference]]
        if not seeds:
            return None

        def of_models() -> Effect | None:
            gains = self._gains(name, reference, seeds, client)
            return None if gains is None else of_samples(gains, self._tests[seeds[0]][client].unit, self.metric)

        if len({run.seed for run in self._all}) == 1:
            return of_models()
        values = [self.metric.gain(scores[name][seed], scores[reference][seed]) for seed in seeds]
        smallest = self.metric.smallest_gain(*scores[name].values())
        return self._effect(values, of_models, smallest, overlap)


def _overlap(tests: Sequence[NDArray[int64]]) -> float | None:
    """The mean share of test units that two seeds have in common, given those of each seed; None of one seed."""
    if len(tests) < 2:
        return None
    _, counts = np.unique(np.concatenate([np.unique(each) for each in tests]), return_counts=True)
    return float((counts * (counts - 1)).sum()) / float((len(tests) - 1) * counts.sum())


def _by_client(tests: Mapping[int, Predictions]) -> NDArray[int64]:
    """A number for each test unit of each client, other ones for other clients."""
    most = 1 + max(int(each.unit.max()) for each in tests.values())
    return np.concatenate([client * most + each.unit for client, each in tests.items()])


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
        figures["acc_honest"] = _over_seeds(map(_honest_score, summaries))
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


def _honest_score(summary: Mapping[str, Any]) -> float | None:
    """The mean metric of the clients that do not attack; None where none attack, or it is unknown."""
    found = summary.get("attack")
    value = found.get("acc_honest") if isinstance(found, Mapping) else None
    return float(value) if isinstance(value, int | float) else None


def _over_seeds(values: Iterable[float | None]) -> Statistic | None:
    known = [value for value in values if value is not None]
    if not known:
        return None
    return Statistic(mean(known), stdev(known) if len(known) > 1 else None, min(known), max(known))
