import gc
import os
import signal
import sys
from collections.abc import Container, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from forty import CLIENTS, SITE, check, deadly_site, fail, plain, rich, suicide

from fedstrata.base.errors import EngineError, ExperimentError, UserCodeError
from fedstrata.engine import Loop, Parallel, Ray
from fedstrata.engine.parallel import ray as tasks
from fedstrata.engine.parallel.sharding import ShardRequest, perform
from personal_stage import play as play_personal
from personal_stage import with_stage
from played_rounds import by_loop, loop_setting, play, setting_of
from turns import same

# Ray's own: how it looks for accelerators, and what it leaves to the garbage collector.
pytestmark = [
    pytest.mark.deploy,
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::ResourceWarning"),
]


@pytest.fixture(scope="module", autouse=True)
def imported_for_this_machine() -> Iterator[None]:
    """What Ray binds to is settled when it is imported, so the first engine of the process names no other cluster.

    What was started ends with these tests: processes of Ray compute also when nobody asks them to.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("RAY_ADDRESS", raising=False)
        Ray(SITE)
    yield
    import ray

    ray.shutdown()
    gc.collect()  # now, while what Ray leaves to it is ignored


def test_without_ray_it_is_said_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ExperimentError, match=r'expected Ray, found none; pip install "fedstrata\[ray\]"'):
        Ray(SITE)


@pytest.mark.parametrize("variable", ["", "10.0.0.1:6379"])
def test_ray_is_started_on_this_machine_alone_unless_a_cluster_is_named(
    monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    asked = dict[str, Any]()

    def start(**keys: Any) -> None:
        asked.update(keys)
        raise ConnectionError("nobody there\nand much more")

    monkeypatch.setenv("RAY_ADDRESS", variable)
    engine = Parallel(SITE, Ray(SITE, 9))
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setattr("ray.init", start)
    address = variable or "local"
    with pytest.raises(EngineError, match=f"expected Ray at '{address}', found none: nobody there$"):
        engine.run(plain())
    assert asked["address"] == address
    assert asked.get("_node_ip_address") == ("127.0.0.1" if address == "local" else None)
    assert asked.get("num_cpus", 0) >= 9 or address != "local"


def node_of(name: str, cores: float, alive: bool = True) -> dict[str, Any]:
    return {"NodeID": name, "Alive": alive, "Resources": {"CPU": cores} if cores else {}}


class Cluster:
    """Stands in for Ray: tasks are done when they are given, and some of their answers never arrive.

    Attributes:
        sent: Options under which work was sent, and the options of each task that differ from them.
        silent: Numbers of the tasks that never answer.
        limits: Seconds that were waited for.
        cores: The cores that the cluster has, each time that it is asked; none when no number is left.
        nodes: Its nodes as Ray lists them.
    """

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, silent: Container[int] = (), cores: Sequence[float] = (4.0,) * 9
    ) -> None:
        self.sent = list[dict[str, Any]]()
        self.cores = list(cores)
        self.nodes = [node_of("a" * 56, 0), node_of("b" * 56, 2, alive=False), node_of("c" * 56, 2)]
        self.limits, self.silent, self._answers = list[float | None](), silent, list[Any]()
        monkeypatch.setattr("ray.is_initialized", lambda: True)
        monkeypatch.setattr("ray.remote", self._work)
        monkeypatch.setattr("ray.put", lambda thing: thing)
        monkeypatch.setattr("ray.wait", self._wait)
        monkeypatch.setattr("ray.get", self._answers.__getitem__)
        monkeypatch.setattr("ray.cluster_resources", lambda: {"CPU": self.cores.pop(0)} if self.cores else {})
        monkeypatch.setattr("ray.nodes", lambda: self.nodes)

    def options(self, **options: Any) -> "Cluster":
        self.sent.append(options)
        return self

    def remote(self, spec: list[Any], order: Any, shard: Any, path: list[str], versions: dict[str, str]) -> int:
        self._answers.append(tasks._boxed(perform(Loop.at(SITE), tasks._opened(order), shard)))
        return len(self._answers) - 1

    def _work(self, **options: Any) -> Any:
        self.sent.append(options)
        return lambda work: self

    def _wait(self, given: list[int], num_returns: int, timeout: float | None) -> tuple[list[int], list[int]]:
        self.limits.append(timeout)
        done = [task for task in given if task not in self.silent][:num_returns]
        return done, [task for task in given if task not in done]


def test_what_a_worker_of_ray_does_not_answer_is_done_by_another_and_changes_no_bit(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = Cluster(monkeypatch, silent=[1])
    check(Parallel(SITE, Ray(SITE, 3, timeout=50)), [rich()])
    (again,) = cluster.sent[1:]
    assert again["num_cpus"] == 0 and cluster.limits == [50] * 4
    # Not on the head, which has no cores for work, and not on a node that is lost.
    assert again["scheduling_strategy"].node_id == "c" * 56 and again["scheduling_strategy"].soft
    assert caplog.messages == ["no worker of Ray answered for 50 s; others do the same work too"]


def test_what_no_worker_of_ray_answers_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    Cluster(monkeypatch, silent=range(10))
    with pytest.raises(EngineError, match=r"found none for 50 s, from 2 in turn with the same clients.*engine.timeout"):
        Parallel(SITE, Ray(SITE, 3, timeout=50)).run(plain())


def test_work_that_waits_for_a_node_is_not_taken_for_hung(monkeypatch: pytest.MonkeyPatch) -> None:
    silent = {0}
    cluster = Cluster(monkeypatch, silent, cores=[])

    def warn(text: str) -> None:
        if len(cluster.limits) == 4:
            silent.clear()

    monkeypatch.setattr(tasks._logger, "warning", warn)
    check(Parallel(SITE, Ray(SITE, 1, timeout=50)), [rich()])
    assert cluster.limits == [50] * 5 and len(cluster.sent) == 1


def test_a_node_with_other_versions_is_refused() -> None:
    with pytest.raises(EngineError, match=r"expected torch 1\.0 on all nodes .* found 2\..* install the same there"):
        tasks._work([None], None, (0,), [], {**tasks._versions(), "torch": "1.0"})


def test_a_worker_of_ray_that_stops_changes_no_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped = tmp_path / "stopped"
    spec = deadly_site(partial(stop, tmp_path / "pid"), stopped)
    give_up_once_on(tmp_path / "pid", monkeypatch)
    try:
        found = Parallel(spec, Ray(spec, 2)).run(plain())
        assert stopped.exists() and same(found, Loop.at(SITE).run(plain()))
    finally:
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)


def stop(pid: Path) -> None:
    pid.write_text(str(os.getpid()))
    os.kill(os.getpid(), signal.SIGSTOP)


def give_up_once_on(pid: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the time of a wait be over as soon as the process of that id has stopped, and never again.

    Args:
        pid: The file that the process writes its id to.
        monkeypatch: Undoes it.
    """
    import ray

    wait, over = ray.wait, list[bool]()

    def has_stopped() -> bool:
        number = pid.read_text() if pid.exists() else ""
        return bool(number) and Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] == "T"

    def impatient(tasks: list[Any], num_returns: int, timeout: float | None) -> tuple[list[Any], list[Any]]:
        while True:
            done, others = wait(tasks, num_returns=num_returns, timeout=0.1)
            if done:
                return done, others
            if not over and has_stopped():
                over.append(True)
                return done, others

    monkeypatch.setattr("ray.wait", impatient)


