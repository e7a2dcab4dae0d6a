"""Run several algorithms with several seeds, on shared work."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path

from fedstrata.comparison.document import Comparison
from fedstrata.comparison.gathering import conclude
from fedstrata.comparison.ledger import Ledger
from fedstrata.comparison.lineup import LineUp
from fedstrata.comparison.table import Failure, Who
from fedstrata.config import Experiment
from fedstrata.config.folder import vacant
from fedstrata.files import root_folder
from fedstrata.folder_lock import folder_lock
from fedstrata.runner.interrupt import Patience, Stopped
from fedstrata.runner.progress import Line
from fedstrata.runner.rounds import one_thread


def compare(experiments: Sequence[Experiment], out: Path, *, resume: bool = False, quiet: bool = False) -> Comparison:
    """Run experiments that differ in algorithm and seed, or go on with them.

    All algorithms of a seed go round by round, and equal local jobs are done once. Seeds follow each other, unless the
    engine is batched: then what algorithms share is one batch of as many seeds as fit in memory. Each run is recorded
    in a folder of its own, as if it had been run alone: bit for bit, or within its tolerance by the batched engine.
    Only its seconds are those of its own work and its part of what was shared. One that fails does not lose the others.

    Args:
        experiments: checked and complete.
        out: folder of the comparison; made if need be.
        resume: go on from the checkpoints in the folder; finished runs stay as they are.
        quiet: show no progress.

    Raises:
        InputError: when something that the experiments name does not exist or does not fit; nothing is made then. Also
            when another process works in the folder.
        Stopped: after Ctrl-C, when the round is over.
    """
    failures = dict[Who, Failure]()
    with one_thread(), Line(quiet) as line, Patience(line.keep) as patience, ExitStack() as held:

        @cache
        def lock() -> None:
            """Keep others out of the folder, which is made if need be."""
            held.enter_context(folder_lock(root_folder(out)))
            if not resume:
                vacant(out)  # somebody else may have been there in the meantime

        if resume:
            lock()
        ledger = Ledger(out / "jobs.jsonl")
        ahead = LineUp(experiments, out, resume, line, lock)
        while ahead.seeds:
            lockstep = ahead.next(lambda: patience.asked)
            while (round := lockstep.round) is not None and not patience.asked:
                lockstep.step(ledger.add)
                ahead.race.show(round - 1, ledger.jobs.share)
            if patience.asked and (round is not None or ahead.seeds):
                lockstep.close()
                after = f" after round {round - 1}" if round and round > 1 else ""
                raise Stopped(f"stopped in {ahead.race.where}{after}", out)
            failures |= lockstep.failures
            del lockstep  # and with it the data of its seeds, before those of the next are dealt
        lock()
        return conclude(experiments, out, failures | ahead.failures, ledger.jobs)
