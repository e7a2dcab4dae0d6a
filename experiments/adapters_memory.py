"""The memory of a run whose twelve clients train adapters of a frozen base of 25 million weights.

    python -m experiments.adapters_memory

Writes ``experiments/results/adapters_memory.json``. A peak is that of the resident memory (VmHWM of Linux) above what
the process has after the same run with a base of two layers that are 8 wide, so after all imports. The clients have few
and short samples, so that what a step keeps is small beside the base. The page of a run is made at its end. It takes as
much memory for any network, and has a peak of its own.
"""

from __future__ import annotations

import argparse
import json
import re
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

import fedstrata as fs
from fedstrata import report

RESULTS = Path(__file__).parent / "results" / "adapters_memory.json"
CLIENTS = 12
LENGTH = 16


class Adapted(nn.Module):
    """A language model with random weights and adapters.

    Args:
        width: The numbers of a token inside it.
        layers: The number of its layers.
    """

    def __init__(self, width: int, layers: int) -> None:
        """Make the base, and adapters whose B alone is trained."""
        super().__init__()
        shape = {"n_positions": LENGTH, "n_embd": width, "n_layer": layers, "n_head": 4}
        base = GPT2LMHeadModel(GPT2Config(vocab_size=256, use_cache=False, bos_token_id=0, eos_token_id=0, **shape))
        self.model = get_peft_model(base, LoraConfig(r=4, target_modules=["c_attn"], fan_in_fan_out=True))
        for name, parameter in self.model.named_parameters():
            parameter.requires_grad_("lora_B" in name)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map tokens (batch, length) to the logits of the next ones, (batch, length, 256)."""
        logits: Tensor = self.model(input_ids=tokens).logits
        return logits


def memory(peak: bool) -> int:
    """The resident memory of this process now, or at most since `forget_peak`, in bytes."""
    found = re.search(rf"Vm{'HWM' if peak else 'RSS'}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return 1024 * int(found[1])


def forget_peak() -> None:
    """Let the peak be what the memory is now."""
    Path("/proc/self/clear_refs").write_text("5")


def play(width: int, layers: int, *, as_object: bool) -> dict[str, int]:
    """Play a run of three rounds, and return bytes: of the base, the rows of all clients, and both peaks."""
    rng = np.random.default_rng(0)
    texts = [rng.integers(0, 256, (12, LENGTH + 1)) for _ in range(CLIENTS)]
    clients = {f"client {place}": (text[:, :-1], text[:, 1:]) for place, text in enumerate(texts)}
    before = memory(peak=False)
    forget_peak()
    make = partial(Adapted, width, layers)
    experiment = {"data": {"tokens": True}, "local": {"batch": 2}, "engine": {"name": "loop"}}
    given = make() if as_object else make
    with TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        with patch("fedstrata.report.build"):
            run = fs.run(experiment, out, clients=clients, model=given, algorithm="fedavg", rounds=3, quiet=True)
        training = memory(peak=True) - before
        report.build(out)
        whole = memory(peak=True) - before
        rows = CLIENTS * run.state.models[0].nbytes
        network = run.model(0).network
    base = sum(each.nbytes for each in network.parameters() if not each.requires_grad)
    return {"base": base, "rows": rows, "training": training, "with the page": whole}


def measured(as_object: bool) -> dict[str, int]:
    """What `play` says of the base of 25 million weights, in this process, which has played nothing else before."""
    torch.set_num_threads(1)
    play(8, 2, as_object=as_object)
    return play(512, 8, as_object=as_object)


def main() -> None:
    """Measure with a network, and with a function that makes one, each in a process of its own."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    found = {}
    for given, as_object in (("network", True), ("factory", False)):
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            found[given] = pool.submit(measured, as_object).result()
        held = found[given]["base"] + found[given]["rows"]
        print(given, found[given], *(f"{found[given][peak] / held:.2f}" for peak in ("training", "with the page")))
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
