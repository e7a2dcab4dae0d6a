from pathlib import Path

import torch
from baseline_federation import CLIENTS, HEAD, PARAMETERS, device, federation, recorded, train


def test_the_servers_head_stays_as_it_was_so_that_newcomers_start_from_it() -> None:
    setting = federation("fedper")
    state, _, _ = train(setting)
    start, head = (
        setting.server.problem.fresh(0),
        setting.server.problem.layout.columns(setting.server.problem.layout.select("head")),
    )
    assert torch.equal(state.models[0, head], start[head]) and not torch.equal(state.models[0], start)
    heads = torch.stack([device(setting, client) for client in range(CLIENTS)])
    assert heads.shape == (CLIENTS, HEAD) and len(heads.unique(dim=0)) == CLIENTS


def test_an_absent_client_keeps_its_head() -> None:
    setting = federation("fedper")
    train(setting, rounds=1)
    before = device(setting, 0)
    state = setting.server.algorithm.init(setting.server.problem)
    setting.clients.run(setting.server.algorithm.plan(setting.server.problem, state, torch.tensor([1, 2])))
    assert torch.equal(device(setting, 0), before)


def test_the_head_travels_once_and_the_base_every_round(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run", "fedper")
    base = CLIENTS * 4 * (PARAMETERS - HEAD)
    assert [record["bytes_down"] for record in run.rounds] == [CLIENTS * 4 * PARAMETERS, base, base]
    assert [record["bytes_up"] for record in run.rounds] == [base] * 3
