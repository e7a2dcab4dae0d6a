"""The tables of docs/deploy/flower.md about faults: of the network, of slow clients, and of long runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from statistics import mean, median
from typing import Any

from experiments.tools import outcomes
from experiments.tools.outcomes import MISSING, table

CASES = {
    "no_fault": "none",
    "latency": "200 ms more in each direction",
    "bandwidth": "20 KB/s and 50 ms in each direction of a connection",
    "resets": "every connection is reset within 256 KiB",
    "half_open": "one client: connections open and silent, in round 2",
    "stopped": "one client: its processes stopped (SIGSTOP), in round 2",
    "node_killed": "one client: SuperNode killed in round 2, started again",
    "server_killed": "SuperLink killed in round 2, started again, run resumed",
}
"""The title of each case of `network_faults.py`."""

RULES = {
    "everybody": "10 asked, wait for all",
    "deadline": "10 asked, deadline of 30 s",
    "over_selection": "13 asked, the first 10 end the round",
    "both": "13 asked, the first 10 or 30 s",
}
"""The title of each rule of `stragglers.py`."""

PARTS = {
    "loop": "simulation, `loop`",
    "processes": "simulation, `processes`",
    "deployed": "server and devices, messages as bytes",
}
"""The title of each part of `soak.py`."""


def _measured(name: str, part: str = "") -> list[dict[str, Any]]:
    """The results of an experiment, or of a part of it; none while it has not been run."""
    path = outcomes.RESULTS / f"{name}.json"
    found: Any = json.loads(path.read_text()) if path.exists() else []
    known: list[dict[str, Any]] = found[part] if part and part in found else found
    return known


def network() -> str:
    """What each fault of the network costs a run."""
    known = _measured("network_faults")
    rows = list[tuple[str, ...]]()
    for name, title in CASES.items():
        runs = [each for each in known if each["case"] == name]
        if not runs:
            rows.append((title, MISSING, "", "", "", ""))
            continue
        seconds = median(second for run in runs for second in run["seconds_per_round"])
        absent = [sum(map(bool, run["absent"].values())) for run in runs]
        recovered = [run["seconds_to_recover"] for run in runs if run.get("seconds_to_recover") is not None]
        rows.append(
            (
                title,
                str(len(runs)),
                f"{seconds:.0f}",
                _between({"least": min(absent), "most": max(absent)}),
                f"{median(recovered):.0f}" if recovered else "-",
                f"equal in {sum(run['same_bits'] for run in runs)}",
            )
        )
    head = "fault | runs | seconds per round, median | rounds without the client | seconds until it works again, median"
    return table(f"{head} | bits", rows)


def stragglers() -> str:
    """What deadlines and over-selection save and cost."""
    known = _measured("stragglers")
    rows = list[tuple[str, ...]]()
    for name, title in RULES.items():
        runs = [each for each in known if each["rule"] == name]
        if not runs:
            rows.append((title, MISSING, "", "", "", ""))
            continue
        p50, p99, updates, accuracy = (
            mean(run[key] for run in runs) for key in ("seconds_p50", "seconds_p99", "updates", "acc_client")
        )
        late = sum(run["late_taken"] for run in runs)
        rows.append((title, f"{p50:.1f}", f"{p99:.1f}", f"{updates:.1f}", f"{accuracy:.3f}", str(late)))
    head = "rule | seconds per round, median | 99th percentile | updates per round | accuracy"
    return table(f"{head} | late answers used", rows)


def soak() -> str:
    """How memory, files and threads grow over many rounds."""
    known = {each["part"]: each for each in _measured("soak")}
    rows = list[tuple[str, ...]]()
    for name, title in PARTS.items():
        if name not in known:
            rows.append((title, MISSING, "", "", "", ""))
            continue
        found = known[name]
        memory = found["mib"]
        counts = (_between(found[key]) for key in ("files", "threads"))
        rounds = f"{found['rounds'] - found['warm_up']}"
        rows.append((title, rounds, f"{memory['mean']:.0f}", f"{100 * memory['growth']:+.2f} %", *counts))
    return table("run | rounds fitted | memory in MiB, mean | growth in these rounds | open files | threads", rows)


def _between(found: Mapping[str, float]) -> str:
    """The smallest and the largest count."""
    least, most = int(found["least"]), int(found["most"])
    return str(least) if least == most else f"{least} to {most}"


FAULTS: Mapping[str, Callable[..., str]] = {
    "network": network,
    "stragglers": stragglers,
    "soak": soak,
}
"""The tables of docs/deploy/flower.md."""
