"""The table ``[attack]`` of an experiment."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import fedstrata as fs
from builders import federation, keys, run
from fedstrata.base.errors import ExperimentError, UserCodeError
from fedstrata.build.attacks import attacked_data
from fedstrata.build.build import build_run
from fedstrata.config import load_experiment
from fedstrata.data import load_dataset
from fedstrata.play.used_models import ModelInUse, backdoor_summary
from fedstrata.uploads.attacks.updates import DATA_ATTACKS, NEED_GROUPS, named_attacks

pytestmark = pytest.mark.usefixtures("forked_workers")

TABLES = keys(data={"name": "digits", "clients": 10, "samples": 60, "test": 0.25}, local={"lr": 0.3, "batch": 20})


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> fs.Run:
    """The run without an attack."""
    return run(tmp_path_factory.mktemp("honest") / "run", TABLES)


@pytest.mark.parametrize("kind", named_attacks())
def test_every_attack_runs_and_the_summary_is_about_honest_clients(kind: str, honest: fs.Run, tmp_path: Path) -> None:
    found = run(tmp_path / "run", TABLES, attack={"kind": kind, "share": 0.2})
    told = found.summary["attack"]
    assert len(told["clients"]) == 2 and told["acc_honest_worst"] <= told["acc_honest"] <= 1
    assert told["ari_honest"] == 0.0  # FedAvg has one cluster
    assert "attack" not in honest.summary
    assert not torch.equal(found.state.models, honest.state.models)


def test_an_attack_from_a_later_round_leaves_the_first_ones_as_they_were(honest: fs.Run, tmp_path: Path) -> None:
    late = run(tmp_path / "late", TABLES, attack={"kind": "sign_flip", "share": 0.3, "from_round": 3})
    ours, theirs = ([record["acc_client"] for record in found.rounds] for found in (late, honest))
    assert ours[:2] == theirs[:2] and ours[-1] != theirs[-1]


def test_a_resumed_run_is_attacked_in_the_same_way(tmp_path: Path) -> None:
    attack = {"kind": "noise", "share": 0.2}
    whole = run(tmp_path / "whole", TABLES, attack=attack)
    run(tmp_path / "half", TABLES, rounds=2, attack=attack)
    resumed = run(tmp_path / "half", TABLES, attack=attack, resume=True)
    assert torch.equal(resumed.state.models, whole.state.models)


def test_byzantine_clients_flip_their_labels() -> None:
    setup = federation(TABLES, attack={"kind": "label_flip", "share": 0.2})
    plain = federation(TABLES)
    assert setup.byzantine is not None
    for client in range(10):
        index = plain.client_data.train(client)
        (_, labels), (_, before) = (next(iter(each.client_data.batches(index, 1000))) for each in (setup, plain))
        assert torch.equal(labels, 9 - before if client in setup.byzantine.ids else before)


def test_an_attack_of_ones_own_is_a_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_attack.py").write_text("def still(own, honest, strength, generator):\n    return own * strength\n")
    monkeypatch.chdir(tmp_path)
    own = run(tmp_path / "own", TABLES, attack={"kind": "own_attack:still", "share": 0.2, "strength": 0.0})
    zero = run(tmp_path / "zero", TABLES, attack={"kind": "zero", "share": 0.2})
    assert torch.equal(own.state.models, zero.state.models)


@pytest.mark.parametrize(
    ("body", "message"), [("return own[:1, :1]", "expected a tensor"), ("1 / 0", "division by zero")]
)
def test_an_attack_of_ones_own_that_fails_is_told_in_one_line(
    body: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = f"broken_{len(body)}"
    (tmp_path / f"{module}.py").write_text(f"def attack(own, honest, strength, generator):\n    {body}\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserCodeError) as failed:
        run(tmp_path / "run", TABLES, attack={"kind": f"{module}:attack", "share": 0.2})
    assert message in str(failed.value) and str(failed.value).startswith(f"attack.kind = '{module}:attack'")


def test_all_byzantine_clients_are_in_the_largest_group(tmp_path: Path) -> None:
    partition = {"scheme": "rotation", "sizes": [3, 7]}
    attack = {"kind": "zero", "share": 0.4, "where": "one_cluster"}
    found = run(tmp_path / "run", TABLES, partition=partition, attack=attack)
    told = found.summary["attack"]["clients"]
    assert len(told) == 3 and min(told) >= 3


def test_the_reference_of_a_run_is_attacked_as_well(tmp_path: Path) -> None:
    attack = {"kind": "sign_flip", "share": 0.3}
    run(tmp_path / "run", TABLES, algorithm={"name": "oracle"}, report={"baseline": True}, attack=attack)
    alone = run(tmp_path / "alone", TABLES, attack=attack)
    assert torch.equal(fs.load(tmp_path / "run" / "baseline").state.models, alone.state.models)


WITHOUT_GROUPS = {"partition": {"scheme": "dirichlet", "alpha": 0.5}}
CHANGED_DATA = {"events": {"change": [{"round": 2, "client": 2, "takes_data_of": 1}]}}
ONE_WITH_WEIGHT = {"cohort": {"fraction": 0.5, "weights": [1.0, 1.0, *[0.0] * 8]}}
"""Beside client 1, which gives its data away with `CHANGED_DATA`."""


@pytest.mark.parametrize(
    ("attack", "tables", "message"),
    [
        ({"kind": "math:pi"}, {}, "attack.kind = 'math:pi': expected a function, found float"),
        ({"kind": "zero", "strength": 2.0}, {}, "no strength with kind = 'zero', which does not use it"),
        ({"kind": "noise", "from_round": 5}, {}, "attack.from_round = 5: expected a round of the run, which has 4"),
        ({"kind": "sign_flp"}, {}, "attack.kind = 'sign_flp': expected one of none, sign_flip, scaling"),
        ({"kind": "missing_module:attack"}, {}, "attack.kind = 'missing_module:attack' names no function"),
        ({"kind": "split", "losses": "for_split"}, {}, "losses = 'for_split': expected 'honest', 'for_splits' or"),
        ({"kind": "backdoor", "target": 10}, {}, "attack.target = 10: expected a class of the data, from 0 to 9"),
        ({"kind": "zero", "share": 0.95}, {}, "attack.share = 0.95: expected a share that leaves honest clients"),
        # Clients that never take part do not attack: only client 0 is left.
        ({"kind": "zero", "share": 0.1}, CHANGED_DATA | ONE_WITH_WEIGHT, "attack.share = 0.1: expected a share that"),
        *(({"kind": kind}, WITHOUT_GROUPS, f"attack.kind = '{kind}': needs a partition") for kind in NEED_GROUPS),
        *(({"kind": kind}, CHANGED_DATA, f"expected none with attack.kind = '{kind}'") for kind in DATA_ATTACKS),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(attack: dict[str, Any], tables: dict[str, Any], message: str) -> None:
    with pytest.raises(ExperimentError) as refused:
        federation(TABLES, attack=attack, **tables)
    assert message in str(refused.value) and "\n" not in str(refused.value)


def test_a_backdoor_needs_samples_of_numbers() -> None:
    dataset = load_dataset("digits")
    experiment = load_experiment({**TABLES, "attack": {"kind": "backdoor"}})
    byzantine = build_run(experiment).byzantine
    tokens = replace(dataset, inputs=dataset.inputs.flatten(1).long(), mean=(), std=())
    with pytest.raises(ExperimentError, match=r"expected samples of numbers in memory, found tokens"):
        attacked_data(experiment, tokens, None, byzantine)  # type: ignore[arg-type]  # refused before it is looked at


def test_a_backdoor_is_learnt_and_told_of_honest_clients(tmp_path: Path) -> None:
    found = run(tmp_path / "run", TABLES, attack={"kind": "backdoor", "share": 0.4, "poisoned": 1.0, "target": 3})
    told = found.summary["attack"]
    # FedAvg has one cluster, and Byzantine clients are in it.
    assert told["backdoor_success"] == told["backdoor_success_attacked"] > 0.5
    assert told["backdoor_success_elsewhere"] is None and told["clusters_honest"] == 1


def test_the_success_rate_of_a_backdoor_counts_triggered_samples_of_other_classes() -> None:
    attack = {"kind": "backdoor", "share": 0.2, "target": 3}
    setup = federation(TABLES, algorithm={"name": "oracle"}, attack=attack)
    assert setup.byzantine is not None
    # Model 0 calls everything class 3, as all but this bias is zero, and model 1 calls everything class 4.
    models = torch.zeros(2, setup.server.problem.layout.p)
    bias = setup.server.problem.layout.spans[-1]
    models[0, bias][3] = models[1, bias][4] = 1.0
    state = replace(setup.server.algorithm.init(setup.server.problem), models=models)
    cluster = {client: int(client not in (*setup.byzantine.ids, 0, 9)) for client in range(10)}
    used = [ModelInUse(client, model, {}) for client, model in cluster.items()]
    told = backdoor_summary(setup, state, used, cluster)
    honest = [client for client in cluster if client not in setup.byzantine.ids]
    fooled = [client for client in honest if cluster[client] == 0]
    assert told == {
        "backdoor_success": pytest.approx(len(fooled) / len(honest)),
        "backdoor_success_attacked": 1.0,
        "backdoor_success_elsewhere": 0.0,
    }


@pytest.mark.parametrize("attack", [{"kind": "backdoor", "strength": 2.0}, {"kind": "split", "losses": "for_splits"}])
def test_an_attacked_run_has_the_same_bits_in_processes(attack: dict[str, Any], tmp_path: Path) -> None:
    tables = keys(TABLES, algorithm={"name": "strata"}, attack={**attack, "share": 0.2})
    loop = run(tmp_path / "loop", tables)
    processes = run(tmp_path / "processes", tables, engine={"name": "processes", "workers": 2})
    assert torch.equal(loop.state.models, processes.state.models)
    assert loop.summary["attack"] == processes.summary["attack"]
