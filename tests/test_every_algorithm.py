"""What every registered algorithm must hold; registering one is all that it takes to be tested here."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fedstrata import algorithms
from fedstrata.algorithms import ALGORITHMS, CLASSES
from fedstrata.core import SINGULAR_VECTORS, TRAIN, Mask, Report, Rows, RuleAggregation
from fedstrata.play.recorder import traffic
from fedstrata.records.checkpoint import Checkpoint, find_checkpoint, save
from fedstrata.uploads.disclosure import Disclosure, disclosure_of, uploads_of_plan
from fedstrata.uploads.validation import decide, validate
from pulled import pulled
from turns import CHANGED, CLIENTS, LEAVER, NEWCOMERS, Case, check, check_growth, only, play, received, same

EAGER: dict[str, dict[str, Any]] = {
    "adacfl": {},
    "clove": {"k": 3},
    "cfl": {"eps1": 10.0, "eps2": 0.0, "gamma": 0.3, "min_split": 3},
    "fedclust": {},
    "fedtsdp": {"threshold": 0.5, "radius1": 0.02, "shrink": 0.8},
    "fesem": {"k": 3},
    "fl_hc": {"round": 2},
    "flis": {},
    "hicfl": {"epsilon": 2.0, "rho": 1.0},
    "ifca": {"k": 3},
    "layercfl": {"eps1": 10.0, "eps2": 0.0, "gamma": 0.3, "min_split": 3},
    "oracle": {},
    "pacfl": {},
    "random_groups": {"groups": 3},
    "strata": {"alpha": 0.9, "reassignment_rounds": 1},
}
"""Algorithms that group clients, with the keys by which they do so within a few rounds."""

VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    "adacfl": {
        "late": {"precluster": False, "round": 2, "compare": "current"},
        "founding": {"cut": 1000.0, "epsilon": 0.001},
    },
    "clove": {"unknown": {"k": "auto", "max_k": 5, "stable_rounds": 1}},
    "centralized": {"equal_steps": {"steps": "equal"}},
    "ditto": {"alone": {"lam": 0.0, "epochs": 2}},
    "fedclust": {"whole": {"layers": "all", "linkage": "complete"}},
    "fedper": {"nothing": {"personal": []}, "everything": {"personal": "all"}},
    "fedtsdp": {
        "first": {"radius2": 1e6},
        "second": {"radius1": 1.0, "radius2": 0.5, "sample": 1.0},
        "literal": {"weight_gain": "literal"},
    },
    "fesem": {"weighted": {"weighted": True}},
    "fl_hc": {"cosine": {"measure": "dcos"}},
    "flis": {"cut": {"cut": 30.0, "linkage": "single"}},
    "hicfl": {
        "fine": {"ending": "fine", "patience": 4},
        "personal": {"ending": "personal", "patience": 4},
        "reorganise": {"ending": "reorganise", "patience": 4},
        "reorganise_early": {"ending": "reorganise", "patience": 4, "min_split": 8},
    },
    "ifca": {
        "gradient": {"average": "gradient"},
        "restart": {"init": "restart", "min_share": 0.3, "max_restarts": 2},
        "warm": {"init": "warm", "warm_rounds": 2},
        "shared_body": {"share_body": True, "average": "gradient"},
    },
    "layercfl": {
        "auto": {"layers": "auto"},
        "weights": {"measure": "l2", "layers": "head"},
    },
    "pacfl": {"mean": {"angle": "mean", "linkage": "single"}},
    "strata": {
        "personal": {"compares": "personal"},
        "settled": {"reassignment_rounds": 0},
    },
}
"""Keys that change the shape of what an algorithm does, by what the tests call them."""

CASES = {name: Case(name, EAGER.get(name, {})) for name in ALGORITHMS} | {
    f"{name}-{variant}": Case(name, {**EAGER.get(name, {}), **keys})
    for name, variants in VARIANTS.items()
    for variant, keys in variants.items()
}

MERELY_MEASURED = {"fedclust-whole", "fedtsdp-literal", "fl_hc-cosine", "flis-cut", "layercfl-weights", "pacfl-mean"}
"""Variants of a distance, a linkage or a weight alone: tests of their algorithms show it, and the others all else."""

WANDERS = {
    "centralized": "the data of all clients are in the union, those of whoever has left included",
    "clove": "clients are grouped anew in every second round",
    "fedtsdp": "clients are grouped anew, whatever cluster they were in",
    "fesem": "every client goes to the nearest model in every round",
    "hicfl-reorganise": "clusters are merged",
    "hicfl-reorganise_early": "clusters are merged",
    "ifca": "every client chooses among all models in every round",
    "strata": "after a split members of the new clusters may go over to another of them",
}
"""Cases in which clients may leave their branch of the tree, and why."""

NESTED = {"cfl", "fedtsdp", "hicfl", "layercfl"}
"""Cases in which clusters of clusters are split while clients come and go."""

DRAWN = {
    "clove": "the first groups are drawn by client id",
    "ifca-warm": "the first groups are drawn by client id",
    "random_groups": "the groups are drawn by client id",
}
"""Cases whose result hangs on which id a client has, and why: permuting clients cannot permute their labels."""


def test_the_class_of_every_algorithm_is_imported_by_its_own_name() -> None:
    exported = set(algorithms.__all__) - {"ALGORITHMS"}
    assert {getattr(algorithms, name) for name in exported} == {ALGORITHMS[name] for name in CLASSES}


def test_the_lists_of_cases_name_cases() -> None:
    assert {*EAGER, *VARIANTS} <= set(ALGORITHMS) and {*MERELY_MEASURED, *WANDERS, *NESTED, *DRAWN} <= set(CASES)


@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_every_algorithm_names_its_source_and_says_what_it_is(name: str) -> None:
    kind = ALGORITHMS[name]
    assert kind.source and (kind.__doc__ or "-").splitlines()[0].endswith(".")


@pytest.fixture(scope="module", params=[label for label in CASES if label not in MERELY_MEASURED])
def label(request: pytest.FixtureRequest) -> str:
    """What a case is called; of the module, so that all tests of a case follow each other and share its runs."""
    return str(request.param)


@pytest.fixture(scope="module")
def case(label: str) -> Case:
    return Case(CASES[label].name, CASES[label].keys)


def test_the_state_stays_consistent_and_finite(label: str, case: Case) -> None:
    for turns, setting in ((case.scarce, case.plain), (case.eventful, case.busy)):
        for round, turn in enumerate(turns, 1):
            assert turn.after.round == turn.plan.round == round
            check(setting, turn.after)
            check_growth(turn.before, turn.after, wanders=label in WANDERS or case.name in WANDERS)


def test_clusters_of_clusters_are_split_somewhere(label: str, case: Case) -> None:
    """Storing positions as client ids, the error of every public CFL, shows from the second split on."""
    depth = [0]
    for node in case.eventful[-1].after.tree[1:]:
        depth.append(depth[node.parent or 0] + 1)
    assert max(depth) >= 2 or label not in NESTED


def test_a_few_rounds_move_the_models_or_what_devices_keep(case: Case) -> None:
    first, last = case.scarce[0], case.scarce[-1]
    assert not torch.equal(first.before.models[:1], last.after.models[:1]) or last.devices


def test_only_what_is_uploaded_comes_back(case: Case) -> None:
    layout = case.plain.server.problem.layout
    for turn in case.scarce + case.eventful:
        assert turn.report.results.keys() == turn.plan.tasks.keys()
        for name, result in turn.report.results.items():
            silent = layout.columns(tuple(not sent for sent in turn.plan.tasks[name].upload))
            assert not result.updates.values[:, silent].any(), "a tensor that is not uploaded was sent"


def test_the_same_seed_gives_the_same_bits(case: Case) -> None:
    again = play(case.setting(), 3, fraction=0.5, dropout=0.2)
    for one, other in zip(again, case.scarce, strict=False):
        assert same(one.report, other.report) and same(one.after, other.after)


def test_recorded_reports_replay_to_the_same_bits(case: Case) -> None:
    """Nothing but the state and the report decides, and neither is changed: all may be told again."""
    setting = case.busy
    state = setting.server.algorithm.init(setting.server.problem)
    for turn in case.eventful:
        state, _ = setting.server.participation.apply_events(state, state.round + 1)
        plan = setting.server.algorithm.plan(setting.server.problem, state, turn.cohort)
        assert same(state, turn.before) and same(plan, turn.plan)
        state, notes = setting.server.algorithm.update(setting.server.problem, state, turn.report)
        assert same(state, turn.after) and same(notes, turn.diagnostics)


def test_saving_and_loading_in_between_changes_no_bit(case: Case, tmp_path: Path) -> None:
    """Saved when newcomers have just come; then a client leaves, one changes, and some are misplaced."""
    half, rest = case.eventful[3].after, case.eventful[4:]
    save(tmp_path, Checkpoint(half, rest[0].devices, {}))
    found = find_checkpoint(tmp_path, type(half))
    assert found is not None and same(found.state, half)
    case.busy.clients.store.restore(found.store)
    resumed = play(case.busy, len(rest), start=found.state)
    assert same(resumed[-1].after, rest[-1].after) and same(resumed[-1].devices, rest[-1].devices)


def test_an_empty_report_changes_no_model_and_no_label(case: Case) -> None:
    nobody = torch.empty(0, dtype=torch.int64)
    setting = case.busy
    for turn in case.eventful:
        after, _ = setting.server.algorithm.update(setting.server.problem, turn.before, only(turn.report, nobody))
        assert torch.equal(after.models, turn.before.models) and torch.equal(after.nodes, turn.before.nodes)
        placed = turn.before.labels >= 0
        assert torch.equal(after.labels[placed], turn.before.labels[placed])


def test_nobody_honest_is_rejected_and_no_decision_is_taken_back(case: Case) -> None:
    for turns, setting in ((case.scarce, case.plain), (case.eventful, case.busy)):
        for turn in turns:
            assert validate(setting.server.problem.layout, turn.plan, turn.report) is turn.report
            after, _, events = decide(setting.server.algorithm, setting.server.problem, turn.before, turn.report)
            assert same(after, turn.after) and events == []


def test_a_report_may_come_in_any_order(case: Case) -> None:
    setting = case.busy
    order = torch.randperm(CLIENTS + 1, generator=torch.Generator().manual_seed(1))
    for turn in case.eventful:
        again, _ = setting.server.algorithm.update(setting.server.problem, turn.before, only(turn.report, order))
        assert same(again, turn.after)


def test_no_client_is_lost_when_only_some_take_part(case: Case) -> None:
    away = {client for turn in case.scarce for client in turn.absent.tolist()}
    assert away and all(len(turn.plan.cohort) <= CLIENTS // 2 for turn in case.scarce[:8])
    last = case.scarce[-1].after
    # Whom a split of this very round has set aside waits for the next one.
    waits = [int(node) for node in last.waiting[last.labels < 0]]
    assert all(last.tree[node].split == last.round for node in waits), "a client that came back was not placed"


def test_newcomers_are_placed_and_whoever_left_trains_no_more(case: Case) -> None:
    trained = [
        {c for result in turn.report.results.values() for c in result.updates.clients.tolist()}
        for turn in case.eventful
    ]
    assert not any(set(NEWCOMERS) & clients for clients in trained[:3])
    assert not any(LEAVER in clients for clients in trained[4:])
    if case.name != "centralized":  # for which nobody ever leaves the union
        assert all(turn.after.labels[LEAVER] < 0 for turn in case.eventful[4:])
    labels = case.eventful[-1].after.labels
    assert bool((labels[[*NEWCOMERS, CHANGED]] >= 0).all()), f"{labels.tolist()}: someone was not placed"


def test_bytes_are_those_of_the_tensors_that_travel(case: Case) -> None:
    problem, devices = case.plain.server.problem, case.plain.clients.store
    width = [4 * (span.stop - span.start) for span in problem.layout.spans]
    facts = {"classes": 1, "entropy": 1, "subspaces": 10 * SINGULAR_VECTORS * 64}
    for turn in case.scarce + case.eventful:
        devices.restore(turn.devices)
        down = up = 0
        for row, client in enumerate(turn.plan.cohort.tolist()):
            has = set(devices.read(client, before=turn.plan.round))
            down += sum(width[tensor] for sent in received(turn, row, has).values() for tensor in sent)
            if client in turn.absent.tolist():
                continue
            for fit in turn.plan.tasks.values():
                offered = int((fit.candidates[row] >= 0).sum())
                uploaded = sum(size for size, sent in zip(width, fit.upload, strict=True) if sent)
                told = 1 if any(fit.trainable) else offered  # the number of the chosen one of several, or their losses
                up += uploaded * (offered > 0) + 4 * told * (offered > 1)
            up += sum(4 * facts[name] for name, asked in turn.plan.client_stats.items() if asked[row])
        stored = {client: set(devices.read(client, before=turn.plan.round)) for client in turn.plan.cohort.tolist()}
        sent = traffic(problem.layout, turn.plan, turn.report, stored.__getitem__)
        assert (sent.down, sent.up, sent.buffers) == (down, up, 0)


def test_a_client_needs_nothing_that_it_is_not_charged_for(case: Case) -> None:
    """Whatever the bytes do not count is spoilt, and every client still answers the same."""
    setting, layout = case.busy, case.busy.server.problem.layout
    for turn in (case.eventful[3], case.eventful[5]):
        for row, client in enumerate(turn.plan.cohort.tolist()):
            setting.clients.store.restore(turn.devices)
            has = set(setting.clients.store.read(client, before=turn.plan.round))
            models = torch.full_like(turn.plan.models, torch.nan)
            for model, tensors in received(turn, row, has).items():
                sent: Mask = tuple(tensor in tensors for tensor in range(len(layout.tensors)))
                columns = layout.columns(sent)
                models[model, columns] = turn.plan.models[model, columns]
            alone = replace(turn.plan.only(turn.plan.cohort == client), models=models)
            answer = setting.clients.run(alone)
            assert same(answer.results, only(turn.report, torch.tensor([client])).results)


def declared(case: Case, rounds: int) -> Disclosure:
    """What the algorithm says that it discloses in so many rounds."""
    found = disclosure_of(case.plain.server.algorithm, rounds)
    assert found is not None, "an algorithm without a row in uploads/disclosure.py has no privacy"
    return found


def test_clients_send_what_the_server_is_declared_to_need(case: Case) -> None:
    needs = declared(case, len(case.eventful)).server_needs
    plans = [turn.plan for turn in case.scarce + case.eventful]
    assert all((CLIENTS in plan.cohort) == (needs == "data") for plan in plans)
    sending = [(name, task) for plan in plans for name, task in plan.tasks.items() if any(task.upload)]
    assert not sending or needs != "nothing"
    if needs == "sums":
        assert all(name == TRAIN and not any(task.upload_values) for name, task in sending)
        assert not any(plan.client_stats for plan in plans)


def test_whoever_is_declared_to_need_sums_alone_decides_the_same_whatever_single_updates_are(case: Case) -> None:
    """Every client of a model has the mean of its updates instead of its own, and its losses are not known."""
    declaration = declared(case, len(case.scarce))
    if declaration.server_needs != "sums":
        pytest.skip("single updates decide, or none are sent")
    setting = case.plain
    assert declaration.given_clusters == (len(setting.server.algorithm.init(setting.server.problem).models) > 1)
    for turn in case.scarce:
        report = with_means(turn.report)
        after, _ = setting.server.algorithm.update(setting.server.problem, turn.before, report)
        torch.testing.assert_close(after.models, turn.after.models, rtol=1e-4, atol=1e-5)
        assert same(replace(after, models=turn.after.models), turn.after)


def with_means(report: Report) -> Report:
    """The report in which no update and no loss is that of a single client."""
    result = report.results[TRAIN]
    rows, weights = result.updates.values.double(), result.sizes.double()[:, None]
    means = torch.zeros_like(rows)
    for model in result.chosen.unique():
        members = result.chosen == model
        means[members] = (rows[members] * weights[members]).sum(dim=0) / weights[members].sum()
    updates = Rows(result.updates.clients, means.float())
    summed = replace(result, updates=updates, losses=torch.full_like(result.losses, torch.nan))
    return replace(report, results={**report.results, TRAIN: summed})


def test_clients_send_no_more_updates_than_declared(case: Case) -> None:
    for turns in (case.scarce, case.eventful):
        declaration = declared(case, len(turns))
        if declaration.no_local_noise:
            continue
        usual = uploads_of_plan(turns[0].plan)
        sent = torch.zeros(CLIENTS + 1, dtype=torch.int64)
        for turn in turns:
            for task in turn.plan.tasks.values():
                sent[turn.plan.cohort] += any(task.upload) * (task.candidates >= 0).any(dim=1)
        assert int(sent.max()) <= usual * len(turns) + declaration.further_uploads


def test_models_are_compared_only_by_clients_of_whom_it_is_declared(case: Case) -> None:
    compares = any(
        not any(task.trainable) and bool(((task.candidates >= 0).sum(dim=1) > 1).any())
        for turn in case.scarce + case.eventful
        for task in turn.plan.tasks.values()
    )
    assert not compares or declared(case, len(case.eventful)).compares_group_models


def test_permuting_the_clients_permutes_their_labels(label: str, case: Case) -> None:
    if label in DRAWN or case.name in DRAWN:
        pytest.skip(DRAWN.get(label) or DRAWN[case.name])
    order = torch.randperm(CLIENTS, generator=torch.Generator().manual_seed(7))
    clusters, algorithm = 0, case.plain.server.algorithm
    for plain, permuted in zip(*(pulled(algorithm, who) for who in (torch.arange(CLIENTS), order)), strict=True):
        labels, placed = plain.labels[order], permuted.labels >= 0
        assert torch.equal(labels >= 0, placed)
        assert torch.equal(labels[:, None] == labels, permuted.labels[:, None] == permuted.labels)
        torch.testing.assert_close(plain.models[labels[placed]], permuted.models[permuted.labels[placed]])
        clusters = max(clusters, len(set(labels[placed].tolist())))
    # These clients train and pull, but make no personal models of groups.
    decides = case.name in EAGER and case.keys.get("compares") != "personal"
    assert clusters > 1 or not decides, "nothing was decided that could be permuted"


@pytest.mark.parametrize("name", [*EAGER, "adacfl-founding", "ifca-shared_body", "hicfl-reorganise"])
def test_no_model_is_moved_by_fewer_clients_than_the_least_size(name: str) -> None:
    """With a least size that nothing reaches, devices receive initial models only."""
    busy = CASES[name].busy
    problem = replace(busy.server.problem, aggregation=RuleAggregation(least_clients=CLIENTS + 1))
    turns = play(replace(busy, server=replace(busy.server, problem=problem)), 6)
    first = turns[0].plan.models
    initial = [*first, *(problem.fresh(draw) for draw in range(len(first), 4 * len(first)))]
    for turn in turns:
        assert all(any(torch.equal(model, known) for known in initial) for model in turn.plan.models)
