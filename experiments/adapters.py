"""Adapters of a small language model on twelve clients with three kinds of text, and what training both factors costs.

    python -m experiments.adapters

Trains the base at first and keeps it in ``.cache/adapters``. Then adds to ``experiments/results/adapters.json`` the
runs that it does not hold yet, so it can be stopped and called again.

No text is downloaded. It is what every Debian machine has: the sources of Python's standard library, the manuals, and
the licences of the packages. Another machine has other packages, so that its figures are others. A paragraph counts
once among all documents of its kind, as licences repeat each other. The base is trained on one half of the documents of
each kind, all kinds mixed. The clients have the other half: each has documents of its own of one kind, some to train
with and others to test with. Several samples are of one document, so Strata is told that (`data.unit`).
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import sysconfig
from functools import cache
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from peft import LoraConfig, get_peft_model
from sklearn.metrics import adjusted_rand_score
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import GPT2Config, GPT2LMHeadModel

import fedstrata as fs
from fedstrata.records.arrays import last_scores

HERE = Path(__file__).parent
BASE = HERE.parent / ".cache" / "adapters" / "base"
"""The folder of the base."""

RESULTS = HERE / "results" / "adapters.json"

KINDS = ("sources", "manuals", "licences")
LENGTH = 128
"""The tokens of a sample, which are bytes."""
PIECES = 8
"""The samples of a passage of a document, of which one is drawn."""
LEAST = PIECES * LENGTH + 1
"""The bytes of a passage, which a document must have."""

ROUNDS = 8
PER_KIND = 4
"""The clients of each kind."""
DOCUMENTS = {"": 32, "_test": 8}
"""The documents of a client to train with, and to test with, by the end of the names of their arrays."""
SAMPLES = 8
"""The samples of a document."""

METHODS = {
    "one adapter for all": ("fedavg", False),
    "alone": ("local", False),
    "Strata": ("strata", False),
    "one adapter for all with A trained too": ("fedavg", True),
}
"""The algorithm of each method, and whether both factors of an adapter are trained."""


def files_of(kind: str) -> list[Path]:
    """The files of a kind of text on this machine, by name."""
    if kind == "sources":
        found = Path(sysconfig.get_path("stdlib")).rglob("*.py")
        return sorted(path for path in found if not {"site-packages", "dist-packages", "test"} & {*path.parts})
    if kind == "manuals":
        return sorted(Path("/usr/share/man").glob("man*/*.gz"))
    return sorted([*Path("/usr/share/common-licenses").iterdir(), *Path("/usr/share/doc").glob("*/copyright")])


@cache
def documents(kind: str) -> tuple[list[bytes], list[bytes]]:
    """The documents of the base, and those of the clients, in random order and without repeated paragraphs."""
    seen = set[bytes]()
    found = list[bytes]()
    for path in files_of(kind):
        if path.is_symlink() or not path.is_file():
            continue
        text = path.read_bytes()
        parts = re.split(rb"\n\s*\n", gzip.decompress(text) if path.suffix == ".gz" else text)
        new = {b" ".join(part.split()): part for part in parts}
        kept = [part for words, part in new.items() if words not in seen]
        seen |= new.keys()
        if len(document := b"\n\n".join(kept)) >= LEAST:
            found.append(document)
    order = np.random.default_rng(0).permutation(len(found))
    half = len(found) // 2
    return [found[place] for place in order[:half]], [found[place] for place in order[half:]]


def sample_of(document: bytes, rng: np.random.Generator) -> NDArray[np.int64]:
    """A sample of a document, (LENGTH + 1,): the tokens, of which each is the target of the one before."""
    start = rng.integers(0, len(document) - LEAST + 1)
    start += rng.integers(PIECES) * LENGTH
    return np.frombuffer(document, np.uint8)[start : start + LENGTH + 1].astype(np.int64)


def train_base(steps: int = 2400, batch: int = 16) -> None:
    """Train the base on all kinds of text, mixed, and write it."""
    torch.manual_seed(0)
    rng = np.random.default_rng(1)
    config = GPT2Config(
        vocab_size=256,
        n_positions=LENGTH,
        n_embd=64,
        n_layer=2,
        n_head=4,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
        bos_token_id=0,
        eos_token_id=0,
    )
    model = GPT2LMHeadModel(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps)
    for step in range(steps):
        parts = list[NDArray[np.int64]]()
        for place in range(batch):
            known = documents(KINDS[place % len(KINDS)])[0]
            parts.append(sample_of(known[rng.integers(len(known))], rng))
        tokens = torch.from_numpy(np.stack(parts))
        loss = cross_entropy(model(input_ids=tokens[:, :-1]).logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 100 == 99:
            print(f"base, step {step + 1} of {steps}: perplexity of a byte {loss.detach().exp():.2f}", flush=True)
    model.save_pretrained(BASE)


class Adapted(nn.Module):
    """The base with adapters.

    Args:
        both: Whether both factors of an adapter are trained, and not B alone.
    """

    def __init__(self, both: bool = False) -> None:
        """Load the base, and add adapters with random A and with B = 0."""
        super().__init__()
        base = GPT2LMHeadModel.from_pretrained(BASE)
        layers = ["c_attn", "c_proj", "c_fc"]
        config = LoraConfig(r=8, lora_alpha=16, target_modules=layers, fan_in_fan_out=True, task_type="CAUSAL_LM")
        self.model = get_peft_model(base, config)
        for name, parameter in self.model.named_parameters():
            if not both and "lora_A" in name:
                parameter.requires_grad_(False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map tokens (batch, length) to the logits of the next ones, (batch, length, 256)."""
        logits: Tensor = self.model(input_ids=tokens).logits
        return logits