def test_ray_is_the_loop_in_every_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a cluster of one core, whose only process does the tasks in turn: each process takes long to start."""
    monkeypatch.setattr(tasks, "cores", lambda: 1)
    check(Parallel(SITE, Ray(SITE, 1)), [rich(3, [CLIENTS])])
    engine = Parallel(SITE, Ray(SITE, 2))
    check(engine, [rich(), rich(2, [0, 20, 33])])
    engine.close()
    assert Ray(SITE).workers >= 1
    import ray  # only now, for what it binds to is settled when it is imported first

    nodes = ray.nodes()  # type: ignore[no-untyped-call]  # Ray leaves it without annotations
    assert [node["NodeManagerAddress"] for node in nodes] == ["127.0.0.1"]


def test_algorithms_and_the_personal_stage_on_ray_are_the_loop_in_every_bit() -> None:
    setup = setting_of("ray", 2)
    for name in ("centralized", "ditto", "strata"):
        assert same(play(setup, name), by_loop(name)), name
    found, expected = (play_personal(with_stage(each, "ifca", "best")) for each in (setup, loop_setting()))
    assert same(found.reports, expected.reports) and same(found.stored, expected.stored)


def test_a_task_is_the_work_of_a_shard() -> None:
    transport, order = Ray(SITE, 1), ShardRequest(rich(), {})
    box = tasks._work([transport._data], tasks._boxed(order), (0, 2), ["a folder"], {})
    assert same(tasks._opened(box), perform(Loop.at(SITE), order, (0, 2))) and sys.path.pop() == "a folder"


def test_a_worker_of_ray_that_dies_changes_no_bit(tmp_path: Path) -> None:
    spec = deadly_site(suicide, tmp_path / "died")
    found = Parallel(spec, Ray(spec, 2)).run(plain())
    assert (tmp_path / "died").exists() and same(found, Loop.at(SITE).run(plain()))


def test_work_that_kills_every_worker_of_ray_fails() -> None:
    spec = deadly_site(suicide)
    with pytest.raises(EngineError, match="expected answers from Ray's workers, found WorkerCrashedError"):
        Parallel(spec, Ray(spec, 1)).run(plain())


def test_what_a_task_raises_is_raised_here() -> None:
    spec = deadly_site(partial(fail, KeyError("somewhere")))
    with pytest.raises(UserCodeError, match=r"failed: KeyError: .somewhere") as found:
        Parallel(spec, Ray(spec, 1)).run(plain())
    assert type(found.value) is UserCodeError and "in forward" in found.value.trace
