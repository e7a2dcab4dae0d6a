import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import builders
import fedstrata
from fedstrata.base.errors import InputError, RecordError
from fedstrata.build.build import build_run
from fedstrata.config import load_experiment
from fedstrata.data import load_dataset
from fedstrata.models import make
from fedstrata.records.arrays import last_scores
from fedstrata.report.figures import charts_of
from fedstrata.results.run import Run

DIGITS = load_dataset("digits")


def keys(algorithm: str = "oracle", **more: Any) -> dict[str, Any]:
    return builders.keys(rounds=2, data={"clients": 8}, algorithm={"name": algorithm}, **more)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run with the true groups, whose clusters are the tree nodes 1 and 2."""
    return fedstrata.run(keys(), tmp_path_factory.mktemp("result") / "oracle", quiet=True)


@pytest.fixture(scope="module")
def personal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose clients have heads of their own."""
    folder = tmp_path_factory.mktemp("result") / "fedper"
    fedstrata.run(keys("fedper"), folder, quiet=True)
    return folder


def test_a_loaded_run_is_the_run_that_finished(finished: Run) -> None:
    loaded = fedstrata.load(finished.folder)
    assert loaded.summary == json.loads((finished.folder / "summary.json").read_text())
    assert loaded.rounds == finished.rounds and loaded.tree == finished.tree
    assert loaded.labels == finished.labels and set(loaded.labels.values()) == {1, 2}
    assert torch.equal(loaded.state.models, finished.state.models) and len(loaded.state.models) == 2
    one, other = (run.model("3").network.state_dict() for run in (loaded, finished))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_the_model_of_a_client_is_that_of_its_cluster_without_layers_of_its_own(finished: Run) -> None:
    client, node = next(iter(finished.labels.items()))
    own, cluster = finished.model(client), finished.cluster_model(node)
    assert torch.equal(own.outputs(DIGITS.inputs[:9]), cluster.outputs(DIGITS.inputs[:9]))
    assert finished.model(int(client)).predict(DIGITS.inputs[:9]).tolist() == own.predict(DIGITS.inputs[:9]).tolist()


def test_the_layers_of_a_client_are_its_own(personal: Path) -> None:
    run = fedstrata.load(personal)
    used = [run.model_of(client) for client in run.clients]
    assert all(each.personal == ["linear2.weight", "linear2.bias"] for each in used)
    states = [run.model(client).network.state_dict() for client in run.clients]
    heads = {tuple(state["linear2.weight"].flatten().tolist()) for state in states}
    bodies = {tuple(state["linear1.weight"].flatten().tolist()) for state in states}
    assert len(heads) == len(run.clients) and len(bodies) == 1
    # They are as private as a checkpoint is.
    assert (personal / "models/personal.safetensors").stat().st_mode & 0o077 == 0


def test_somebody_who_is_not_there_is_named(finished: Run) -> None:
    with pytest.raises(InputError, match=r"client 'Ghent': expected a client that took part at the end, 0, 1, 2, .*"):
        finished.model("Ghent")
    with pytest.raises(RecordError, match=r"cluster 0: expected one of the clusters at the end, 1, 2"):
        finished.cluster_model(0)


@pytest.fixture(scope="module")
def numbered(finished: Run) -> Run:
    """The run as if its 8 clients were called "1" to "8", so that each name but the last is the id of another one."""
    return replace(finished, names=tuple(str(id + 1) for id in range(8)))


@pytest.mark.parametrize("number", [1, np.int64(1), "1"])
def test_a_number_is_the_name_of_a_client_before_it_is_an_id(numbered: Run, number: Any) -> None:
    assert numbered.model_of(number) == numbered.model_of("1")
    assert numbered.model_of("1").client == 0
    inputs = DIGITS.inputs[:9]
    assert torch.equal(numbered.model(number).outputs(inputs), numbered.model("1").outputs(inputs))


@pytest.mark.parametrize("number", [9, -1, np.int64(9), 1.0])
def test_a_number_that_is_neither_a_name_nor_an_id_is_refused(numbered: Run, number: Any) -> None:
    with pytest.raises(InputError, match=r"expected a client that took part at the end, 1, 2, .*") as caught:
        numbered.predict(number, DIGITS.inputs[:9])
    assert "\n" not in str(caught.value)


def test_a_client_that_waits_uses_the_model_that_it_chose(tmp_path: Path) -> None:
    """Client 7 joins in the last round, is absent then, and waits at the root: both models are offered to it."""
    more: dict[str, Any] = {"cohort": {"fraction": 0.5}, "events": {"join": [{"round": 2, "clients": [5, 6, 7]}]}}
    run = fedstrata.run(keys(**more), tmp_path / "run", quiet=True)
    waiting = [str(client) for client in run.rounds[-1]["pending"]]
    assert waiting, "the seed leaves nobody waiting"
    for client in waiting:
        assert run.labels[client] == 0 and run.model_of(client).node in (1, 2)


