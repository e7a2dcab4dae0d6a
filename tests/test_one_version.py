"""Who reads a model or a file while the next one is made reads one version, whole."""

import hashlib
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
import torch

from fedstrata.algorithms import ALGORITHMS
from fedstrata.base.files import read_file, replace_file
from fedstrata.config.hyperparameters import algorithm_from
from fedstrata.flower.payload import encode
from fedstrata.flower.requests import request_for, write_request
from pulled import LAYOUT, Pulled, pulled_problem
from test_every_algorithm import EAGER

READS = 10_000
EVERYONE = torch.arange(12)


def bits(thing: Any) -> str:
    """A hash of the bytes of the models of a state or a plan."""
    return hashlib.sha256(thing.models.numpy().tobytes()).hexdigest()


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_round_leaves_the_models_of_the_round_before_as_they_were(name: str) -> None:
    """They are still being sent, or evaluated, when the next ones are made."""
    algorithm = algorithm_from(name, EAGER.get(name, {}))
    problem, clients = pulled_problem(EVERYONE), Pulled(EVERYONE)
    state = algorithm.init(problem)
    versions = list[tuple[Any, str]]()
    for _ in range(8):
        plan = algorithm.plan(problem, state, EVERYONE)
        versions += [(state, bits(state)), (plan, bits(plan))]
        state, _notes = algorithm.update(problem, state, replace(clients.run(plan), cohort=plan.cohort))
    assert all(bits(thing) == before for thing, before in versions)
    # With local training alone, the models are on the devices.
    assert name == "local" or len({before for _, before in versions}) > 1, "the models never moved"


def test_a_message_holds_the_model_as_it_was_when_it_was_written() -> None:
    problem = pulled_problem(EVERYONE)
    algorithm = algorithm_from("fedavg", {})
    plan = algorithm.plan(problem, algorithm.init(problem), EVERYONE)
    content = encode(write_request(request_for(plan, 3, LAYOUT, ()), LAYOUT))
    before = [array.data for group in content.array_records.values() for array in group.values()]
    plan.models.fill_(7.0)
    assert [array.data for group in content.array_records.values() for array in group.values()] == before
    assert plan.models.numpy().tobytes() not in b"".join(before)


def test_a_file_that_is_replaced_meanwhile_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "00001.safetensors"
    versions = [bytes([value]) * (1000 + 4096 * value) for value in range(1, 9)]
    replace_file(path, versions[0])
    over = Event()

    def write() -> None:
        while not over.is_set():
            for version in versions:
                replace_file(path, version)

    writer = Thread(target=write)
    writer.start()
    try:
        found = {read_file(path) for _ in range(READS)}
    finally:
        over.set()
        writer.join()
    assert found <= set(versions) and len(found) > 1
