"""Figures and sentences as people read them."""

from collections.abc import Iterable
from math import isfinite
from typing import Any

from fedstrata.report.records import Records

DASH = "\N{EN DASH}"


def number(value: Any, digits: int = 3) -> str:
    """A figure to so many decimals, integers as they are, a dash for what is not known."""
    if isinstance(value, str):
        return value
    if value is None or not isfinite(value):
        return DASH
    return f"{value:,}" if isinstance(value, int) else f"{value:.{digits}f}"


def brief(value: Any) -> str:
    """A figure of unknown size to four significant digits."""
    if isinstance(value, float) and isfinite(value):
        return f"{value:.4g}"
    return number(value)


def size(count: float) -> str:
    """Bytes in decimal units."""
    if count < 1000:
        return f"{count:.0f} B"
    for unit in ("kB", "MB", "GB"):
        count /= 1000
        if count < 1000:
            return f"{count:.3g} {unit}"
    return f"{count / 1000:,.3g} TB"


def duration(seconds: float | None) -> str:
    """Seconds, or minutes and hours where there are many."""
    if seconds is None:
        return DASH
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min {rest} s"


def plural(count: int, noun: str) -> str:
    """One group, two groups."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def ranges(ids: Iterable[int]) -> str:
    """Ids with runs drawn together: 0-4, 7."""
    runs: list[list[int]] = []
    for each in sorted(ids):
        if runs and each == runs[-1][-1] + 1:
            runs[-1].append(each)
        else:
            runs.append([each])
    return ", ".join(f"{run[0]}{DASH}{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)


def sentence(records: Records) -> str:
    """What came of the run, in one sentence."""
    last = records.last
    if last is None:
        return "No round is recorded yet."
    clients, clusters = plural(len(last.labels), "client"), last.clusters
    if records.summary is None:
        planned = records.settings.get("rounds")
        so_far = f"After {last.round} of {planned} rounds" if planned else f"After {plural(last.round, 'round')}"
        groups = f"{so_far}, {clients} are in {plural(clusters, 'group')}"
    else:
        groups = f"{clients} {'stayed in one group' if clusters == 1 else f'fell into {clusters} groups'}"
        since = records.summary.get("rounds_to_partition")
        if since is not None and clusters > 1:
            groups += f" by round {since}"
    if last.pending:
        groups += f" ({len(last.pending)} still waiting to be placed)"
    parts = [groups]
    mean, worst, ari = (records.final(name) for name in ("acc_client", "acc_worst", "ari"))
    if mean is not None:
        parts.append(f"mean accuracy {mean:.2f}" + (f", worst client {worst:.2f}" if worst is not None else ""))
    if ari is not None:
        parts.append(f"agreement with the hidden truth (ARI) {ari:.2f}")
    return "; ".join(parts) + "."


def assumption(records: Records) -> str:
    """What must be true of the samples for what was proven on folds of them; empty where nothing was."""
    chosen = records.settings.get("algorithm")
    keys = chosen if isinstance(chosen, dict) else {"name": chosen}
    alpha = keys.get("alpha", 0.05)
    if keys.get("name") == "strata" or keys.get("proof") == "twins":
        proven = f"Splits were proven on disjoint halves of every client's data (alpha = {alpha})"
    elif keys.get("layers") == "auto":
        proven = "The compared layer was found on disjoint halves of every client's data"
    else:
        return ""
    unit = records.setting("data", "unit")
    if unit:
        return f"{proven}. They were cut between values of {unit}: samples of different ones must be independent."
    return f"{proven}. They were cut between single samples, all of which must be independent of each other."
