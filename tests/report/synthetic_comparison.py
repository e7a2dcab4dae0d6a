"""The folder of a comparison, made of synthetic runs: cfl gains a little with every round, and strata a little more."""

import tomllib
from collections.abc import Sequence
from pathlib import Path

from synthetic_run import edit, edit_rounds, write

from builders import compared
from fedstrata.comparison import Comparison
from fedstrata.comparison.collect import read_outcome
from fedstrata.comparison.document import write_comparison

GAINS = {"fedavg": 0.0, "cfl": 0.01, "strata": 0.02}


def run(folder: Path, algorithm: str, seed: int, count: int = 5) -> Path:
    """A finished run of one of `GAINS`; with an odd seed, strata is only as good as cfl."""
    write(folder, count)
    path = folder / "experiment.toml"
    text = path.read_text(encoding="utf-8").replace("seed = 3", f"seed = {seed}")
    named = text.replace('name = "layercfl"\nlayers = "conv2"', f'name = "{algorithm}"\nalpha = 0.05')
    path.write_text(named, encoding="utf-8")
    gain = GAINS["cfl" if seed % 2 and algorithm == "strata" else algorithm] + 0.001 * seed
    edit_rounds(folder, lambda line: {"acc_client": 0.3 + gain * line["round"]})
    edit(folder / "summary.json", algorithm=algorithm, seed=seed, acc_client=0.3 + gain * count)
    return folder


def compare(out: Path, seeds: tuple[int, ...] = (0, 1)) -> Comparison:
    """Runs of all `GAINS`, in the folder of their comparison."""
    folders = [run(out / f"{name}-{seed}", name, seed) for seed in seeds for name in GAINS]
    return compare_folders(folders, out / "both")


def compare_folders(folders: Sequence[Path], out: Path) -> Comparison:
    """The comparison of some of these runs."""
    keys = [tomllib.loads((folder / "experiment.toml").read_text(encoding="utf-8")) for folder in folders]
    pairs = zip(folders, keys, strict=True)
    runs = tuple(read_outcome(own["algorithm"]["name"], own["seed"], folder) for folder, own in pairs)
    common = {name: value for name, value in keys[0].items() if name not in ("algorithm", "seed")}
    return write_comparison(compared(runs, out, common))
