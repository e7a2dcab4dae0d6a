from dataclasses import replace
from pathlib import Path

import torch
from baseline_federation import CLIENTS, PARAMETERS, device, experiment, federation, recorded, train

import fedstrata as fs


def test_a_client_alone_is_a_federation_of_one() -> None:
    """Client 3 trained alone equals FedAvg whose cohort is client 3 in every round."""
    alone, shared = federation("local"), federation("fedavg")
    train(alone)
    state = shared.algorithm.init(shared.problem)
    for _ in range(3):
        report = shared.clients.run(shared.algorithm.plan(shared.problem, state, torch.tensor([3])))
        state, _ = shared.algorithm.update(shared.problem, state, report)
    assert torch.allclose(device(alone, 3), state.models[0], atol=1e-6)


def test_nothing_reaches_the_server() -> None:
    setting = federation("local")
    plan = setting.algorithm.plan(setting.problem, setting.algorithm.init(setting.problem), setting.everyone)
    assert not setting.clients.run(plan).results[0].updates.values.any()
    state, _, _ = train(setting)
    assert torch.equal(state.models[0], setting.problem.fresh(0)) and state.round == 3


def test_who_is_absent_rests_and_who_never_took_part_has_the_start() -> None:
    setting = federation("local")
    state, _, _ = train(setting, rounds=1, fraction=0.5)
    rested = [client for client in range(CLIENTS) if not len(device(setting, client))]
    assert len(rested) == 3
    (use,) = setting.algorithm.evaluations(setting.problem, state, torch.tensor(rested))
    plan = setting.algorithm.plan(setting.problem, state, setting.everyone[:0])
    shared = replace(use, load_local=setting.problem.layout.nothing)
    own, start = setting.clients.run(replace(plan, tasks=(), evaluations=(use, shared))).scores
    assert torch.equal(own.loss, start.loss)


def test_the_start_travels_once_and_nothing_comes_back(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run", "local")
    assert [record["bytes_down"] for record in run.rounds] == [CLIENTS * 4 * PARAMETERS, 0, 0]
    assert [record["bytes_up"] for record in run.rounds] == [0, 0, 0]
    assert run.rounds[-1]["acc_client"] > run.rounds[0]["acc_client"]


def test_a_probe_finds_nothing_to_measure(tmp_path: Path) -> None:
    fs.run({**experiment("local"), "rounds": 1, "probe": {"gap": ["dcos"]}}, tmp_path / "run", quiet=True)
    assert not (tmp_path / "run" / "gaps").exists()
