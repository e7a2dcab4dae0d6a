"""The three commands that make a federation, run an experiment on it, and go on with a run."""

from __future__ import annotations

import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tomli_w

from fedstrata.base.errors import EngineError, ExperimentError
from fedstrata.config import Experiment, choose, dumps, load_experiment
from fedstrata.config.folders import require_new_folder
from fedstrata.config.reading import Source
from fedstrata.flower.federation import (
    FEDERATION_FILE,
    Federation,
    flower_environment,
    node_data,
    read_federation,
    write_federation,
)
from fedstrata.flower.on_devices import (
    ON_DEVICES,
    copy_modules,
    refuse_on_devices,
    refuse_unknown_modules,
)

_SAMPLES_MARGIN = 2
"""How many times the samples of its largest client a client of a new federation may claim: data may grow."""


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
    # The experiment that the library carries has a baseline, which would have real devices train twice.
    carried = () if source else ("report.baseline=false",)
    experiment = load_experiment(source, [*carried, *sets, *ON_DEVICES])
    refuse_on_devices(experiment)
    from fedstrata.flower.payload import flower

    flower()
    require_new_folder(folder)
    with tempfile.TemporaryDirectory() as beside:
        copy_modules(experiment, Path(beside))
        refuse_unknown_modules(experiment, Path(beside))
    from fedstrata.build.build import build_run
    from fedstrata.engine.device import one_thread
    from fedstrata.flower.client_data import export_client_data, export_public_data
    from fedstrata.flower.scaffold import node_keys, scaffold
    from fedstrata.report.words import ClientNames

    with one_thread():
        setup = build_run(experiment)
        clients = node_keys(setup.names)
        folder.mkdir(parents=True, exist_ok=True)
        scaffold(folder, clients, host, port)
        for place in (folder, *(folder / "nodes" / client for client in clients)):
            copy_modules(experiment, place)
        paths = [node_data(folder, client) for client in clients]
        samples = export_client_data(setup, experiment.data.held_out_share, paths)
        truth = () if setup.server.problem.truth is None else tuple(setup.server.problem.truth.tolist())
        public = export_public_data(setup, folder / "public.npz")
    parts = (setup.client_data.train, setup.client_data.test)
    largest = max(len(part(client)) for part in parts for client in range(len(clients)))
    names = () if ClientNames(setup.names).plain else setup.names
    most = _SAMPLES_MARGIN * largest
    federation = Federation(clients, samples, max_samples=most, truth=truth, public=public, names=names)
    write_federation(folder / FEDERATION_FILE, federation)
    _fit_proxy(folder, experiment)
    # What the samples are is the federation's to say now; the seed, the model and the algorithm are the experiment's.
    (folder / "experiment.toml").write_text(dumps(experiment), encoding="utf-8")
    superlink, register, start = (
        shlex.quote(f"{folder}/{script}") for script in ("superlink.sh", "register.sh", f"nodes/{clients[0]}/start.sh")
    )
    return "\n".join(
        (
            f"{superlink}                    on the server, and leave it running",
            f"{register}                     once, on the server",
            f"{start}          and likewise for the others, each on its machine",
            shlex.join(["fedstrata", "deploy", "run", f"{folder}/experiment.toml", "--federation", str(folder)]),
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
    experiment, folder, home = prepare(source, federation, out, sets)
    _fit_proxy(home, experiment)
    text = home / "runs" / f"{folder.resolve().name}.toml"
    text.parent.mkdir(exist_ok=True)
    text.write_text(dumps(experiment), encoding="utf-8")
    return _submit(home, folder, {"experiment": str(text), "resume": False})


def prepare(
    source: Source, federation: Path | str, out: Path | str | None, sets: Sequence[str]
) -> tuple[Experiment, Path, Path]:
    """Read an experiment that is to run on a federation, and see that it can; this process finds its modules too.

    Returns:
        The experiment, its run folder, and the folder of the federation.

    Raises:
        InputError: When something in the experiment is wrong.
    """
    experiment, folder = choose(source, [*sets, *ON_DEVICES], out)
    home = federation_home(federation)
    refuse_on_devices(experiment)
    refuse_unknown_modules(experiment, home)
    if str(home) not in sys.path:
        sys.path.append(str(home))
    return experiment, folder, home


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
    _, folder = choose(None, (), out, resume=True, find_data=False)
    return _submit(federation_home(federation), folder, {"experiment": "", "resume": True})


def _fit_proxy(home: Path, experiment: Experiment) -> None:
    """Let replies about the experiment's model through the proxy, and none that is much larger."""
    from fedstrata.flower.scaffold import PROXY_FOLDER, fit_proxy
    from fedstrata.flower.server_app import run_config
    from fedstrata.models import layout_of

    if (home / PROXY_FOLDER).is_dir():
        config = run_config(experiment, read_federation(home / FEDERATION_FILE), "")
        fit_proxy(home, layout_of(config.network()), config)


def federation_home(federation: Path | str) -> Path:
    """Return the whole path of the folder of a federation.

    Raises:
        InputError: When it is none, or Flower is not installed.
    """
    home = Path(federation).resolve()
    if not (home / FEDERATION_FILE).is_file():
        raise ExperimentError(f"--federation {str(federation)!r}: expected {FEDERATION_FILE} in it (deploy init)")
    from fedstrata.flower.payload import flower

    flower()
    return home


def _submit(home: Path, out: Path, config: dict[str, Any]) -> Path:
    """Hand a run to the SuperLink and show its log until it is over."""
    from fedstrata.flower.credentials import refuse_another_app

    refuse_another_app(home)
    finished = out / "summary.json"
    before = finished.stat().st_mtime_ns if finished.exists() else 0
    keys = home / "runs" / f"{out.resolve().name}.config.toml"
    keys.parent.mkdir(exist_ok=True)
    whole = {**config, "federation": str(home / FEDERATION_FILE), "out": str(out.resolve())}
    keys.write_text(tomli_w.dumps(whole), encoding="utf-8")
    command = ["flwr", "run", str(home / "app"), "here", "--stream", "--run-config", str(keys)]
    subprocess.run(command, env=flower_environment(home / "cli"), check=False)
    if not finished.exists() or finished.stat().st_mtime_ns == before:
        remedy = f"Go on by: {shlex.join(['fedstrata', 'deploy', 'resume', str(out), '--federation', str(home)])}"
        if not (out / "experiment.toml").exists():
            removal = f"remove {out} and " if out.exists() else ""
            remedy = f"No round has begun: {removal}give the same command again"
        raise EngineError(f"the run in {out} did not finish; its log says why. {remedy}", says_how=True)
    return out
