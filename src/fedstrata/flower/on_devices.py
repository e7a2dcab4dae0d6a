"""What an experiment on devices needs: names that every machine can import, and no key of simulations alone."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from fedstrata.base.errors import ExperimentError
from fedstrata.base.quoting import shown
from fedstrata.base.registry import OBJECT, ONLY_HERE
from fedstrata.build.elsewhere import require, rules_elsewhere
from fedstrata.config import Experiment

ON_DEVICES = ("engine.name=loop", "engine.device=cpu")
"""What all experiments on devices have: each device trains its client by itself."""


def refuse_on_devices(experiment: Experiment) -> None:
    """Refuse what only a simulation can do.

    Raises:
        ExperimentError: When the experiment has such a thing.
    """
    for key, name in _own_objects(experiment).items():
        if name.startswith((ONLY_HERE, OBJECT)):
            raise ExperimentError(f"{key} = {shown(name)}: expected 'module:Name', which every machine can import")
    cohort = experiment.cohort
    # It is not known from how many clients a cohort will be drawn, and epsilon depends on it.
    known_share = cohort.fraction == 1 or cohort.sampling == "poisson"
    require(
        {
            **rules_elsewhere(experiment),
            "engine.precision: expected 'float32' or 'bfloat16'": experiment.engine.precision != "tf32",
            "cohort.sampling: expected 'poisson' with privacy.kind = 'central'": (
                experiment.privacy.kind != "central" or known_share
            ),
            "report.baseline: expected false, as devices would train twice; deploy the experiment with "
            "algorithm.name = 'fedavg' into a folder next to this one": not experiment.report.baseline,
        },
        "on real devices; a simulation may have it",
    )


def _own_objects(experiment: Experiment) -> dict[str, str]:
    """What an experiment names as an object of the user's own, by its key."""
    local = experiment.local
    named = {
        "algorithm.name": experiment.algorithm.name,
        "model.name": experiment.model.name,
        "local.loss": local.loss,
        "local.metric": local.metric or "",
        "local.transform": local.transform,
    }
    return {key: name for key, name in named.items() if ":" in name}


def copy_modules(experiment: Experiment, folder: Path) -> None:
    """Copy modules of the user's own that lie in the current directory to a folder where Flower's programs start.

    Those programs find what is installed, and what is in the folder of the script that starts them.
    """
    for module in {name.partition(":")[0].partition(".")[0] for name in _own_objects(experiment).values()}:
        if Path(f"{module}.py").is_file():
            shutil.copy(f"{module}.py", folder)
        elif (Path(module) / "__init__.py").is_file():
            shutil.copytree(module, folder / module, ignore=shutil.ignore_patterns("__pycache__"))


def refuse_unknown_modules(experiment: Experiment, folder: Path) -> None:
    """Refuse what the programs that start in a folder cannot import, though this process may.

    Raises:
        ExperimentError: For the first such name.
    """
    for key, name in _own_objects(experiment).items():
        load = "import sys; from fedstrata.base.registry import load_users_object; load_users_object(sys.argv[1])"
        command = [sys.executable, "-c", load, name]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode:
            reason = done.stderr.strip().splitlines()[-1].removeprefix("ValueError: ")
            raise ExperimentError(
                f"{key} = {shown(name)}: expected a module that is installed or beside superlink.sh, found {reason}; "
                "put it there and beside start.sh on every device, or install it on all machines"
            )
