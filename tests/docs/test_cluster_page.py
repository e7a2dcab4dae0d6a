"""What docs/deploy/cluster.md shows: the comparison runs, and Ray takes the file of its launcher."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from blocks import blocks, run
from fedstrata.config import load_experiment

# Ray's own: how it looks for accelerators, and what it leaves to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::ResourceWarning")

BLOCKS = blocks("deploy/cluster.md")


def shown(name: str) -> str:
    """The text of the file that a block names in its first line."""
    (text,) = (block.text for block in BLOCKS if block.file == name)
    return text


def file_of_list(name: str) -> str:
    """The same for a block inside a list."""
    page = (Path(__file__).parents[2] / "docs" / "deploy" / "cluster.md").read_text()
    text = page.partition(f"    ```yaml\n    # {name}\n")[2].partition("    ```\n")[0]
    return "".join(line.removeprefix("    ") for line in text.splitlines(keepends=True))


def comparison() -> list[str]:
    """The words of the command that the page begins with."""
    (line,) = (
        line for block in BLOCKS if not block.language for line in block.text.splitlines() if "compare study" in line
    )
    return line.split()


def test_the_experiment_names_the_engine() -> None:
    assert load_experiment(tomllib.loads(shown("study.toml"))).engine.name == "ray"


def test_the_comparison_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the loop: that Ray equals it, with and without an address, is held by the tests of the engine."""
    monkeypatch.chdir(tmp_path)
    Path("study.toml").write_text(shown("study.toml"))
    status, said = run(" ".join([*comparison(), "--set", "engine.name=loop"]))
    assert status == 0 and any("strata" in line for line in said)
    assert len(list(Path("runs/compared").rglob("rounds.jsonl"))) == 4


def test_ray_takes_the_file_of_its_launcher() -> None:
    from ray.autoscaler._private.util import prepare_config, validate_config

    config = prepare_config(yaml.safe_load(file_of_list("cluster.yaml")))
    validate_config(config)
    types = config["available_node_types"]
    assert types["head"]["resources"] == {"CPU": 0} and types["worker"]["max_workers"] == config["max_workers"] == 4
    for kind, cores in (("head", 0), ("worker", 8)):
        assert any(f"--num-cpus={cores}" in command for command in config[f"{kind}_start_ray_commands"])


def test_the_job_of_kuberay_is_complete() -> None:
    job: dict[str, Any] = yaml.safe_load(shown("rayjob.yaml"))
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    cluster = job["spec"]["rayClusterSpec"]
    assert cluster["enableInTreeAutoscaling"] and cluster["headGroupSpec"]["rayStartParams"] == {"num-cpus": "0"}
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    pods = [group["template"]["spec"] for group in groups]
    assert len({pod["containers"][0]["image"] for pod in pods}) == 1
    for pod in pods:
        volumes = {volume["name"] for volume in pod.get("volumes", [])}
        assert {mount["name"] for mount in pod["containers"][0].get("volumeMounts", [])} == volumes
    json.dumps(job)  # no value that YAML reads as a date or the like
