import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from experiments.strata import study
from experiments.strata.study import keep, outcomes, separate

from fedstrata.algorithms.fedavg import FedAvg
from forked import run


def runs(path: Path) -> list[tuple[str, int, int]]:
    return [(run["variant"], run["seed"], run["n"]) for run in json.loads(path.read_text())]


def test_a_result_takes_the_place_of_the_same_variant_and_seed(tmp_path: Path) -> None:
    path = tmp_path / "results" / "e.json"
    for n, (variant, seed) in enumerate([("cfl", 1), ("fedavg", 0), ("cfl", 0), ("cfl", 1)]):
        keep(path, {"variant": variant, "seed": seed, "n": n})
    assert runs(path) == [("cfl", 0, 2), ("cfl", 1, 3), ("fedavg", 0, 1)]
    assert [other.name for other in path.parent.iterdir()] == ["e.json"]


def test_studies_that_end_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "e.json"
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda seed: keep(path, {"variant": "cfl", "seed": seed, "n": seed}), range(40)))
    assert runs(path) == [("cfl", seed, seed) for seed in range(40)]


def test_commas_inside_brackets_do_not_end_a_variant() -> None:
    tabled = 'strata+partition={scheme="rotation",sizes=[12,5,3],inside={scheme="iid"}}'
    listed = 'layercfl+algorithm.layers=["conv1","conv2"]'
    assert separate(f"fedavg,{tabled},{listed},cfl:0.1") == ["fedavg", tabled, listed, "cfl:0.1"]
    assert separate("fedavg") == ["fedavg"]


def command(*arguments: str) -> None:
    """Be the command line."""
    sys.argv = ["study.py", *arguments]
    study.main()


@pytest.mark.slow
def test_a_run_that_fails_is_named_and_the_others_are_kept(tmp_path: Path) -> None:
    experiment = tmp_path / "small.toml"
    data, partition = "[data]\nclients = 4\nsamples = 40\n", '[partition]\nscheme = "dirichlet"\nalpha = 1.0\n'
    experiment.write_text(f"rounds = 2\n{data}{partition}")
    out, listed = tmp_path / "kept.json", 'layercfl+algorithm.layers=["linear","head"]'
    tabled = 'partition={scheme="dirichlet",alpha=5.0}'
    options = ("--variants", f"oracle,{listed}", "--seeds", "0", "--on", tabled, "--out", str(out))
    done = run(command, str(experiment), *options)
    assert done.status == 1 and f"small, oracle+{tabled}, seed 0: ExperimentError: " in done.err
    (kept,) = json.loads(out.read_text())
    assert (
        kept["variant"] == f"{listed}+{tabled}" and len(kept["clients"]) == 4 and len(kept["curves"]["clusters"]) == 2
    )


@pytest.mark.slow
def test_variants_that_run_together_come_to_the_same_as_each_alone(tmp_path: Path) -> None:
    experiment = tmp_path / "small.toml"
    own, other = '[algorithm]\nname = "strata"\n', '[algorithms.ifca]\ninit = "restart"\n'
    experiment.write_text(f"rounds = 2\n[data]\nclients = 4\nsamples = 40\n{own}{other}")
    # An algorithm may run twice, with other keys.
    variants = ["fedavg", "ifca+algorithm.k=3", "ifca+algorithm.k=2", "strata"]
    on = "partition.scheme=iid"
    together = outcomes(experiment, variants, on, 1)
    alone = [result for variant in variants for result in outcomes(experiment, [variant], on, 1)]
    for result in together + alone:
        del result["seconds"], result["seconds_server"]
    assert together == alone and together[1]["variant"] == "ifca+algorithm.k=3+partition.scheme=iid"


@pytest.mark.slow
def test_one_of_several_that_fails_leaves_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = tmp_path / "small.toml"
    experiment.write_text("rounds = 1\n[data]\nclients = 4\nsamples = 40\n")
    monkeypatch.setattr(FedAvg, "update", lambda *_: 1 / 0)
    failed, finished = outcomes(experiment, ["fedavg", "local"], "", 0)
    assert failed == {"variant": "fedavg", "error": "ZeroDivisionError: division by zero"}
    assert finished["variant"] == "local" and len(finished["clients"]) == 4


def test_variants_that_run_together_differ_in_keys_of_their_algorithms_alone(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"fedavg\+local.lr=0.1: variants run together share 'local.lr'; put it behind"
    ):
        outcomes(tmp_path / "e.toml", ["fedavg+local.lr=0.1", "cfl"], "", 0)
