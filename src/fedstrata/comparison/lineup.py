"""The runs of a comparison that are to be made, seed by seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from fedstrata.comparison.gathering import finished
from fedstrata.comparison.lockstep import Lane, Lockstep
from fedstrata.comparison.table import Failure, Who
from fedstrata.config import Experiment, folder_of
from fedstrata.config.tables import Engine
from fedstrata.engine.batched import budget
from fedstrata.engine.sharing import Devices
from fedstrata.errors import InputError
from fedstrata.resources import resource_error
from fedstrata.runner.build import Setting, prepare, rehearse
from fedstrata.runner.progress import Line, Race
from fedstrata.runner.rounds import steps

FLOAT = 4
"""Bytes of a number."""


class LineUp:
    """What waits to be run.

    Args:
        experiments: of the comparison; those that are finished are left out.
        out: folder of the comparison.
        resume: go on from the checkpoints in it.
        line: where is shown what the engine is, and how far the runs are.
        enter: called before any run begins, when the first experiments are known to fit.

    Attributes:
        seeds: that have not begun, in their order.
        race: shows how far the others are.
        failures: why runs could not begin.
    """

    def __init__(
        self,
        experiments: Sequence[Experiment],
        out: Path,
        resume: bool,
        line: Line,
        enter: Callable[[], None] = lambda: None,
    ) -> None:
        """Read no data yet."""
        self._enter = enter
        self._waiting = [experiment for experiment in experiments if not finished(folder_of(out, experiment))]
        self._first, self._out, self._resume, self._line = experiments[0].seed, out, resume, line
        self._engine: Engine | None = None
        self.seeds = list(dict.fromkeys(experiment.seed for experiment in self._waiting))
        self.race = Race(experiments[0].rounds, self.seeds, line)
        self.failures: dict[Who, Failure] = {}

    def next(self, stop: Callable[[], bool]) -> Lockstep:
        """The runs of the next seed; where the engine is batched, of as many seeds as fit in memory.

        Args:
            stop: asked before every seed but the first whether there shall be no more.

        Raises:
            InputError: when something that the first experiment names does not exist or does not fit.
        """
        lanes, begun, room = dict[Who, Lane](), list[int](), 1
        while self.seeds and len(begun) < room and not (begun and stop()):
            seed = self.seeds.pop(0)
            own = self._of(seed)
            try:
                setting = self._prepared(own)
            except Exception as error:
                known = isinstance(error, InputError) or resource_error(error) is not None
                if seed == self._first or not known:
                    raise
                # What could be dealt with one seed cannot always be with another, nor when it is tried again; and what
                # the machine has no room for with this seed does not lose the seeds that are over.
                self.failures |= {Who(seed, name): Failure.of(error) for name in own}
                continue
            begun.append(seed)
            lanes |= self._lanes(seed, own, setting)
            room = _room(setting, len(own))
        self.race.begin(begun or [seed])
        if lanes:
            self._enter()
        return Lockstep(lanes)

    def _of(self, seed: int) -> dict[str, Experiment]:
        """The experiments of a seed by algorithm, with the engine that was chosen for the first one."""
        chosen = {} if self._engine is None else {"engine": self._engine}
        return {each.algorithm.name: each.model_copy(update=chosen) for each in self._waiting if each.seed == seed}

    def _prepared(self, own: Mapping[str, Experiment]) -> Setting:
        """The federation of a seed, which all of its experiments fit.

        Raises:
            InputError: when a key of one of them does not fit the network or the data.
        """
        setting = prepare(next(iter(own.values())))
        for name, experiment in own.items():
            algorithm = experiment.algorithm_of()
            try:
                rehearse(algorithm, setting.problem)
                algorithm.init(setting.problem)
            except InputError as error:
                raise type(error)(f"{name}: {error}") from None
        if setting.why:
            self._line.keep(f"engine: {setting.why}")
        self._engine = setting.engine
        return setting

    def _lanes(self, seed: int, own: Mapping[str, Experiment], setting: Setting) -> dict[Who, Lane]:
        """The runs of a seed, on one federation and each on devices of its own; none has begun."""
        lanes = {}
        for name, experiment in own.items():
            its = replace(setting, algorithm=experiment.algorithm_of(), clients=Devices(setting.clients))
            folder, show = folder_of(self._out, experiment), partial(self.race.note, seed, name)
            running = steps(experiment, its, folder, resume=self._resume, show=show, tell=self._line.keep)
            lanes[Who(seed, name)] = Lane(running, its.clients, setting.clients)
        return lanes


def _room(setting: Setting, runs: int) -> int:
    """How many seeds of so many runs may be one batch: their data and updates fit in what a batch works on."""
    problem, engine = setting.problem, setting.engine
    if engine.name != "batched":
        return 1
    each = setting.holdings.floats + runs * problem.clients * problem.layout.p
    return max(1, budget(torch.device(engine.device)) // (FLOAT * each))
