"""The runs of a comparison that are to be made, seed by seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from fedstrata.comparison.gathering import finished
from fedstrata.comparison.lockstep import Lane, Lockstep
from fedstrata.comparison.table import Failure, Who
from fedstrata.config import Experiment, folder_of
from fedstrata.engine import AT_ONCE
from fedstrata.engine.sharing import Devices
from fedstrata.errors import InputError
from fedstrata.progress import Line, Race
from fedstrata.setting import Setting, prepare, rehearse
from fedstrata.train import steps


class LineUp:
    """What waits to be run.

    Args:
        experiments: of the comparison; those that are finished are left out.
        out: folder of the comparison.
        resume: go on from the checkpoints in it.
        line: where is shown what the engine is, and how far the runs are.

    Attributes:
        seeds: that have not begun, in their order.
        race: shows how far the others are.
        failures: why runs could not begin.
    """

    def __init__(self, experiments: Sequence[Experiment], out: Path, resume: bool, line: Line) -> None:
        """Read no data yet."""
        self._waiting = [experiment for experiment in experiments if not finished(folder_of(out, experiment))]
        self._first, self._out, self._resume, self._line = experiments[0].seed, out, resume, line
        self._chosen: dict[str, Any] = {}
        self.seeds = list(dict.fromkeys(experiment.seed for experiment in self._waiting))
        self.race = Race(experiments[0].rounds, self.seeds, line)
        self.failures: dict[Who, Failure] = {}

    def next(self) -> Lockstep:
        """The runs of the next seed, or of all that are left where they are one batch to the engine.

        Raises:
            InputError: when something that the first experiment names does not exist or does not fit.
        """
        lanes, begun, more = dict[Who, Lane](), list[int](), True
        while self.seeds and more:
            seed = self.seeds.pop(0)
            begun.append(seed)
            try:
                lanes |= self._lanes(seed)
            except InputError as error:
                if seed == self._first:
                    raise
                # What could be dealt with one seed cannot always be with another, nor when it is tried again.
                self.failures |= {Who(seed, each.algorithm.name): Failure.of(error) for each in self._of(seed)}
            more = "engine" in self._chosen and self._chosen["engine"].name in AT_ONCE
        self.race.begin(begun)
        return Lockstep(lanes)

    def _of(self, seed: int) -> list[Experiment]:
        """The experiments of a seed, with the engine that was chosen for the first one."""
        return [each.model_copy(update=self._chosen) for each in self._waiting if each.seed == seed]

    def _lanes(self, seed: int) -> dict[Who, Lane]:
        """The runs of a seed, on one federation; none has begun."""
        own = {experiment.algorithm.name: experiment for experiment in self._of(seed)}
        setting = prepare(next(iter(own.values())))
        if setting.why:
            self._line.keep(f"engine: {setting.why}")
        settings = _settings(setting, own)
        self._chosen = {"engine": setting.engine}
        lanes = {}
        for name, experiment in own.items():
            folder, show = folder_of(self._out, experiment), partial(self.race.note, seed, name)
            running = steps(experiment, settings[name], folder, resume=self._resume, show=show)
            lanes[Who(seed, name)] = Lane(running, settings[name].clients, setting.clients)
        return lanes


def _settings(setting: Setting, own: Mapping[str, Experiment]) -> dict[str, Setting]:
    """What each algorithm needs, on devices of its own.

    Raises:
        InputError: when a key of one of them does not fit the network or the data.
    """
    settings = {}
    for name, experiment in own.items():
        algorithm = experiment.algorithm_of()
        try:
            rehearse(algorithm, setting.problem)
            algorithm.init(setting.problem)
        except InputError as error:
            raise type(error)(f"{name}: {error}") from None
        settings[name] = replace(setting, algorithm=algorithm, clients=Devices(setting.clients))
    return settings
