"""fedstrata deploy: run an experiment on real devices."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedstrata.cli.terminal import ExperimentFile, NewFolder, PlainCommand, Sets, say

commands = typer.Typer(rich_markup_mode=None, help="Run the same experiment on real devices, with Flower.")

_FederationFolder = Annotated[Path, typer.Option(metavar="DIR", help="The folder that `deploy init` made.")]


@commands.command("init", cls=PlainCommand)
def deploy_init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder for the federation.")],
    experiment: ExperimentFile = None,
    sets: Sets = None,
    host: Annotated[str, typer.Option(help="Name or address at which nodes reach the server.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port of the server.")] = 8000,
) -> None:
    """Make a test federation: certificates, keys, a node for every client with its data, and what to do next."""
    from fedstrata.flower.deploy import init

    say(init(folder, experiment, sets or (), host, port))


@commands.command("run", cls=PlainCommand)
def deploy_run(
    experiment: Annotated[str, typer.Argument(metavar="EXPERIMENT.toml")],
    federation: _FederationFolder,
    out: NewFolder = None,
    sets: Sets = None,
    simulated: Annotated[
        bool, typer.Option("--simulated", help="In Flower's simulation on this machine: no node has to be up.")
    ] = False,
) -> None:
    """Run an experiment on a federation that is up, or in Flower's simulation of it."""
    if simulated:
        from fedstrata.flower.simulation import simulate_federation

        folder = simulate_federation(experiment, federation, out, sets or ())
    else:
        from fedstrata.flower.deploy import run_on_federation

        folder = run_on_federation(experiment, federation, out, sets or ())
    say(f"run folder: {folder}")


@commands.command("resume", cls=PlainCommand)
def deploy_resume(
    out: Annotated[Path, typer.Argument(metavar="DIR", help="The run folder.")],
    federation: _FederationFolder,
) -> None:
    """Go on with a run after its server was lost."""
    from fedstrata.flower.deploy import resume

    say(f"run folder: {resume(out, federation)}")
