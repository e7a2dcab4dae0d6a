import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from forty import CLIENTS, SITE, check, deadly_site, fail, plain, rich, suicide

from fedstrata.engine import Ray, Workers
from fedstrata.engine.workers import ray as tasks
from fedstrata.engine.workers.sharding import Order, perform
from fedstrata.errors import EngineError, ExperimentError
from turns import same

# Ray's own: how it looks for accelerators, and what it leaves to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::ResourceWarning")


def test_without_ray_it_is_said_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ExperimentError, match=r'expected Ray, found none; pip install "fedstrata\[ray\]"'):
        Ray(SITE)


@pytest.mark.parametrize("variable", ["", "10.0.0.1:6379"])
@pytest.mark.parametrize("given", [None, "10.0.0.2:6379"])
def test_ray_is_started_on_this_machine_alone_unless_a_cluster_is_named(
    monkeypatch: pytest.MonkeyPatch, variable: str, given: str | None
) -> None:
    asked = dict[str, Any]()

    def start(**keys: Any) -> None:
        asked.update(keys)
        raise ConnectionError("nobody there\nand much more")

    monkeypatch.setenv("RAY_ADDRESS", variable)
    engine = Workers(SITE, Ray(SITE, 9, given))
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setattr("ray.init", start)
    address = given or variable or "local"
    with pytest.raises(EngineError, match=f"expected Ray at '{address}', found none: nobody there$"):
        engine.run(plain())
    assert asked["address"] == address
    assert asked.get("_node_ip_address") == ("127.0.0.1" if address == "local" else None)
    assert asked.get("num_cpus", 0) >= 9 or address != "local"


def test_what_a_task_does_is_sent_to_the_cluster_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray keeps everything that it was ever given as a task, and complains after a hundred times."""
    sent, transport = [], Ray(SITE, 1)

    class Task:
        def remote(self, site: list[Any], order: Any, shard: Any, path: list[str]) -> Any:
            return tasks._boxed(perform(SITE.loop(), tasks._opened(order), shard))

    def remote(**options: Any) -> Any:
        sent.append(options)
        return lambda work: Task()

    monkeypatch.setattr("ray.is_initialized", lambda: True)
    monkeypatch.setattr("ray.remote", remote)
    monkeypatch.setattr("ray.put", lambda thing: thing)
    monkeypatch.setattr("ray.get", lambda things: things)
    check(Workers(SITE, transport), [rich(), rich(2)])
    assert sent == [{"num_cpus": 1, "max_retries": 2}]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 3])
def test_ray_is_the_loop_in_every_bit(workers: int) -> None:
    engine = Workers(SITE, Ray(SITE, workers))
    check(engine, [rich(), rich(2, [0, 20, 33]), rich(3, [CLIENTS])])
    engine.close()
    assert Ray(SITE).workers >= 1
    import ray  # only now, for what it binds to is settled when it is imported first

    nodes = ray.nodes()  # type: ignore[no-untyped-call]  # Ray leaves it without annotations
    assert [node["NodeManagerAddress"] for node in nodes] == ["127.0.0.1"]


@pytest.mark.slow
def test_a_task_is_the_work_of_a_shard() -> None:
    transport, order = Ray(SITE, 1), Order(rich(), {})
    box = tasks._work([transport._data], tasks._boxed(order), (0, 2), ["a folder"])
    assert same(tasks._opened(box), perform(SITE.loop(), order, (0, 2))) and sys.path.pop() == "a folder"


@pytest.mark.slow
def test_a_worker_of_ray_that_dies_changes_no_bit(tmp_path: Path) -> None:
    site = deadly_site(suicide, tmp_path / "died")
    found = Workers(site, Ray(site, 2)).run(plain())
    assert (tmp_path / "died").exists() and same(found, SITE.loop().run(plain()))


@pytest.mark.slow
def test_work_that_kills_every_worker_of_ray_fails() -> None:
    site = deadly_site(suicide)
    with pytest.raises(EngineError, match="expected answers from Ray's workers, found WorkerCrashedError"):
        Workers(site, Ray(site, 1)).run(plain())


@pytest.mark.slow
def test_what_a_task_raises_is_raised_here() -> None:
    site = deadly_site(partial(fail, KeyError("somewhere")))
    with pytest.raises(KeyError, match="somewhere") as found:
        Workers(site, Ray(site, 1)).run(plain())
    assert type(found.value) is KeyError
