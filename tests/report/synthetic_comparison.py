"""The folder of a comparison, made of synthetic runs: cfl gains a little with every round, and strata a little more."""

import json
from pathlib import Path

from synthetic_run import write

from fedstrata.comparison import Comparison, tabulate

GAINS = {"fedavg": 0.0, "cfl": 0.01, "strata": 0.02}


def run(folder: Path, algorithm: str, seed: int, count: int = 5) -> Path:
    """A finished run of one of `GAINS`; with an odd seed, strata is only as good as cfl."""
    write(folder, count)
    path = folder / "experiment.toml"
    text = path.read_text(encoding="utf-8").replace("seed = 3", f"seed = {seed}")
    named = text.replace('name = "layercfl"\nlayers = "conv2"', f'name = "{algorithm}"\nalpha = 0.05')
    path.write_text(named, encoding="utf-8")
    gain = GAINS["cfl" if seed % 2 and algorithm == "strata" else algorithm] + 0.001 * seed
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text(encoding="utf-8").splitlines()]
    for line in lines:
        line["acc_client"] = 0.3 + gain * line["round"]
    (folder / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    edit(folder / "summary.json", algorithm=algorithm, seed=seed, acc_client=lines[-1]["acc_client"])
    return folder


def edit(file: Path, **changes: object) -> None:
    """Other values for some keys of a JSON file."""
    file.write_text(json.dumps(json.loads(file.read_text(encoding="utf-8")) | changes), encoding="utf-8")


def compare(out: Path, seeds: tuple[int, ...] = (0, 1)) -> Comparison:
    """Runs of all `GAINS`, in the folder of their comparison."""
    folders = [run(out / f"{name}-{seed}", name, seed) for seed in seeds for name in GAINS]
    return tabulate(folders, out / "both")
