"""The table ``[privacy]`` of an experiment."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

import builders
import fedstrata as fs
from builders import federation, keys, run
from fedstrata.algorithms import ALGORITHMS
from fedstrata.base.errors import ExperimentError, RecordError
from fedstrata.build.privacy import PrivateRun
from fedstrata.personal.finetune import FineTuned
from fedstrata.uploads.disclosure import Disclosure, disclosure_of
from test_every_algorithm import EAGER

pytestmark = pytest.mark.usefixtures("forked_workers")


def declared(name: str) -> Disclosure:
    found = disclosure_of(ALGORITHMS[name](), rounds=4)
    assert found is not None
    return found


BY_SUMS = [name for name in ALGORITHMS if declared(name).server_needs == "sums"]
BY_UPDATES = [name for name in ALGORITHMS if declared(name).server_needs == "updates"]

TABLES = keys(
    data={"name": "digits", "clients": 10, "samples": 60, "test": 0.25, "public": 32}, local={"lr": 0.3, "batch": 20}
)
CENTRAL = {"kind": "central", "noise_multiplier": 0.5}
LOCAL = {"kind": "local", "noise_multiplier": 0.05}


def private_of(**changes: Any) -> PrivateRun:
    """What a run with such noise is accounted for by."""
    private = federation(TABLES, **changes).server.private
    assert private is not None
    return private


def eager(name: str) -> dict[str, Any]:
    """The table of an algorithm that decides early."""
    return {"name": name, **EAGER.get(name, {})}


def last_models(rounds: int = 3, **changes: Any) -> torch.Tensor:
    return builders.last_models(federation(TABLES, **changes), rounds)


@cache
def open_models(name: str) -> torch.Tensor:
    """The last models of an algorithm without noise."""
    return last_models(algorithm=eager(name))


def test_the_summary_says_what_epsilon_covers(tmp_path: Path) -> None:
    found = run(tmp_path / "run", TABLES, privacy={"kind": "central", "epsilon": 8.0, "delta": 1e-5}).summary["privacy"]
    assert 7.99 <= found["epsilon"] <= 8.0 and found["delta"] == 1e-5
    assert found["sums"] == 4 and not found["amplified_by_sampling"] and found["decisions_covered"]
    assert found["adjacency"] == "add_or_remove_one"
    assert "privacy" not in run(tmp_path / "open", TABLES, privacy={}).summary


@pytest.mark.parametrize(("multiplier", "amplified"), [(2.0, True), (0.05, False)])
def test_sampling_amplifies_where_there_is_enough_noise(multiplier: float, amplified: bool) -> None:
    noise = {"kind": "central", "noise_multiplier": multiplier}
    private = private_of(privacy=noise, cohort={"fraction": 0.3, "sampling": "poisson"})
    assert private.summary["amplified_by_sampling"] == amplified


@pytest.mark.parametrize("privacy", [CENTRAL, LOCAL])
@pytest.mark.parametrize("name", ["fedavg", "strata"])
def test_a_resumed_run_has_the_same_noise(name: str, privacy: dict[str, Any], tmp_path: Path) -> None:
    algorithm = {"algorithm": {"name": name}}
    whole = run(tmp_path / "whole", TABLES, privacy=privacy, **algorithm)
    # Noise for an epsilon would depend on the number of rounds; here the noise is given.
    run(tmp_path / "half", TABLES, privacy=privacy, rounds=2, **algorithm)
    resumed = run(tmp_path / "half", TABLES, resume=True, privacy=privacy, **algorithm)
    assert torch.equal(resumed.state.models, whole.state.models)


def test_a_run_whose_noise_was_computed_for_its_rounds_cannot_be_extended(tmp_path: Path) -> None:
    """The rounds that are over had less noise than the same epsilon needs over more rounds."""
    privacy = {"kind": "central", "epsilon": 8.0}
    few, many = (private_of(privacy=privacy, rounds=rounds).mechanism for rounds in (2, 4))
    assert few.noise_multiplier < many.noise_multiplier
    run(tmp_path / "run", TABLES, privacy=privacy, rounds=2)
    with pytest.raises(RecordError, match=r"rounds was 2, is 4, for which the noise of privacy\.epsilon"):
        fs.run(None, tmp_path / "run", sets=["rounds=4"], resume=True, quiet=True)


@pytest.mark.parametrize("privacy", [CENTRAL, LOCAL])
def test_workers_have_the_same_noise_as_the_loop(privacy: dict[str, Any]) -> None:
    processes = last_models(privacy=privacy, engine={"name": "processes", "workers": 2})
    assert torch.equal(last_models(privacy=privacy), processes)


REFUSED = {"central": ["local", "centralized", "fedtsdp", "adacfl"], "local": ["local", "centralized", "fedtsdp"]}
"""The algorithms that noise of the server, or of clients, does not make private."""


@pytest.mark.parametrize("kind", ["central", "local"])
def test_an_algorithm_of_ones_own_that_declares_what_it_discloses_is_private(kind: str) -> None:
    privacy = {"kind": kind, "noise_multiplier": 0.5}
    declared, undeclared = ({"name": f"own_algorithm:{kind}"} for kind in ("Declared", "Undeclared"))
    own = private_of(privacy=privacy, algorithm=declared)
    assert own.summary == private_of(privacy=privacy).summary and own.coverage.decisions
    assert torch.equal(last_models(privacy=privacy, algorithm=declared), last_models(privacy=privacy))
    with pytest.raises(ExperimentError, match="Undeclared': what an algorithm of your own sends and gives away is"):
        federation(TABLES, privacy=privacy, algorithm=undeclared)


@pytest.mark.parametrize("kind", ["central", "local"])
@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_every_algorithm_has_differential_privacy_or_is_refused_in_one_line(name: str, kind: str) -> None:
    privacy = {"kind": kind, "noise_multiplier": 0.5}
    try:
        setup = federation(TABLES, privacy=privacy, algorithm=eager(name))
    except ExperimentError as error:
        assert str(error).startswith(f"privacy.kind = '{kind}': expected 'none' with algorithm.name = '{name}': ")
        assert name in REFUSED[kind]
        return
    assert name not in REFUSED[kind]
    private = setup.server.private
    assert private is not None and private.epsilon > 0
    assert not torch.equal(open_models(name), builders.last_models(setup, 3))


@pytest.mark.parametrize("name", [*BY_SUMS, *BY_UPDATES])
def test_no_model_moves_but_by_the_noisy_means(name: str) -> None:
    """Clipped to almost nothing, and with as little noise, no update reaches a model."""
    privacy = {"kind": "central", "noise_multiplier": 1.0, "clip_norm": 1e-12}
    try:
        setup = federation(TABLES, privacy=privacy, algorithm=eager(name))
    except ExperimentError:
        return
    starts = torch.stack([setup.server.problem.fresh(number) for number in range(64)])
    away = torch.cdist(builders.last_models(setup, 3), starts, compute_mode="donot_use_mm_for_euclid_dist")
    assert bool(away.min(dim=1).values.le(1e-4).all())


def test_poisson_sampling_gives_away_less_than_all_clients_in_each_round() -> None:
    noise = {"kind": "central", "noise_multiplier": 1.0}
    poisson = private_of(privacy=noise, cohort={"fraction": 0.2, "sampling": "poisson"})
    uniform = private_of(privacy=noise, cohort={"fraction": 0.2})
    assert poisson.epsilon < private_of(privacy=noise).epsilon
    assert (poisson.exposure.adjacency, uniform.exposure.adjacency) == ("add_or_remove_one", "replace_one")
    (sampled,) = uniform.exposure.sampled
    assert (sampled.clients, sampled.expected, sampled.fixed) == (10, 2, True)


def test_clients_that_leave_are_not_drawn_from() -> None:
    events = {"leave": [{"round": 3, "clients": [0, 1, 2, 3, 4]}]}
    exposure = private_of(privacy=CENTRAL, cohort={"fraction": 0.2}, events=events).exposure
    assert {(each.rounds, each.clients, each.expected) for each in exposure.sampled} == {(2, 10, 2), (2, 5, 1)}


def test_a_cohort_that_was_rounded_to_one_client_moves_the_model_by_its_whole_update() -> None:
    """A tenth of four clients is one. Hardly any noise is added, and nothing is clipped."""
    tables = {"data": {"name": "digits", "clients": 4, "samples": 60}, "cohort": {"fraction": 0.1}}
    privacy = {"kind": "central", "noise_multiplier": 1e-6, "clip_norm": 100.0}
    assert torch.allclose(last_models(1, privacy=privacy, **tables), last_models(1, **tables), atol=1e-3)


def test_strata_is_charged_for_the_models_of_groups_that_it_compares() -> None:
    """Ten rounds may have new groups in 2, 3, 4, 6 and 9, each from one more update."""
    private = private_of(privacy=CENTRAL, rounds=10, algorithm={"name": "strata"})
    assert private.exposure.queries == 10 + 5 and not private.coverage.decisions
    local = private_of(privacy=LOCAL, rounds=10, algorithm={"name": "strata"})
    assert local.exposure.queries == 10 + 5


@pytest.mark.parametrize("name", BY_SUMS)
def test_clients_send_one_update_in_each_round(name: str) -> None:
    assert private_of(privacy=LOCAL, algorithm=eager(name)).exposure.queries == 4


@pytest.mark.parametrize("noise", [{}, LOCAL], ids=["none", "local"])
def test_small_clusters_keep_their_model_with_and_without_local_noise(noise: dict[str, Any]) -> None:
    """Ten clients in four groups of two or three."""
    setup = federation(TABLES, privacy={**noise, "min_cluster": 3}, algorithm={"name": "random_groups", "groups": 4})
    sizes = setup.server.algorithm.init(setup.server.problem).labels.bincount(minlength=4)
    moved = (builders.last_models(setup, 1) != setup.server.problem.fresh(0)).any(dim=1)
    assert sorted(sizes.tolist()) == [2, 2, 3, 3] and torch.equal(moved, sizes >= 3)


@pytest.mark.parametrize("name", ["fedavg", "oracle", "random_groups"])
@pytest.mark.parametrize("kind", ["central", "local"])
def test_where_newcomers_choose_a_model_by_its_loss_epsilon_does_not_cover_clusters(name: str, kind: str) -> None:
    """FedAvg has one model, of which nobody has a choice."""
    privacy = {"kind": kind, "noise_multiplier": 0.5}
    for events, covered in (({}, True), ({"join": [{"round": 2, "clients": [3]}]}, name == "fedavg")):
        coverage = private_of(privacy=privacy, algorithm=eager(name), events=events).coverage
        assert coverage.decisions == covered
        assert covered != any("which model a client chooses" in each for each in coverage.not_covered)


def test_losses_of_personal_models_means_of_inputs_and_a_run_beside_are_not_covered() -> None:
    def outside(privacy: dict[str, Any], **tables: Any) -> str:
        return ", ".join(private_of(privacy=privacy, **tables).coverage.not_covered)

    best = {"personal": {"method": "best"}}
    assert "how much of a tuned model" in outside(LOCAL, **best) and "tuned model" not in outside(LOCAL)
    with pytest.raises(ExperimentError, match=r"personal\.prior = 'cohort': expected 'none'"):
        federation(TABLES, privacy=CENTRAL, **best)
    assert "tuned model" in outside(CENTRAL, personal={"method": "best", "prior": "none"})
    beside = {"report": {"baseline": True}}
    assert "the run of FedAvg" in outside(LOCAL, **beside, algorithm={"name": "ditto"})
    assert "the run of FedAvg" not in outside(LOCAL, **beside)  # it is FedAvg itself
    assert "records.inputs" in outside(LOCAL, records={"inputs": True}) and "records.inputs" not in outside(LOCAL)


def test_a_personal_method_of_ones_own_may_send_anything_unless_it_says_what(monkeypatch: pytest.MonkeyPatch) -> None:
    def not_covered() -> tuple[str, ...]:
        return private_of(privacy=LOCAL, personal={"method": "finetune"}).coverage.not_covered

    assert not any("personal" in each for each in not_covered())
    monkeypatch.delattr(FineTuned, "sends")
    assert any("a personal method of your own" in each for each in not_covered())


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no amount": ({"privacy": {"kind": "central"}}, "either epsilon or noise_multiplier"),
    "two amounts": ({"privacy": {**CENTRAL, "epsilon": 2.0}}, "either epsilon or noise_multiplier"),
    "nobody adds noise": ({"privacy": {"epsilon": 2.0}}, "no epsilon with kind = 'none'"),
    "a size that nothing reaches": ({"privacy": {"min_cluster": 11}}, "min_cluster = 11: expected at most 10"),
    "no clusters": ({"privacy": {"min_cluster": 2}, "algorithm": {"name": "centralized"}}, "and no clusters"),
    "a rule that takes one": ({"privacy": {"min_cluster": 2}, "server": {"aggregation": "krum"}}, "of a single client"),
    "a delta that promises nothing": ({"privacy": {**CENTRAL, "delta": 0.2}}, "delta = 0.2: expected at most 0.1"),
    "a robust rule": ({"privacy": CENTRAL, "server": {"aggregation": "median"}}, "'median': expected 'mean' or"),
    "unequal chances": ({"privacy": CENTRAL, "cohort": {"fraction": 0.5, "sampling": "size"}}, "of equal chance"),
    "one client with all data": ({"privacy": CENTRAL, "algorithm": {"name": "centralized"}}, "is no client"),
    "raw centroids": ({"privacy": CENTRAL, "algorithm": {"name": "adacfl"}}, "without noise"),
    "scaled by counts": ({"privacy": CENTRAL, "algorithm": {"name": "ifca", "k": 2, "average": "gradient"}}, "scales"),
    "running statistics": (
        {
            "privacy": CENTRAL,
            "model": {"name": "resnet18"},
            "data": {"name": "digits", "clients": 4, "samples": 20},
            "partition": {"scheme": "iid"},
        },
        "expected a network without running statistics",
    ),
}


@pytest.mark.parametrize(("tables", "message"), WRONG.values(), ids=WRONG)
def test_what_cannot_be_accounted_for_is_refused_in_one_line(tables: dict[str, Any], message: str) -> None:
    with pytest.raises(ExperimentError) as caught:
        federation(TABLES, **tables)
    assert message in str(caught.value) and "\n" not in str(caught.value)
