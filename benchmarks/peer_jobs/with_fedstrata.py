"""The job by fedstrata: on worker processes, or on the vectorized engine."""

from __future__ import annotations

import json
import os
import sys
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread

from job import Report, given_job

import fedstrata

POLL = 0.005
"""The seconds after which the file of records is looked at again."""


class Rounds(Thread):
    """Notes the rounds as they are written to the run's folder: everything that a round does is over then.

    A round's models are tested together with the training of the next one, so that from record to record is one
    training and one test. The last record follows a test alone, and one round more than the job's is done for it.
    """

    def __init__(self, records: Path, rounds: int, report: Report) -> None:
        """Note so many rounds of a file."""
        super().__init__(daemon=True)
        self._records = records
        self._rounds = rounds
        self._report = report
        self._over = Event()

    def run(self) -> None:
        """Look until told to end."""
        noted = 0
        while not self._over.wait(POLL):
            if self._records.exists() and self._records.stat().st_size:
                lines = self._records.read_text(encoding="utf-8").split("\n")[:-1]
                for line in lines[noted : self._rounds]:
                    self._report.round_ended(json.loads(line)["acc_client"])
                noted = len(lines)

    def end(self) -> None:
        """Look no longer."""
        self._over.set()
        self.join()


def main() -> None:
    """Do the job with the engine that the command line names."""
    job = given_job()
    data = job.data()
    report = Report()
    parts = len(data.y)
    tests = zip(data.test_x.chunk(parts), data.test_y.chunk(parts), strict=True)
    clients = [
        ((images.numpy(), labels.numpy()), (test_images.numpy(), test_labels.numpy()))
        for images, labels, (test_images, test_labels) in zip(data.x, data.y, tests, strict=True)
    ]
    engine: dict[str, str | int] = {"name": sys.argv[3]}
    if engine["name"] == "processes":
        engine["workers"] = os.cpu_count() or 1
    tables = {
        "rounds": job.rounds + 1,
        "local": {"epochs": 1, "batch": job.batch, "lr": job.lr},
        "algorithm": {"name": "fedavg"},
        "engine": engine,
    }
    with TemporaryDirectory() as folder:
        rounds = Rounds(Path(folder, "run", "rounds.jsonl"), job.rounds, report)
        rounds.start()
        fedstrata.run(tables, Path(folder, "run"), clients=clients, model=job.module(), quiet=True)
        rounds.end()
    report.show(version("fedstrata"))


if __name__ == "__main__":
    main()
