"""An experiment that goes on in the folder in which it was begun: which keys may have changed since."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from fedstrata.base.errors import ExperimentError, RecordError
from fedstrata.base.quoting import dotted, shown
from fedstrata.config.folders import experiment_file_of, folder_of
from fedstrata.config.reading import load_experiment
from fedstrata.config.tables import EngineTable, Experiment
from fedstrata.data.column_roles import TRIAL_COLUMN
from fedstrata.records.changed_keys import flatten_keys, may_differ, same_results


def begun_experiment(given: Experiment, folder: Path, *, find_data: bool = True) -> Experiment:
    """Return the experiment with which a run folder was begun, if it is the one that was given or has fewer rounds.

    Args:
        given: The experiment that was given.
        folder: The run folder.
        find_data: Whether data that cannot be found are an error, as in `load_experiment`.
    """
    # The data may have moved since; the experiment that is given says where they are.
    root = given.data.root
    sets = () if root is None else [f"data.root={json.dumps(str(root))}"]
    own = load_experiment(experiment_file_of(folder), sets, find_data=find_data)
    if given.rounds < own.rounds:
        raise ExperimentError(
            f"rounds = {given.rounds}: expected at least {own.rounds}, as in {str(folder / 'experiment.toml')!r}; "
            "a run can be extended, not shortened"
        )
    _refuse_changed_keys(given, own, folder)
    name = own.engine.name if given.engine.name == "auto" else given.engine.name
    workers = given.engine.workers or own.engine.workers
    engine = own.engine.model_copy(update={"name": name, "workers": workers, "timeout": given.engine.timeout})
    data = own.data.model_copy(update={"root": given.data.root or own.data.root, "memory": given.data.memory})
    free = {
        "label": given.label or own.label,
        "rounds": given.rounds,
        "records": given.records,
        "report": given.report,
    }
    return own.model_copy(update={**free, "data": data, "engine": engine})


def begun_experiments(wanted: Sequence[Experiment], folder: Path) -> tuple[Experiment, ...]:
    """Return the experiments of a comparison that goes on.

    A run that has begun keeps its recorded keys. One that has not has the engine of a begun run with the same network.
    """
    begun = {
        place: begun_experiment(experiment, folder_of(folder, experiment))
        for place, experiment in enumerate(wanted)
        if (folder_of(folder, experiment) / "experiment.toml").is_file()
    }
    if not begun:
        raise RecordError(
            f"{str(folder)!r}: expected a comparison, found none of its runs in it; start one without --resume"
        )
    engines: dict[str, EngineTable] = {}
    for each in begun.values():
        engines.setdefault(each.model.model_dump_json(), each.engine)
    return tuple(
        begun.get(place) or each.model_copy(update={"engine": engines.get(each.model.model_dump_json(), each.engine)})
        for place, each in enumerate(wanted)
    )


def _refuse_changed_keys(given: Experiment, own: Experiment, folder: Path) -> None:
    """Refuse an experiment with other keys than the run folder, where results depend on them."""
    known = flatten_keys(own.model_dump(exclude_none=True))
    wanted = flatten_keys(given.model_dump(exclude_none=True))
    place = repr(str(folder / "experiment.toml"))
    remedy = "resume with the same experiment, or start a run without --resume"
    for path, value in wanted.items():
        # A run writes down what "auto" turned out to be.
        left_open = (path[0] == "engine" and value == "auto") or may_differ(path) or path == ("rounds",)
        if not left_open and (path not in known or not same_results(path, known[path], value)):
            found = shown(known[path]) if path in known else "nothing"
            raise ExperimentError(f"{dotted(path)} = {shown(value)}: expected {found}, as in {place}; {remedy}")
    for path, value in known.items():
        # A run writes down the unit that recordings have of their own.
        own_unit = path == ("data", "unit") and value == TRIAL_COLUMN
        if path not in wanted and not own_unit and not may_differ(path):
            raise ExperimentError(f"{dotted(path)}: expected {shown(value)}, as in {place}, found nothing; {remedy}")
