"""The tables of docs/deploy/speed.md about GPUs: what the benchmark jobs would ask of one, and the least time."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

from experiments.tools import outcomes
from experiments.tools.outcomes import MISSING, table

Job = Mapping[str, Any]


def _jobs() -> list[Job]:
    """What `benchmarks/gpu_budget.py` wrote; none while it has not been run."""
    path = outcomes.RESULTS / "gpu_budget.json"
    return list(json.loads(path.read_text()).values()) if path.exists() else []


def counts() -> str:
    """What one round of each job asks of a GPU."""
    rows = list[tuple[str, ...]]()
    for job in _jobs():
        found = job["counts"]
        rows.append(
            (
                job["title"],
                f"{found['steps']}",
                f"{found['step_kernels']:.0f}",
                f"{found['step_starts']:.0f}",
                f"{found['starts']:,}",
                f"{found['waits']}",
                f"{found['bytes'] / 1e9:,.0f}",
                f"{found['flops'] / 1e12:.2f}",
                f"{found['to_device'] / 1e6:.1f}",
                f"{found['to_host'] / 1e6:,.1f}",
            )
        )
    head = (
        "job | steps | kernels of a step | starts of a step | starts of the round | waits | GB of kernels | TFLOP | "
        "MB to the GPU | MB from it"
    )
    return table(head, rows or [(MISSING,)])


def times() -> str:
    """The times that bound one round of each job, in milliseconds."""
    rows = list[tuple[str, ...]]()
    for job in _jobs():
        parts = (job["host without recordings"], job["host"], *job["bytes"].values(), *job["products"].values())
        least = [_range(job, precisions["float32"], 1000) for precisions in job["kernels"].values()]
        most = dict.fromkeys(_most(job, card) for card in job["bytes"])
        cells = (*(_number(1000 * each) for each in (*parts, job["bus"])), *least, ", ".join(most))
        rows.append((job["title"], *cells))
    head = (
        "job | starts without recordings | starts | bytes, H100 | bytes, H200 | products, float32 | products, TF32 | "
        "products, bfloat16 | bus | least time, H100 | least time, H200 | most of it"
    )
    return table(head, rows or [(MISSING,)])


def measured() -> str:
    """What each job took on a card, and beside its rival."""
    rows = list[tuple[str, ...]]()
    for card, known in _cards().items():
        for job in known.values():
            if not isinstance(job, Mapping) or "device" not in job:
                continue
            precisions = job.get("precisions", {})
            others = [_milliseconds(precisions.get(precision, {}).get("device")) for precision in ("tf32", "bfloat16")]
            seconds = (
                _milliseconds(job["device"]),
                _milliseconds(job["kernels"]),
                *others,
                _milliseconds(job["server"]),
            )
            counts = (job["revision"], f"{job['rounds']:,}")
            rows.append((card, job["title"], *counts, *seconds, _number(job["all rounds"]), _beside(job)))
    head = (
        "card | job | program | rounds | GPU, float32 (ms) | its kernels (ms) | TF32 (ms) | bfloat16 (ms) | "
        "server (ms) | all rounds (s) | rival's time / this"
    )
    return table(head, rows or [(MISSING,)])


def limits() -> str:
    """What the cards reached in copies and products."""
    rows = [
        (card, *(_number(known["limits"][name] / 1e12) for name in ("bytes", "float32", "TF32", "bfloat16")))
        for card, known in _cards().items()
    ]
    head = "card | copy (TB/s, read and written) | float32 (TFLOP/s) | TF32 (TFLOP/s) | bfloat16 (TFLOP/s)"
    return table(head, rows or [(MISSING,)])


def _cards() -> Mapping[str, Mapping[str, Any]]:
    """What `benchmarks/gpu.py` wrote, by the name of the card; nothing while it has not been run."""
    path = outcomes.RESULTS / "gpu.json"
    return dict(json.loads(path.read_text())) if path.exists() else {}


def _milliseconds(seconds: float | None) -> str:
    return "" if seconds is None else _number(1000 * seconds)


def _beside(job: Job) -> str:
    """How many times as long the rival of a job took, with the smallest and the largest pair; nothing without one."""
    pairs = job.get("rival / this", [])
    return f"{_number(median(pairs))} ({_number(min(pairs))} to {_number(max(pairs))})" if pairs else ""


def whole() -> str:
    """The least seconds of all rounds of each job."""
    rows = list[tuple[str, ...]]()
    for job in _jobs():
        found = [
            _range(job, precisions[name], job["rounds"])
            for name in ("float32", "TF32")
            for precisions in job["kernels"].values()
        ]
        rows.append((job["title"], f"{job['rounds']:,}", *found))
    head = "job | rounds | H100 | H200 | H100 with TF32 | H200 with TF32"
    return table(head, rows or [(MISSING,)])


def _range(job: Job, kernels: Sequence[float], times: int) -> str:
    """The least time of a round, so many times, with all and with nothing found in the cache."""
    return " to ".join(_number(times * max(job["host"], seconds + job["bus"])) for seconds in kernels)


def _most(job: Job, card: str) -> str:
    """What takes most of the least time of a round, in float32."""
    shares = {
        "starts": job["host"],
        "bytes": job["bytes"][card],
        "products": job["products"]["float32"],
        "bus": job["bus"],
    }
    return max(shares, key=lambda name: shares[name])


def _number(value: float) -> str:
    return f"{value:.2g}" if value < 10 else f"{value:.0f}"


_PARTS: Mapping[str, Callable[[], str]] = {
    "counts": counts,
    "times": times,
    "whole": whole,
    "measured": measured,
    "limits": limits,
}


def gpu(part: str) -> str:
    """One of the tables."""
    return _PARTS[part]()
