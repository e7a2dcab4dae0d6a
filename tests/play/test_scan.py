import subprocess
import sys
from typing import Any

import pytest

from fedstrata import cli
from fedstrata.config import load_experiment
from fedstrata.play.scan import scan_experiment


def digits(scheme: str, **keys: Any) -> dict[str, Any]:
    return {
        "data": {"name": "digits", "clients": 16, "samples": 70},
        "partition": {"scheme": scheme, **keys},
        "local": {"lr": 0.1, "batch": 10},
        "algorithm": {"name": "oracle"},
    }


@pytest.mark.parametrize(
    ("scheme", "keys", "layer", "skew"),
    [
        ("rotation", {"groups": 4}, "linear1", "other"),
        ("label_groups", {"labels": [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]}, "linear2", "labels"),
        ("iid", {}, None, None),
    ],
)
def test_the_digits_are_told_apart(scheme: str, keys: dict[str, Any], layer: str | None, skew: str | None) -> None:
    lines: list[str] = []
    found = scan_experiment(load_experiment(digits(scheme, **keys)), 3, lines.append)
    assert (found.layer, found.skew) == (layer, skew) and found.clients == 16 and found.rounds == 2
    assert lines == ["round 1/3", "round 2/3", "round 3/3"]


def test_who_takes_part_is_as_in_the_experiment() -> None:
    experiment = load_experiment(digits("rotation", groups=4) | {"cohort": {"fraction": 0.75, "dropout": 0.25}})
    found = scan_experiment(experiment, 3)
    assert found.clients < 12 and found.rounds <= 2


def status(*args: str) -> object:
    with pytest.raises(SystemExit) as caught:
        cli.main(args)
    return caught.value.code or 0


def test_the_command_prints_a_table_and_a_sentence(capsys: pytest.CaptureFixture[str], tmp_path: Any) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("[data]\nclients = 12\nsamples = 70\n[local]\nlr = 0.1\n[partition]\nscheme = 'iid'\n")
    assert status("scout", str(file), "--rounds", "2") == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert [line.split()[0] for line in lines[:-1]] == ["layer", "linear1", "linear2", "all", "linear2.bias"]
    assert lines[0].split() == ["layer", "correlation", "apart", "common", "p"]
    assert lines[-1].startswith("no separation: ") and err == "round 1/2\nround 2/2\n"
    assert status("scout", str(file), "--set", "data.clients=4", "--set", "data.samples=20", "--quiet") == 0
    told = "no scan: 4 clients have the 20 samples that two parts need, too few for a test\n"
    assert capsys.readouterr() == (told, "")


def test_the_command_names_the_layer_as_the_key_takes_it(capsys: pytest.CaptureFixture[str], tmp_path: Any) -> None:
    file = tmp_path / "turned.toml"
    data = "[data]\nclients = 12\nsamples = 70\n[local]\nlr = 0.2\nbatch = 10\n"
    file.write_text(f"{data}[partition]\nscheme = 'rotation'\ngroups = 3\n")
    assert status("scout", str(file), "--quiet") == 0
    assert capsys.readouterr().out.endswith('LayerCFL compares it with algorithm.layers = "linear1"\n')


def test_a_wrong_experiment_is_found_before_torch_is_imported() -> None:
    code = """
import sys
from fedstrata import cli
try:
    cli.main(["scout", "--set", "local.lr=-1"])
except SystemExit as stop:
    assert stop.code == 2 and "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
