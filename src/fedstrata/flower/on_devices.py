"""What an experiment on devices needs: names that every machine can import, and no key of simulations alone."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from fedstrata.base.errors import ExperimentError
from fedstrata.base.quoting import shown
from fedstrata.base.registry import OBJECT, ONLY_HERE
from fedstrata.config import Experiment
from fedstrata.uploads.disclosure import disclosure_of

ON_DEVICES = ("engine.name=loop", "engine.device=cpu")
"""What all experiments on devices have: each device trains its client by itself."""


def refuse_on_devices(experiment: Experiment) -> None:
    """Refuse what only a simulation can do.

    Raises:
        ExperimentError: When the experiment has such a thing.
    """
    for key, name in _named_objects(experiment).items():
        if name.startswith((ONLY_HERE, OBJECT)):
            raise ExperimentError(
                f"{key} = {shown(name)}: expected a name that every machine of the federation can import; put it into "
                "a module, install that on all of them, and name it 'module:Name'"
            )
    if experiment.engine.precision == "tf32":
        raise ExperimentError(
            "engine.precision = 'tf32': expected 'float32' or 'bfloat16' on real devices, which train on their "
            "processors"
        )
    disclosure = disclosure_of(experiment.algorithm_of(), experiment.rounds)
    if disclosure is not None and not disclosure.clients_keep_data:
        name = experiment.algorithm.name
        raise ExperimentError(f"algorithm.name = {name!r}: no device holds all data; run it in the simulator")
    if experiment.events.change:
        raise ExperimentError("events.change: expected none, as real clients' data are their own; take it out")
    if not experiment.attack.all_honest:
        raise ExperimentError(
            f"attack.kind = {shown(experiment.attack.kind)}: expected 'none' on real devices; attack a simulation"
        )
    if experiment.data.validation:
        raise ExperimentError(
            f"data.validation = {experiment.data.validation}: expected 0 on real devices, whose test samples alone are "
            "held out; make choices in the simulator"
        )
    cohort = experiment.cohort
    if experiment.privacy.kind == "central" and cohort.fraction < 1 and cohort.sampling != "poisson":
        raise ExperimentError(
            f"cohort.sampling = {cohort.sampling!r}: expected 'poisson' with privacy.kind = 'central' on real devices, "
            "as it is not known from how many clients a cohort will be drawn"
        )
    if experiment.local.class_weights == "balanced":
        raise ExperimentError(
            "local.class_weights = 'balanced': expected a list of weights on real devices, which do not tell how many "
            "samples of each class they have; a simulation with 'balanced' shows its weights"
        )
    if experiment.report.baseline:
        raise ExperimentError(
            "report.baseline = true: expected false on real devices, which would have to train twice; deploy the "
            "experiment with algorithm.name = 'fedavg' into a folder next to this one, and the page compares the two"
        )


def _named_objects(experiment: Experiment) -> dict[str, str]:
    """What an experiment may name as an object of the user's own, by its key."""
    local = experiment.local
    return {
        "algorithm.name": experiment.algorithm.name,
        "model.name": experiment.model.name,
        "local.loss": local.loss,
        "local.metric": local.metric or "",
        "local.transform": local.transform,
    }


def _own_objects(experiment: Experiment) -> dict[str, str]:
    """What an experiment names as ``"module:attribute"``, by its key."""
    return {key: name for key, name in _named_objects(experiment).items() if ":" in name}


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
                f"{key} = {shown(name)}: expected a module that is installed or lies beside superlink.sh, where the "
                f"server's programs look, found {reason}; put it there and beside start.sh on every device as one file "
                "or one package that needs no other of yours (deploy init does so), or install it on all machines"
            )
