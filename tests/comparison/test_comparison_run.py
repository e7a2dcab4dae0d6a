import errno
import json
import signal
import weakref
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from comparing import KEYS, left

import builders
import fedstrata as fs
from builders import records_of
from fedstrata.algorithms.adacfl import AdaCFL
from fedstrata.algorithms.ditto import Ditto
from fedstrata.base.errors import InputError, PartitionError
from fedstrata.build.build import build_run
from fedstrata.config import load_experiment
from fedstrata.core import Plan, Report, Score
from fedstrata.engine import Loop
from fedstrata.play.interrupt import Stopped
from fedstrata.play.progress import ComparisonProgress
from fedstrata.records.checkpoint import save
from fedstrata.records.folder import Folder
from fedstrata.report.comparison.folder import JobCount

pytestmark = pytest.mark.usefixtures("forked_workers")

ALGORITHMS = ("fedavg", "cfl", "layercfl", "hicfl", "adacfl", "fedper", "ditto", "ifca", "strata")


@pytest.fixture(autouse=True)
def built(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The folders of which a page was made; making one takes longer than all else."""
    folders: list[Path] = []
    monkeypatch.setattr("fedstrata.report.build", folders.append)
    return folders


class Counter:
    """Counts the local jobs that engines do."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done, run = 0, Loop.run

        def counted(engine: Loop, plan: Plan) -> Report:
            report = run(engine, plan)
            self.done += sum(len(result.sizes) for result in report.results.values())
            return report

        monkeypatch.setattr(Loop, "run", counted)

    def since(self) -> int:
        """Jobs since the last call."""
        done, self.done = self.done, 0
        return done


def compare(out: Path, algorithms: tuple[str, ...] = ("fedavg", "cfl", "ditto"), **options: Any) -> fs.Comparison:
    return fs.compare(options.pop("keys", KEYS), algorithms, out=out, quiet=True, **options)


def test_every_run_is_bit_for_bit_what_it_is_alone_and_equal_jobs_are_done_once(
    tmp_path: Path, built: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    counter = Counter(monkeypatch)
    comparison = compare(tmp_path / "all", ALGORITHMS, seeds=[3])
    assert built == [run.folder for run in comparison.runs]
    assert comparison.jobs and comparison.jobs.trained == counter.since()
    for run in comparison.runs:
        sets = [f"algorithm.name={run.algorithm}", f"seed={run.seed}"]
        alone = fs.run(KEYS, tmp_path / f"{run.algorithm}-{run.seed}", sets=sets, quiet=True)
        assert left(run.folder) == left(alone.folder), run.algorithm
        timeless = [{k: v for k, v in s.items() if "seconds" not in k} for s in (run.summary or {}, alone.summary)]
        assert timeless[0] == timeless[1]
    assert comparison.jobs.asked == counter.since() and comparison.jobs.share < 0.8
    clusters = {run.algorithm: run.summary["clusters"] for run in comparison.runs if run.summary}
    assert clusters["cfl"] > 2 and clusters["layercfl"] > 1 and clusters["fedavg"] == 1
    assert any(record["absent"] for record in records_of(comparison.runs[0].folder))


def test_worker_processes_change_no_bit_of_a_comparison(tmp_path: Path) -> None:
    for name in ("loop", "processes"):
        compare(tmp_path / name, ("fedavg", "cfl", "ditto"), sets=[f"engine.name={name}", "engine.workers=2"])
    for run in ("fedavg-0", "cfl-0", "ditto-0"):
        one, other = (tmp_path / name / run for name in ("loop", "processes"))
        assert builders.left(one) == builders.left(other)


def test_the_time_of_all_runs_together_is_that_of_the_work_that_was_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every call of the engine takes a second on the clock of the engine's side; three algorithms share it evenly."""
    clock = iter(range(10_000))
    monkeypatch.setattr("fedstrata.engine.shared_work.perf_counter", lambda: next(clock))
    comparison = compare(tmp_path / "all", ("fedavg", "strata", "layercfl"), sets=["rounds=1", "cohort.fraction=1.0"])
    # No private work: two readings of the clock for the shared plan, and two more for each algorithm.
    spent = [run.summary["seconds_training"] for run in comparison.runs if run.summary]
    assert spent == pytest.approx([4 / 3] * 3)


Whole = Callable[[str, tuple[int, ...]], fs.Comparison]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """Makes a comparison that is not interrupted, once for each engine and seeds."""

    @cache
    def made(engine: str, seeds: tuple[int, ...]) -> fs.Comparison:
        return compare(tmp_path_factory.mktemp("whole") / "all", seeds=seeds, sets=[f"engine.name={engine}"])

    return made


@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_stopped_after_a_round_and_resumed_is_as_never_stopped(
    engine: str, whole: Whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sets = [f"engine.name={engine}"]
    expected = whole(engine, (0, 1))
    show = ComparisonProgress.show

    def interrupted(progress: ComparisonProgress, round: int, share: float) -> None:
        show(progress, round, share)
        if round == 2:
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(ComparisonProgress, "show", interrupted)
        with pytest.raises(Stopped, match=r"^stopped in seed 0 after round 3; ") as stop:
            compare(tmp_path / "broken", seeds=[0, 1], sets=sets)
    assert stop.value.folder == tmp_path / "broken"
    assert [record["round"] for record in records_of(tmp_path / "broken" / "cfl-0")] == [1, 2]
    again = compare(tmp_path / "broken", seeds=[0, 1], resume=True, sets=sets)
    assert [left(run.folder) for run in again.runs] == [left(run.folder) for run in expected.runs]
    counter = Counter(monkeypatch)
    final = compare(tmp_path / "broken", seeds=[0, 1], resume=True, sets=sets)
    assert final.jobs == JobCount(0, 0) and not counter.since()
    assert final.table == again.table


@pytest.mark.parametrize(
    ("saves", "engine", "seeds"),
    [(5, "loop", [0]), (7, "loop", [0]), (9, "loop", [0]), (8, "batched", [0])],
)
def test_killed_while_checkpoints_were_written_and_resumed_is_as_never_stopped(
    saves: int, engine: str, seeds: list[int], whole: Whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some of three algorithms are a round ahead of the others then."""
    sets, count = [f"engine.name={engine}"], 0
    expected = whole(engine, tuple(seeds))

    def dying(*given: Any, **named: Any) -> None:
        nonlocal count
        count += 1
        if count > saves:
            raise KeyboardInterrupt
        save(*given, **named)

    with monkeypatch.context() as patch:
        patch.setattr("fedstrata.play.recorder.save", dying)
        with pytest.raises(KeyboardInterrupt):
            compare(tmp_path / "broken", seeds=seeds, sets=sets)
    again = compare(tmp_path / "broken", seeds=seeds, sets=sets, resume=True)
    assert [left(run.folder) for run in again.runs] == [left(run.folder) for run in expected.runs]


def test_algorithms_and_seeds_can_be_added_to_a_comparison(tmp_path: Path) -> None:
    compare(tmp_path / "all", ("fedavg", "cfl"))
    more = compare(tmp_path / "all", ("fedavg", "hicfl"), seeds=[0, 1], resume=True)
    assert [run.folder.name for run in more.runs] == ["fedavg-0", "hicfl-0", "fedavg-1", "hicfl-1"]
    whole = compare(tmp_path / "whole", ("fedavg", "hicfl"), seeds=[0, 1])
    assert [left(run.folder) for run in more.runs] == [left(run.folder) for run in whole.runs]


def test_a_comparison_tests_all_folds_and_more_repeats_can_be_added(tmp_path: Path) -> None:
    folds = {**KEYS, "rounds": 1, "data": {"name": "digits", "clients": 8, "samples": 60, "folds": 2}}
    first = compare(tmp_path / "all", ("fedavg",), keys=folds)
    assert [run.folder.name for run in first.runs] == ["fedavg-0", "fedavg-1"]
    more = compare(tmp_path / "all", ("fedavg",), keys=folds, sets=["data.repeats=2"], resume=True)
    assert [run.folder.name for run in more.runs] == [f"fedavg-{seed}" for seed in range(4)]
    assert all(run.summary for run in more.runs)
    tested = [build_run(load_experiment(run.folder / "experiment.toml")).client_data.test(0) for run in more.runs]
    assert {*tested[0].tolist()}.isdisjoint(tested[1].tolist())


def test_an_algorithm_that_fails_does_not_lose_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, update, plan = compare(tmp_path / "whole"), Ditto.update, AdaCFL.plan

    def failing(ditto: Ditto, problem: Any, state: Any, report: Report) -> Any:
        return update(ditto, problem, state, report) if state.round < 1 else [][0]

    def strange(adacfl: AdaCFL, problem: Any, state: Any, cohort: Any) -> Plan:
        wanted = plan(adacfl, problem, state, cohort)
        return type(wanted)(**{**vars(wanted), "client_stats": {"age": cohort >= 0}}) if state.round == 1 else wanted

    monkeypatch.setattr(Ditto, "update", failing)
    monkeypatch.setattr(AdaCFL, "plan", strange)
    broken = compare(tmp_path / "broken", ("fedavg", "cfl", "ditto", "adacfl"))
    assert [run.error.partition(" ")[0] for run in broken.runs] == ["", "", "IndexError:", "ContractError:"]
    assert "in failing" in broken.runs[2].traceback
    for run, other in zip(broken.runs[:2], whole.runs, strict=False):
        assert left(run.folder) == left(other.folder)
    assert broken.jobs and broken.jobs.asked > broken.jobs.trained
    content = json.loads((tmp_path / "broken" / "comparison.json").read_text())
    assert content["table"][2]["failed"] == [0] and content["runs"][2]["summary"] is None
    assert "ditto with seed 0 failed: IndexError" in (tmp_path / "broken" / "comparison.md").read_text(encoding="utf-8")


def test_a_run_without_room_on_the_disk_does_not_lose_the_others_and_is_resumed_as_never_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = compare(tmp_path / "whole")
    add = Folder.add

    def full(folder: Folder, record: Mapping[str, Any], score: Score) -> None:
        if folder.path.name == "cfl-0" and record["round"] == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        add(folder, record, score)

    with monkeypatch.context() as patch:
        patch.setattr(Folder, "add", full)
        found = compare(tmp_path / "c")
    assert [bool(run.error) for run in found.runs] == [False, True, False]
    assert found.troubles[0].startswith("cfl with seed 0 failed: ResourceError: expected free space on the disk, found")
    again = compare(tmp_path / "c", resume=True)
    assert not again.troubles
    assert all(left(one.folder) == left(two.folder) for one, two in zip(again.runs, whole.runs, strict=True))


def test_a_run_that_failed_does_not_keep_the_data_of_its_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception holds the frames it went through, and they hold the engine."""
    holdings, kept = list[weakref.ref[Any]](), list[bool]()

    def watched(experiment: Any) -> Any:
        kept.extend(each() is not None for each in holdings)
        setup = build_run(experiment)
        holdings.append(weakref.ref(setup.client_data))
        return setup

    monkeypatch.setattr("fedstrata.comparison.run.build_run", watched)
    monkeypatch.setattr(Ditto, "update", lambda *given: [][0])
    comparison = compare(tmp_path / "all", ("fedavg", "ditto"), seeds=[0, 1], sets=["rounds=1"])
    assert [bool(run.error) for run in comparison.runs] == [False, True, False, True] and kept == [False]


@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_a_seed_that_cannot_be_partitioned_does_not_lose_the_others(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sets = [f"engine.name={engine}"]

    def scarce(experiment: Any) -> Any:
        if experiment.seed == 1:
            raise PartitionError("1000 draws left some client short")
        return build_run(experiment)

    monkeypatch.setattr("fedstrata.comparison.run.build_run", scarce)
    comparison = compare(tmp_path / "all", ("fedavg", "ditto"), seeds=[0, 1, 2], sets=sets)
    assert [bool(run.summary) for run in comparison.runs] == [True, True, False, False, True, True]
    assert comparison.table[0].failed == (1,)
    more = compare(tmp_path / "all", ("fedavg", "ditto"), seeds=[0, 1, 3], resume=True, sets=sets)
    assert [run.seed for run in more.runs] == [0, 0, 1, 1, 3, 3]
    assert [bool(run.summary) for run in more.runs] == [True, True, False, False, True, True]
    with pytest.raises(InputError, match="1000 draws"):
        compare(tmp_path / "other", seeds=[1, 0])
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("algorithms", "message"),
    [
        (("fedavg", "layercfl"), "^layercfl: algorithm.layers = 'convv' matches no layer"),
        (("layercfl", "fedavg"), "^algorithm.layers = 'convv' matches no layer"),
        (("fedavg", "oracle"), "oracle: .* needs a partition with true groups"),
    ],
)
def test_what_does_not_fit_is_found_before_anything_is_made(
    algorithms: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    dirichlet = {"scheme": "dirichlet", "alpha": 1.0}
    keys = {**KEYS, "partition": dirichlet, "algorithms": {"layercfl": {"layers": "convv"}}}
    with pytest.raises(InputError, match=message):
        compare(tmp_path / "all", algorithms, keys=keys)
    assert not (tmp_path / "all").exists()
