"""The three commands that make a federation, run an experiment on it, and go on with a run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tomli_w

from fedstrata.config import Experiment, choose, dumps, load_experiment
from fedstrata.config.folders import require_new_folder
from fedstrata.config.reading import Source
from fedstrata.errors import EngineError, ExperimentError
from fedstrata.quoting import shown
from fedstrata.registry import OBJECT, ONLY_HERE

FEDERATION_FILE = "federation.toml"
"""The name of a federation's own file, in its folder."""

_SAMPLES_MARGIN = 2
"""How many times the samples of its largest client a client of a new federation may claim: data may grow."""

ON_DEVICES = ("engine.name=loop", "engine.device=cpu")
"""What all experiments on devices have: each device trains its client by itself."""

QUIET_FLOWER = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
"""The variables by which Flower does not report that it is used, nor ask for a newer version."""

NETWORK = "network"
"""The folder in a run folder with the run's name on the devices, the registered clients and every round's traffic."""


def init(
    folder: Path | str, source: Source = None, sets: Sequence[str] = (), host: str = "127.0.0.1", port: int = 8000
) -> str:
    """Make a test federation in which every client of an experiment is a node with its data.

    Args:
        folder: A new or empty folder.
        source: The experiment, as `load_experiment` takes it; its file is ``experiment.toml`` in the folder.
        sets: Keys and values, as `load_experiment` takes them.
        host: The name or address at which nodes reach the server.
        port: The port of the server.

    Returns:
        What to do next, line by line.

    Raises:
        InputError: When something in the experiment is wrong, or the folder holds something.
    """
    folder = Path(folder)
    experiment = load_experiment(source, [*sets, *ON_DEVICES])
    refuse_local_names(experiment)
    refuse_attack(experiment)
    from fedstrata.flower.payload import flower

    flower()
    require_new_folder(folder)
    with tempfile.TemporaryDirectory() as beside:
        _copy_modules(experiment, Path(beside))
        refuse_unknown_modules(experiment, Path(beside))
    from fedstrata.flower.client_data import export_client_data, export_public_data
    from fedstrata.flower.federation import Federation, write_federation
    from fedstrata.flower.scaffold import node_keys, scaffold
    from fedstrata.report.client_names import ClientNames
    from fedstrata.runner.build import build_run
    from fedstrata.runner.rounds import one_thread

    with one_thread():
        setup = build_run(experiment)
        clients = node_keys(setup.names)
        folder.mkdir(parents=True, exist_ok=True)
        scaffold(folder, clients, host, port)
        for place in (folder, *(folder / "nodes" / client for client in clients)):
            _copy_modules(experiment, place)
        paths = [node_data(folder, client) for client in clients]
        samples = export_client_data(setup, experiment.data.held_out_share, paths)
        truth = () if setup.problem.truth is None else tuple(setup.problem.truth.tolist())
        public = export_public_data(setup, folder / "public.npz")
    held = [
        len(part(client))
        for client in range(len(clients))
        for part in (setup.client_data.train, setup.client_data.test)
    ]
    names = () if ClientNames(setup.names).plain else setup.names
    most = _SAMPLES_MARGIN * max(held)
    federation = Federation(clients, samples, max_samples=most, truth=truth, public=public, names=names)
    write_federation(folder / FEDERATION_FILE, federation)
    _fit_proxy(folder, experiment)
    # What the samples are is the federation's to say now; the seed, the model and the algorithm are the experiment's.
    (folder / "experiment.toml").write_text(dumps(experiment), encoding="utf-8")
    return "\n".join(
        (
            f"{folder}/superlink.sh                    on the server, and leave it running",
            f"{folder}/register.sh                     once, on the server",
            f"{folder}/nodes/{clients[0]}/start.sh          and likewise for the others, each on its machine",
            f"fedstrata deploy run {folder}/experiment.toml --federation {folder}",
        )
    )


def run_on_federation(
    source: Source, federation: Path | str, out: Path | str | None = None, sets: Sequence[str] = ()
) -> Path:
    """Run an experiment on a federation that is up; its log is shown.

    Args:
        source: The experiment, as `load_experiment` takes it.
        federation: The folder of the federation.
        out: The run folder; by default a new one in ``runs``.
        sets: Keys and values, as `load_experiment` takes them.

    Returns:
        The run folder, as a simulated run leaves it.

    Raises:
        InputError: When something in the experiment is wrong; nothing is started then.
        EngineError: When the run did not finish.
    """
    experiment, folder = choose(source, [*sets, *ON_DEVICES], out)
    home = federation_home(federation)
    refuse_unknown_modules(experiment, home)
    _fit_proxy(home, experiment)
    text = home / "runs" / f"{folder.resolve().name}.toml"
    text.parent.mkdir(exist_ok=True)
    text.write_text(dumps(experiment), encoding="utf-8")
    return _submit(home, folder, {"experiment": str(text), "resume": False})


