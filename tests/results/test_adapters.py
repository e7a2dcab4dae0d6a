"""Adapters that `peft` adds to a network of `transformers`: they are trained, exported, and used without fedstrata."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedstrata as fs
from fedstrata.base.errors import ModelError
from fedstrata.core import State
from fedstrata.models import layout_of
from fedstrata.results.run import Run

peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")

TOKENS = 32
LENGTH = 8

WITHOUT_FEDSTRATA = """
import sys
sys.modules["fedstrata"] = None  # an import of it fails
import numpy, torch
from peft import PeftModel
from transformers import GPT2LMHeadModel
base, adapter, texts = sys.argv[1:]
model = PeftModel.from_pretrained(GPT2LMHeadModel.from_pretrained(base), adapter).eval()
held = numpy.load(texts)
with torch.no_grad():
    logits = model(input_ids=torch.from_numpy(held["x"])).logits
print(float(torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.from_numpy(held["y"]).flatten())))
"""


class Adapted(nn.Module):
    """A language model with adapters whose B alone is trained.

    Args:
        head: Whether it has a layer of its own, which is trained as well.
    """

    def __init__(self, head: bool = False) -> None:
        super().__init__()
        settings = {"n_positions": LENGTH, "n_embd": 8, "n_layer": 2, "n_head": 2, "use_cache": False}
        config = transformers.GPT2Config(vocab_size=TOKENS, bos_token_id=0, eos_token_id=0, **settings)
        lora = peft.LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True)
        self.model = peft.get_peft_model(transformers.GPT2LMHeadModel(config), lora)
        for name, parameter in self.model.named_parameters():
            parameter.requires_grad_("lora_B" in name)
        self.head = nn.Linear(TOKENS, TOKENS) if head else nn.Identity()

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.head(self.model(input_ids=tokens).logits)
        return logits


def texts(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Texts of the first half of the tokens, and their next tokens."""
    found = np.random.default_rng(seed).integers(0, TOKENS // 2, (20, LENGTH + 1))
    return found[:, :-1], found[:, 1:]


CLIENTS = {name: (texts(place), texts(place + 10)) for place, name in enumerate(("Ghent", "Turku", "Lugo"))}


def play(network: nn.Module, folder: Path, **tables: Any) -> Run:
    experiment = {"rounds": 2, "data": {"tokens": True}, "local": {"lr": 1.0}, "engine": {"name": "loop"}, **tables}
    return fs.run(experiment, folder, clients=CLIENTS, model=network, algorithm="fedavg", quiet=True)


@pytest.fixture(scope="module")
def network() -> nn.Module:
    torch.manual_seed(4)
    return Adapted()


@pytest.fixture(scope="module")
def finished(network: nn.Module, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return play(network, tmp_path_factory.mktemp("adapters") / "run")


def test_layers_of_adapters_alone_are_in_rows(network: nn.Module, finished: Run) -> None:
    layout = layout_of(network)
    assert layout.layers == tuple(
        f"model.base_model.model.transformer.h.{at}.attn.c_attn.lora_B.default" for at in (0, 1)
    )
    assert finished.state.models.shape == (1, 2 * 24 * 2) and finished.state.models.any()
    assert layout.select("*.h.1.*lora_B*") == (False, True)
    assert json.loads((finished.folder / "data.json").read_text())["frozen"] == layout.frozen != ""


def test_an_exported_adapter_has_the_recorded_loss_where_fedstrata_is_not(
    network: nn.Module, finished: Run, tmp_path: Path
) -> None:
    index, folder = fs.export(finished, tmp_path / "exported", format="peft")
    (entry,) = json.loads(index.read_text())["models"]
    assert entry["file"] == folder.name == "cluster-0" and entry["clients"] == list(CLIENTS)
    # Merging adapters into the base of one model changes no other.
    merged, other = (cast(Any, finished.model("Ghent").network).model for _ in range(2))
    merged.merge_and_unload()
    other.unload().save_pretrained(tmp_path / "base")
    held = [np.concatenate(parts) for parts in zip(*(test for _, test in CLIENTS.values()), strict=True)]
    np.savez(tmp_path / "held.npz", x=held[0], y=held[1])
    given = [str(tmp_path / "base"), str(folder), str(tmp_path / "held.npz")]
    done = subprocess.run([sys.executable, "-c", WITHOUT_FEDSTRATA, *given], capture_output=True, text=True, check=True)
    # All clients have as many tokens.
    assert float(done.stdout) == pytest.approx(finished.rounds[-1]["loss"], rel=1e-5)


@pytest.mark.usefixtures("forked_workers")
def test_processes_train_adapters_as_the_loop_does(network: nn.Module, finished: Run, tmp_path: Path) -> None:
    apart = play(network, tmp_path / "run", engine={"name": "processes", "workers": 2})
    state: State = apart.state
    assert torch.equal(state.models, finished.state.models)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: Adapted(head=True), "expected adapters alone to be trained, found head.weight besides"),
        (lambda: nn.Embedding(TOKENS, TOKENS), "expected a network with one PeftModel in it, found 0"),
    ],
)
def test_what_peft_would_leave_out_is_not_exported(made: Any, message: str, tmp_path: Path) -> None:
    run = play(made(), tmp_path / "run", rounds=1)
    with pytest.raises(ModelError, match=message):
        fs.export(run, tmp_path / "exported", format="peft")
    assert not (tmp_path / "exported").exists()
