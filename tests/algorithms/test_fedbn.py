from pathlib import Path
from typing import Any

import pytest
import torch
from baseline_federation import CLIENTS, device, experiment, federation, metrics_of, train
from torch import nn
from torch.nn.utils import prune

import fedstrata as fs
from builders import layout_with
from fedstrata.algorithms.fedbn import batch_norms
from fedstrata.build.build import build_run
from fedstrata.config import load_experiment
from fedstrata.models import layout_of

NETWORK = """
from torch import nn

def net(shape, classes):
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.LayerNorm(8), nn.Linear(8, classes)
    )
"""


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """An experiment whose network normalises over batches, and once over layers."""
    (tmp_path / "normalised.py").write_text(NETWORK)
    monkeypatch.syspath_prepend(str(tmp_path))
    return {**experiment("fedbn"), "model": {"name": "normalised:net"}}


def test_its_tensors_are_those_of_layers_with_running_statistics() -> None:
    layout = layout_with({"fc.weight": 2, "norm1.weight": 2, "norm1.running_mean": 2, "norm2.weight": 2})
    assert batch_norms(layout) == (False, True, True, False)


def test_a_layer_with_another_buffer_is_shared() -> None:
    """torch.nn.utils.prune keeps a mask beside the weights of a linear layer."""
    network = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    for layer in (network[0], network[2]):
        prune.l1_unstructured(layer, "weight", amount=0.5)
    layout = layout_of(network)
    personal = {slot.name for slot, own in zip(layout.tensors, batch_norms(layout), strict=True) if own}
    assert personal == {"1.weight", "1.bias", "1.running_mean", "1.running_var"}
    assert "0.weight_mask" in {slot.name for slot in layout.tensors}


def test_batch_normalisation_stays_on_each_client_and_all_else_is_shared(keys: dict[str, Any]) -> None:
    setup = build_run(load_experiment(keys))
    state, notes, _ = train(setup)
    layout = setup.server.problem.layout
    own = layout.columns(batch_norms(layout))
    start = setup.server.problem.fresh(0)
    assert torch.equal(state.models[0, own], start[own]), "the server never sees it"
    others = ~torch.isin(torch.arange(layout.p), own)
    assert bool((state.models[0, others] != start[others]).any())
    kept = torch.stack([device(setup, client) for client in range(CLIENTS)])
    assert kept.shape == (CLIENTS, 4 * 8) and len(kept.unique(dim=0)) == CLIENTS
    assert metrics_of(notes[-1])["personal_layers"] == 1


def test_a_network_without_it_is_averaged_as_by_fedavg_and_the_record_says_so() -> None:
    ours, notes, _ = train(federation("fedbn"))
    plain, _, _ = train(federation("fedavg"))
    assert torch.equal(ours.models, plain.models) and metrics_of(notes[-1])["personal_layers"] == 0


def test_it_is_sent_once(keys: dict[str, Any], tmp_path: Path) -> None:
    run = fs.run(keys, tmp_path / "run", quiet=True)
    scales = CLIENTS * 4 * (8 + 8)
    down = [record["bytes_down"] for record in run.rounds]
    assert [down[0] - down[1], down[1] - down[2]] == [scales, 0]
    assert [record["bytes_up"] for record in run.rounds] == [down[1]] * 3
    assert [record["bytes_buffers"] for record in run.rounds] == [scales, 0, 0]


def test_batch_normalisation_without_running_statistics_is_personal_too() -> None:
    layout = layout_of(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, track_running_stats=False), nn.LayerNorm(3)))
    personal = {slot.name for slot, own in zip(layout.tensors, batch_norms(layout), strict=True) if own}
    assert personal == {"1.weight", "1.bias"}
