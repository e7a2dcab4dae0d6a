"""A sweep: one experiment with several settings, of which the best is chosen on validation data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import mean

from fedstrata.base.files import folder_lock, root_folder
from fedstrata.comparison.document import Comparison, write_comparison
from fedstrata.comparison.run import compare_experiments
from fedstrata.config.grid import SweepPlan
from fedstrata.objective.metric_info import MetricInfo
from fedstrata.play.progress import StatusLine
from fedstrata.records.measures import diverged_at_end
from fedstrata.records.schema import VALIDATION_MEASURE
from fedstrata.report.comparison.folder import Outcome, SweepChoice


def sweep_experiments(plan: SweepPlan, *, resume: bool = False, quiet: bool = False) -> Comparison:
    """Run all settings of a sweep, choose one, and write the page.

    Args:
        plan: What is run.
        resume: Whether to go on from the checkpoints in the folder.
        quiet: Whether to show no progress.

    Raises:
        InputError: When something that the experiments name does not fit; nothing is made then.
        Stopped: After Ctrl-C, when the round is over.
    """
    if not any(experiment.data.validation for experiment in plan.experiments):
        with StatusLine(quiet) as line:
            line.keep(
                "WARNING: data.validation = 0: no setting will be chosen, as nothing may be chosen by test data; set "
                "data.validation, such as to 0.2"
            )
    compared = compare_experiments(plan.experiments, plan.folder, resume=resume, quiet=quiet)
    found = choose_setting(compared.runs, compared.metric, list(plan.settings))
    choice = replace(found, grid=plan.grid, settings=plan.settings)
    with folder_lock(root_folder(plan.folder)):
        document = compared.document.model_copy(update={"sweep": choice})
        return write_comparison(replace(compared, document=document))


def choose_setting(outcomes: Sequence[Outcome], metric: MetricInfo, labels: list[str]) -> SweepChoice:
    """Choose the setting with the best mean on validation data; the first of several that are equal.

    A setting of which a run failed, or had diverged when it ended, is not chosen.
    """
    found = dict[str, float]()
    for label in labels:
        runs = [run for run in outcomes if run.algorithm == label]
        values = [None if run.summary is None else run.summary.get(VALIDATION_MEASURE) for run in runs]
        known = [float(value) for value in values if value is not None]
        diverged = any(run.summary is not None and diverged_at_end(run.summary) for run in runs)
        if runs and len(known) == len(runs) and not diverged:
            found[label] = mean(known)
    if not found:
        why = (
            f"No setting is chosen: none has the {metric.name} on validation data from all of its runs. Look at "
            "data.validation (such as 0.2), local.metric, and runs that failed or diverged in their last round. The "
            "table has test data, by which nothing may be chosen."
        )
        return SweepChoice(None, None, why)
    best = max(found, key=lambda label: metric.quality(found[label]))
    why = f"Its {metric.name} on validation data, which no client trains on, is the {metric.best}."
    return SweepChoice(best, found[best], why)
