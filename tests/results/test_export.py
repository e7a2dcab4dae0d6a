import json
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn

import fedstrata
from builders import run
from fedstrata.base.errors import InputError, ModelError
from fedstrata.cli import main
from fedstrata.data import SampleFormat, load_dataset
from fedstrata.models.trained import TrainedModel
from fedstrata.results.export import INDEX, _program
from fedstrata.results.run import Run

DIGITS = load_dataset("digits")

ONLY_TORCH = """
import sys
for name in ("fedstrata", "safetensors", "pydantic", "sklearn"):
    sys.modules[name] = None  # an import of it fails
import torch
model = torch.export.load(sys.argv[1]).module()
samples = torch.load(sys.argv[2])
print(model(samples).argmax(1).tolist())
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run in which all clients keep their own models, and share one."""
    return run(tmp_path_factory.mktemp("export") / "ditto", rounds=2, data={"clients": 4}, algorithm={"name": "ditto"})


def test_every_model_in_use_is_written_with_what_it_needs(finished: Run, tmp_path: Path) -> None:
    files = fedstrata.export(finished, tmp_path / "models")
    names = [path.name for path in files]
    clients = [f"client-{client}.safetensors" for client in range(4)]
    assert names == [INDEX, "cluster-0.safetensors", *clients]
    index = json.loads((tmp_path / "models" / INDEX).read_text())
    assert index["samples"]["shape"] == [1, 8, 8] and index["samples"]["class_names"] == list(DIGITS.class_names)
    assert [index["scale"], index["shift"]] == [part.tolist() for part in finished.sample_format.affine]
    cluster, *own = index["models"]
    # All clients have models of their own, so nobody uses the one of the cluster.
    assert cluster["clients"] == [] and [each["clients"] for each in own] == [["0"], ["1"], ["2"], ["3"]]
    assert own[0]["personal"] == ["linear1.weight", "linear1.bias", "linear2.weight", "linear2.bias"]
    tensors = load_file(files[2])
    model = finished.model(0).network.state_dict()
    assert tensors.keys() == model.keys() and all(torch.equal(tensors[name], model[name]) for name in model)


def test_a_file_alone_says_what_its_model_needs(finished: Run, tmp_path: Path) -> None:
    files = fedstrata.export(finished, tmp_path / "models", [2])
    with safe_open(files[1], framework="pt") as file:
        metadata = json.loads(file.metadata()["fedstrata"])
    assert metadata["clients"] == ["2"] and metadata["samples"]["classes"] == 10
    assert metadata["network"] == {"name": "mlp", "options": {"hidden": [8]}}


def test_a_program_predicts_raw_samples_where_only_torch_is(finished: Run, tmp_path: Path) -> None:
    files = fedstrata.export(finished, tmp_path / "models", [1], format="torch")
    assert [path.name for path in files] == [INDEX, "client-1.safetensors", "client-1.pt2"]
    torch.save(DIGITS.inputs[:50], tmp_path / "samples.pt")
    arguments = [str(files[2]), str(tmp_path / "samples.pt")]
    done = subprocess.run([sys.executable, "-c", ONLY_TORCH, *arguments], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == finished.predict(1, DIGITS.inputs[:50]).tolist()


@pytest.mark.skipif(find_spec("onnxruntime") is None or find_spec("onnxscript") is None, reason="needs the extra onnx")
def test_a_program_of_onnx_has_the_same_outputs(finished: Run, tmp_path: Path) -> None:
    import onnxruntime

    *_, path = fedstrata.export(finished, tmp_path / "models", [1], format="onnx")
    session = onnxruntime.InferenceSession(str(path))
    for count in (1, 7):
        samples = DIGITS.inputs[:count].numpy()
        (outputs,) = session.run(None, {"samples": samples})
        assert np.allclose(outputs, finished.model(1).outputs(samples), atol=1e-5)


def test_onnx_without_its_library_is_refused_before_anything_is_made(
    finished: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedstrata.results.export.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"expected onnxscript, found none; pip install"):
        fedstrata.export(finished, tmp_path / "models", format="onnx")
    assert not (tmp_path / "models").exists()


def test_a_network_that_torch_cannot_record_is_refused_in_one_line() -> None:
    class Moody(nn.Module):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return inputs if float(inputs.sum()) > 0 else -inputs

    form = SampleFormat((2,), "float32", (0.0, 0.0), (1.0, 1.0), 2)
    with pytest.raises(ModelError, match=r"torch.export cannot write this network: .*--format safetensors") as caught:
        _program(TrainedModel(Moody(), form), "torch")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("place", ["deep/models", "."])
def test_an_export_that_fails_leaves_nothing_behind(
    place: str, finished: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The advice of the error is to export again with --format safetensors: the same target must be free."""

    def refuse(model: TrainedModel, format: str) -> bytes:
        raise ModelError("torch.export cannot write this network")

    monkeypatch.setattr("fedstrata.results.export._program", refuse)
    with pytest.raises(ModelError):
        fedstrata.export(finished, tmp_path / place, format="torch")
    assert list(tmp_path.iterdir()) == []
    files = fedstrata.export(finished, tmp_path / place, [0])
    assert sorted((tmp_path / place).iterdir()) == sorted(files)


def test_a_target_that_holds_something_is_refused_with_what_to_do(finished: Run, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(InputError, match=r"expected a new or empty folder, found something .*give another"):
        fedstrata.export(finished, tmp_path)
    with pytest.raises(InputError, match=r"expected a folder that can be made: .*give another"):
        fedstrata.export(finished, tmp_path / "mine.txt" / "models")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


@pytest.mark.parametrize("client", ["12", 12, np.int64(12)])
def test_a_name_or_a_number_alone_is_one_client(finished: Run, tmp_path: Path, client: Any) -> None:
    named = replace(finished, names=("1", "2", "12", "3"))
    files = fedstrata.export(named, tmp_path / "models", client)
    assert [path.name for path in files] == [INDEX, "client-12.safetensors"]


def test_names_of_clients_become_names_of_files(finished: Run) -> None:
    from fedstrata.results.export import _file_name

    taken = set[str]()
    names = [_file_name(name, place, taken) for place, name in enumerate(("Sint-Jan / 2", "Sint-Jan ? 2", "../x"))]
    assert names == ["client-Sint-Jan_2", "client-Sint-Jan_2-1", "client-.._x"]


def test_the_command_prints_the_files(finished: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "models"
    with pytest.raises(SystemExit) as caught:
        main(["export", str(finished.folder), str(target), "--client", "0", "--client", "3"])
    assert not caught.value.code
    printed = capsys.readouterr().out.split()
    assert printed == [str(target / name) for name in (INDEX, "client-0.safetensors", "client-3.safetensors")]