def test_charts_are_drawn_by_their_names(finished: Run) -> None:
    assert {"accuracy", "clusters", "bytes"} <= set(charts_of(finished.folder))
    figure = fedstrata.plot(finished, "accuracy")
    assert len(figure.data) >= 3 and figure.layout.title.text == "All clients"
    with pytest.raises(InputError, match=r"plot\('nothing'\): expected one of accuracy, "):
        fedstrata.plot(finished, "nothing")


@pytest.mark.parametrize("name", ["strata", "hicfl", "fedtsdp"])
def test_every_chart_of_an_older_run_is_drawn(name: str) -> None:
    run = fedstrata.load(Path(__file__).parents[1] / "report" / "runs" / name)
    assert len(charts_of(run.folder)) > 5
    for chart in charts_of(run.folder):
        figure = fedstrata.plot(run, chart)
        assert figure.data and json.loads(figure.to_json())["layout"]["title"]["text"]
    with pytest.raises(RecordError, match=r"expected a file that says which model each client uses, found none"):
        run.model(0)


def test_a_notebook_shows_the_summary(finished: Run) -> None:
    html = finished._repr_html_()
    assert "<th>algorithm</th><td>oracle</td>" in html and html.startswith("<table>")


def test_a_network_of_ones_own_is_given_to_load(finished: Run) -> None:
    def mlp(shape: tuple[int, ...] = (1, 8, 8), classes: int = 10, hidden: int = 8) -> nn.Module:
        return make("mlp", shape, classes, 9, hidden=[hidden])

    expected = finished.predict(0, DIGITS.inputs[:9]).tolist()
    for network in (lambda: mlp(), lambda shape, classes: mlp(shape, classes), mlp()):
        assert fedstrata.load(finished.folder, network=network).predict(0, DIGITS.inputs[:9]).tolist() == expected
    wrong = fedstrata.load(finished.folder, network=mlp(hidden=9))
    with pytest.raises(RecordError, match=r"expected the network that the run was made with, found one"):
        wrong.model(0)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("models/clients.json", None, "expected a file that says which model each client uses, found none"),
        ("models/clients.json", b"{}", r"clients.json: .*sample_format: field required"),
        (
            "models/clients.json",
            b'{"sample_format": {}, "clients": [{"client": 0, "node": 0}]}',
            "expected the format of samples, found 5",
        ),
        ("models/cluster-0.safetensors", None, "expected the model of a cluster"),
        ("models/cluster-0.safetensors", b"damaged", "expected the model of a cluster"),
        ("models/personal.safetensors", None, "expected the tensors of clients, found"),
        ("models/personal.safetensors", b"damaged", "expected the tensors of clients, found"),
        ("data.json", b"[]", "data.json: .*; resume the run"),
        ("data.json", b'{"clients": []}', "expected the names of .* clients, found 0 in data.json"),
        ("tree.json", b'{"id": 0}', "expected the cluster tree of a run"),
    ],
)
def test_a_damaged_file_is_named(
    personal: Path, tmp_path: Path, name: str, content: bytes | None, message: str
) -> None:
    folder = shutil.copytree(personal, tmp_path / "copy")
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_bytes(content)
    with pytest.raises(RecordError, match=message):
        fedstrata.load(folder).model(0)


def test_a_client_that_still_waits_for_a_cluster_has_no_model(finished: Run, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(finished.folder, folder)
    file = folder / "models" / "clients.json"
    record = json.loads(file.read_text())
    record["clients"][0]["node"] = None
    file.unlink()
    file.write_text(json.dumps(record))
    with pytest.raises(RecordError, match="client 0 waits for a cluster"):
        fedstrata.load(folder).model(0)


def test_what_is_no_finished_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"expected a finished run"):
        fedstrata.load(tmp_path)


class Permuted(nn.Module):
    """A network that draws a tensor which is no part of its state."""

    def __init__(self) -> None:
        super().__init__()
        self.order = torch.randperm(64)
        self.linear = nn.Linear(64, 10)

    def forward(self, images: torch.Tensor) -> Any:
        return self.linear(images.flatten(1)[:, self.order])


def test_a_fixed_tensor_of_a_network_is_the_same_when_a_run_predicts(tmp_path: Path) -> None:
    own = keys("fedavg", model={"name": f"{__name__}:Permuted"}, partition={"scheme": "iid"})
    run = fedstrata.run(own, tmp_path / "run", quiet=True)
    setup = build_run(load_experiment(own))
    inputs, labels = setup.client_data.raw_samples(setup.client_data.test(0))
    right = run.predict(0, inputs.numpy()) == labels.numpy()
    assert float(np.mean(right)) == pytest.approx(last_scores(run.folder)[0][1])