@fs.describe_metric("perplexity", "exp of the mean loss of a byte", larger_is_better=False, least=1.0)
def perplexity(outputs: Tensor, targets: Tensor) -> float:
    """The perplexity of a byte."""
    return float(cross_entropy(outputs.flatten(0, -2), targets.flatten()).exp())


def write_clients(path: Path, seed: int) -> None:
    """Write the samples of each client to train and to test, of documents that no other client has."""
    rng = np.random.default_rng([seed, 2])
    columns = ("x", "y", "client", "document")
    arrays: dict[str, Any] = {f"{name}{end}": [] for name in columns for end in DOCUMENTS}
    for kind in KINDS:
        known = documents(kind)[1]
        drawn = iter(rng.permutation(len(known)).tolist())
        for number in range(PER_KIND):
            for end, count in DOCUMENTS.items():
                for place in islice(drawn, count):
                    for _ in range(SAMPLES):
                        sample = sample_of(known[place], rng)
                        row = (sample[:-1], sample[1:], f"{kind} {number + 1}", f"{kind} {place}")
                        for name, value in zip(columns, row, strict=True):
                            arrays[name + end].append(value)
    np.savez(path, **arrays)


def play(method: str, seed: int) -> dict[str, Any]:
    """Play one run, and return what came of it."""
    algorithm, both = METHODS[method]
    experiment: dict[str, Any] = {
        "seed": seed,
        "rounds": ROUNDS,
        "data": {"tokens": True, "unit": "document"},
        "partition": {"scheme": "natural", "column": "client"},
        "model": {"name": "experiments.adapters:Adapted", "both": both},
        "local": {"optimizer": "adam", "lr": 0.005, "batch": 16, "metric": "experiments.adapters:perplexity"},
        "algorithm": {"name": algorithm},
        "engine": {"name": "loop"},
    }
    with TemporaryDirectory() as folder:
        archive = Path(folder) / "texts.npz"
        write_clients(archive, seed)
        experiment["data"]["name"] = str(archive)
        run = fs.run(experiment, f"{folder}/run", quiet=True)
        scores = last_scores(run.folder)
        base = json.loads(Path(f"{folder}/run/data.json").read_text())["frozen"]
    return {
        "method": method,
        "seed": seed,
        "frozen": base,
        "rounds": ROUNDS,
        "perplexity": {run.names[client]: score for client, (_, score) in scores.items()},
        "groups": run.labels,
        "ari": adjusted_rand_score([name.split()[0] for name in run.labels], list(run.labels.values())),
        "bytes_up": sum(each["bytes_up"] for each in run.rounds),
        "seconds": run.summary["seconds"],
    }


def main() -> None:
    """Train the base if there is none, then run what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", default=",".join(METHODS), help="some of them, divided by commas")
    parser.add_argument("--seeds", default="3,4,5", help="some numbers, divided by commas")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if not BASE.is_dir():
        train_base()
    found = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    known = {(each["method"], each["seed"]) for each in found}
    for seed in map(int, given.seeds.split(",")):
        for method in given.methods.split(","):
            if (method, seed) not in known:
                found.append(play(method, seed))
                RESULTS.write_text(json.dumps(found, indent=1) + "\n")
                mean = np.mean(list(found[-1]["perplexity"].values()))
                print(method, seed, f"perplexity {mean:.3f}, ARI {found[-1]['ari']:.2f}", flush=True)


if __name__ == "__main__":
    main()
