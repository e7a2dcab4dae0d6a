"""What the page says at its top: title, sentence, facts and tiles."""

from collections.abc import Mapping
from typing import Any

from fedstrata.report.groups import Groups
from fedstrata.report.records import Records
from fedstrata.report.words import duration, number, plural, size


def title(records: Records) -> str:
    """The algorithm and the data set, as far as they are known."""
    names = (_name(records, "algorithm", "name"), _name(records, "dataset", "name"))
    return " on ".join(filter(None, names)) or "run"


def _name(records: Records, name: str, key: str) -> str:
    """A name of the summary, else of the experiment, where the data set's table is called data."""
    found = (records.summary or {}).get(name)
    return str(found or records.setting("data" if name == "dataset" else name, key))


def described(records: Records) -> list[tuple[str, str]]:
    """The experiment in a few names."""
    shown = [("partition", _name(records, "partition", "scheme")), ("model", _name(records, "model", "name"))]
    seed = records.settings.get("seed")
    planned = records.settings.get("rounds")
    done = f"{len(records.rounds)} of {planned}" if planned else f"{len(records.rounds)}"
    shown += [("seed", "" if seed is None else str(seed)), ("rounds", done)]
    return [(name, value) for name, value in shown if value]


def sentence(groups: Groups) -> str:
    """What came of the run, in one sentence."""
    records = groups.records
    last = records.last
    if last is None:
        return "No round is recorded yet."
    parts = [_people(groups)]
    mean, worst, ari = (records.final(name) for name in ("acc_client", "acc_worst", "ari"))
    if mean is not None:
        beside = "" if records.one_model is None else f" against {records.one_model:.2f} for one model"
        parts.append(f"accuracy {mean:.2f}{beside}" + (f", worst client {worst:.2f}" if worst is not None else ""))
    if ari is not None and groups.sought:
        parts.append(f"agreement with the hidden truth (ARI) {ari:.2f}")
    return "; ".join(parts) + "."


def _people(groups: Groups) -> str:
    """How many clients there were, and what became of them."""
    records = groups.records
    last = records.last
    assert last is not None
    here = sum(label >= 0 for label in last.labels)
    clients, clusters = plural(here, "client"), last.clusters
    planned = records.settings.get("rounds")
    so_far = f"After {last.round} of {planned} rounds" if planned else f"After {plural(last.round, 'round')}"
    if not groups.sought:
        return clients if records.summary is not None else f"{so_far}, {clients}"
    if records.summary is None:
        told = f"{so_far}, {clients} {'is' if here == 1 else 'are'} in {plural(clusters, 'group')}"
    else:
        told = f"{clients} {'stayed in one group' if clusters == 1 else f'fell into {clusters} groups'}"
        since = records.summary.get("rounds_to_partition")
        if since is not None and clusters > 1:
            told += f" by round {since}"
    return told + (f" ({len(last.pending)} still waiting to be placed)" if last.pending else "")


def tiles(groups: Groups) -> list[tuple[str, str, str]]:
    """What is shown large: name, figure, and what it means."""
    records = groups.records
    summary = records.summary or {}
    down, up, data = (
        summary.get(name, sum(getattr(each, name) for each in records.rounds))
        for name in ("bytes_down", "bytes_up", "bytes_data")
    )
    traffic = f"{size(down)} down, {size(up)} up; tensors only"
    if data:
        traffic = f"{size(data)} of data, sent once; {size(down + up)} of tensors"
    spent = sum(each.seconds or 0.0 for each in records.rounds)
    every = [
        ("Mean accuracy", number(records.final("acc_client")), "over clients, each on its own test data"),
        ("Worst client", number(records.final("acc_worst")), "the least accuracy"),
        ("By samples", number(records.final("acc_weighted")), "mean accuracy weighted by test samples"),
    ]
    every += [
        (name.capitalize(), number(value), f"mean accuracy with the {name} model")
        for name, value in (records.last.others.items() if records.last else ())
    ]
    if records.one_model is not None:
        every.append(("One model", number(records.one_model), "mean accuracy of FedAvg in the run beside this one"))
    if groups.sought:
        every += [
            ("By cluster", number(records.final("acc_cluster")), "mean accuracy of the clusters"),
            ("ARI", number(records.final("ari")), "agreement with the hidden truth; 1 is the same partition"),
            ("Purity", number(summary.get("purity")), "share of clients in their cluster's majority"),
        ]
    every += [
        ("Traffic", size(down + up + data), traffic),
        ("Time", duration(summary.get("seconds", spent)), _time(summary)),
    ]
    return [tile for tile in every if tile[1] != number(None)]


def _time(summary: Mapping[str, Any]) -> str:
    parts = [(summary.get("seconds_training"), "training"), (summary.get("seconds_server"), "on the server")]
    return ", ".join(f"{duration(value)} {what}" for value, what in parts if value is not None)


def assumption(records: Records) -> str:
    """What must be true of the samples for what was proven on folds of them; empty where nothing was."""
    chosen = records.settings.get("algorithm")
    keys = chosen if isinstance(chosen, dict) else {"name": chosen}
    alpha = keys.get("alpha", 0.05)
    if keys.get("name") == "strata" or keys.get("split_guard") == "split_half":
        proven = f"Splits were proven on disjoint halves of every client's data (alpha = {alpha})"
    elif keys.get("layers") == "auto":
        proven = "The compared layer was found on disjoint halves of every client's data"
    else:
        return ""
    unit = records.setting("data", "unit")
    if unit:
        return f"{proven}. They were cut between values of {unit}: samples of different ones must be independent."
    return f"{proven}. They were cut between single samples, all of which must be independent of each other."