def resume(out: Path | str, federation: Path | str) -> Path:
    """Go on with a run after its server application, or the SuperLink, was lost.

    Args:
        out: The run folder.
        federation: The folder of the federation.

    Returns:
        The run folder.

    Raises:
        InputError: When there is no such run.
        EngineError: When the run did not finish.
    """
    _, folder = choose(None, (), out, resume=True)
    return _submit(federation_home(federation), folder, {"experiment": "", "resume": True})


def refuse_attack(experiment: Experiment) -> None:
    """Refuse Byzantine clients, which only a simulation has.

    Raises:
        ExperimentError: When there are some.
    """
    if not experiment.attack.all_honest:
        raise ExperimentError(
            f"attack.kind = {shown(experiment.attack.kind)}: expected 'none' on real devices; attack a simulation"
        )


def refuse_local_names(experiment: Experiment) -> None:
    """Refuse what only one script or notebook knows: other machines cannot import it.

    Raises:
        ExperimentError: When there is one.
    """
    local = experiment.local
    names = {"algorithm.name": experiment.algorithm.name, "model.name": experiment.model.name}
    names |= {"local.loss": local.loss, "local.metric": local.metric or "", "local.transform": local.transform}
    for key, name in names.items():
        if name.startswith((ONLY_HERE, OBJECT)):
            raise ExperimentError(
                f"{key} = {shown(name)}: expected a name that every machine of the federation can import; put it into "
                "a module, install that on all of them, and name it 'module:Name'"
            )


def _own_objects(experiment: Experiment) -> dict[str, str]:
    """Return what an experiment names as ``"module:attribute"``, by its key."""
    local = experiment.local
    names = {
        "algorithm.name": experiment.algorithm.name,
        "model.name": experiment.model.name,
        "local.loss": local.loss,
        "local.metric": local.metric or "",
        "local.transform": local.transform,
    }
    return {key: name for key, name in names.items() if ":" in name}


def _copy_modules(experiment: Experiment, folder: Path) -> None:
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
        load = "import sys; from fedstrata.registry import load_users_object; load_users_object(sys.argv[1])"
        command = [sys.executable, "-c", load, name]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode:
            reason = done.stderr.strip().splitlines()[-1].removeprefix("ValueError: ")
            raise ExperimentError(
                f"{key} = {shown(name)}: expected a module that is installed or lies beside superlink.sh, where the "
                f"server's programs look, found {reason}; put it there and beside start.sh on every device as one file "
                "or one package that needs no other of yours (deploy init does so), or install it on all machines"
            )


def _fit_proxy(home: Path, experiment: Experiment) -> None:
    """Let replies about the experiment's model through the proxy, and none that is much larger."""
    from fedstrata.flower.federation import read_federation
    from fedstrata.flower.scaffold import PROXY_FOLDER, fit_proxy
    from fedstrata.flower.server import run_config, with_sums
    from fedstrata.models import layout_of

    if (home / PROXY_FOLDER).is_dir():
        config = run_config(experiment, read_federation(home / FEDERATION_FILE), "")
        if experiment.privacy.secure_aggregation:
            config = with_sums(experiment, config)
        fit_proxy(home, layout_of(config.network()), config)


def node_data(home: Path, client: str) -> Path:
    """The file with the data of a client of a test federation, in the folder of its node."""
    return home / "nodes" / client / "data.npz"


def federation_home(federation: Path | str) -> Path:
    """Return the whole path of the folder of a federation.

    Raises:
        InputError: When it is none, or Flower is not installed.
    """
    home = Path(federation).resolve()
    if not (home / FEDERATION_FILE).is_file():
        raise ExperimentError(
            f"--federation {str(federation)!r}: expected the folder of a federation, found no {FEDERATION_FILE} in it; "
            "make one by: fedstrata deploy init DIR"
        )
    from fedstrata.flower.payload import flower

    flower()
    return home


def _submit(home: Path, out: Path, config: dict[str, Any]) -> Path:
    """Hand a run to the SuperLink and show its log until it is over."""
    finished = out / "summary.json"
    before = finished.stat().st_mtime_ns if finished.exists() else 0
    keys = home / "runs" / f"{out.resolve().name}.config.toml"
    keys.parent.mkdir(exist_ok=True)
    whole = {**config, "federation": str(home / FEDERATION_FILE), "out": str(out.resolve())}
    keys.write_text(tomli_w.dumps(whole), encoding="utf-8")
    beside = Path(sys.executable).parent
    place = {"FLWR_HOME": str(home / "cli"), "PATH": f"{beside}{os.pathsep}{os.environ.get('PATH', '')}"}
    command = ["flwr", "run", str(home / "app"), "here", "--stream", "--run-config", str(keys)]
    subprocess.run(command, env={**os.environ, **QUIET_FLOWER, **place}, check=False)
    if not finished.exists() or finished.stat().st_mtime_ns == before:
        raise EngineError(
            f"the run in {out} did not finish; its log says why. Go on by: "
            f"fedstrata deploy resume {out} --federation {home}",
            says_how=True,
        )
    return out
