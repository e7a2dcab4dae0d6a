"""Run several algorithms with several seeds, on shared work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from fedstrata.comparison.document import Comparison
from fedstrata.comparison.gathering import conclude, finished
from fedstrata.comparison.ledger import Ledger
from fedstrata.comparison.lockstep import Lane, Lockstep
from fedstrata.comparison.table import Failure
from fedstrata.config import Experiment, folder_of
from fedstrata.engine.sharing import Devices
from fedstrata.errors import InputError
from fedstrata.patience import Patience, Stopped
from fedstrata.progress import Line, Race
from fedstrata.setting import Setting, prepare, rehearse
from fedstrata.train import one_thread, steps


def compare(experiments: Sequence[Experiment], out: Path, *, resume: bool = False, quiet: bool = False) -> Comparison:
    """Run experiments that differ in algorithm and seed, one seed after the other, or go on with them.

    All algorithms of a seed go round by round, and equal local jobs are done once. Each run is recorded in a folder of
    its own, as if it had been run alone: bit for bit, or within its tolerance by the batched engine. Only its seconds
    are those of its own work and its part of what was shared. One that fails does not lose the others.

    Args:
        experiments: checked and complete.
        out: folder of the comparison; made if need be.
        resume: go on from the checkpoints in the folder; finished runs stay as they are.
        quiet: show no progress.

    Raises:
        InputError: when something that the experiments name does not exist or does not fit; nothing is made then.
        Stopped: after Ctrl-C, when the round is over.
    """
    waiting = [experiment for experiment in experiments if not finished(folder_of(out, experiment))]
    seeds = list(dict.fromkeys(experiment.seed for experiment in waiting))
    ledger, failures, chosen = Ledger(out / "jobs.jsonl"), dict[Path, Failure](), dict[str, Any]()
    with one_thread(), Line(quiet) as line, Patience(line.keep) as patience:
        race = Race(experiments[0].rounds, seeds, line)
        for seed in seeds:
            race.begin(seed)
            own = {e.algorithm.name: e.model_copy(update=chosen) for e in waiting if e.seed == seed}
            try:
                setting = prepare(next(iter(own.values())))
                if setting.why:
                    line.keep(f"engine: {setting.why}")
                lockstep = _line_up(setting, own, out, resume, race)
            except InputError as error:
                if seed == experiments[0].seed:
                    raise
                # What could be dealt with one seed cannot always be with another, nor when it is tried again.
                failures |= {folder_of(out, experiment): Failure.of(error) for experiment in own.values()}
                continue
            chosen = {"engine": setting.engine}
            while (round := lockstep.round) is not None and not patience.asked:
                lockstep.step(partial(ledger.add, seed, round))
                race.show(round - 1, ledger.jobs.share)
            if patience.asked and (round is not None or seed != seeds[-1]):
                lockstep.close()
                where = f"stopped in seed {seed}" + (f" after round {round - 1}" if round else "")
                raise Stopped(where, out)
            failures |= {folder_of(out, own[name]): failure for name, failure in lockstep.failures.items()}
            del setting, lockstep  # and with them the data of this seed, before those of the next are dealt
    return conclude(experiments, out, failures, ledger.jobs)


def _line_up(setting: Setting, own: Mapping[str, Experiment], out: Path, resume: bool, race: Race) -> Lockstep:
    """The runs of one seed by the name of the algorithm, on one federation.

    Raises:
        InputError: when a key of one of them does not fit the network or the data; no run has begun then.
    """
    settings = {}
    for name, experiment in own.items():
        algorithm, devices = experiment.algorithm_of(), Devices(setting.clients)
        try:
            rehearse(algorithm, setting.problem)
            algorithm.init(setting.problem)
        except InputError as error:
            raise type(error)(f"{name}: {error}") from None
        settings[name] = replace(setting, algorithm=algorithm, clients=devices)
    lanes = {
        name: Lane(
            steps(experiment, settings[name], folder_of(out, experiment), resume=resume, show=partial(race.note, name)),
            settings[name].clients,
        )
        for name, experiment in own.items()
    }
    return Lockstep(lanes, setting.clients)
