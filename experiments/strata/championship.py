"""Run all methods on all federations of the tables of Strata, and keep what each client got.

    FEDSTRATA_DATA=DATA python -m experiments.strata.championship --seeds 0,1,2,3,4 --jobs 2
    FEDSTRATA_DATA=DATA python -m experiments.strata.championship --federations mnist_rotation,usc_had --seeds 0

Adds to ``experiments/results/championship/<federation>.json``. A method and seed that are there with the same keys are
left out, so a run can be stopped and called again. All methods of a federation and seed run together and share the
local work that is equal; what comes out is the same as alone, but for the seconds. The first seed of all federations
comes before the second one. A method that refuses a federation is kept with the reason.

Of every run the file has the accuracy of each client, which of its test samples are right, and the computing of a
client: epochs of training on its own data, and passes over them by which it compares models. For Strata with personal
models it also has which samples are right with the models of its clusters.
"""

from __future__ import annotations

import argparse
import json
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.strata.study import keep
from fedstrata.base.errors import InputError
from fedstrata.build.build import build_run, on_same_clients
from fedstrata.build.run_setup import RunSetup
from fedstrata.comparison.run import Lockstep
from fedstrata.config import Experiment, load_experiment
from fedstrata.core import Plan, Report
from fedstrata.engine.device import one_thread
from fedstrata.engine.shared_work import LocalStores
from fedstrata.play.steps import RunSteps, run_steps
from fedstrata.play.used_models import ModelInUse, predict_test_samples
from fedstrata.records.arrays import last_predictions
from fedstrata.records.folder import Folder
from fedstrata.records.schema import Predictions
from fedstrata.results.run import Run, load

BASE = Path(__file__).parent / "championship.toml"
RESULTS = Path(__file__).parents[1] / "results" / "championship"

UNKNOWN_GROUPS = 4
"""The number of models of IFCA, FeSEM and CLoVE where nobody knows a true number of groups."""

SCHEMES: dict[str, dict[str, Any]] = {
    "rotation": {"scheme": "rotation", "groups": 4},
    "dirichlet_30": {"scheme": "dirichlet", "alpha": 0.3},
    "majority_80": {"scheme": "majority", "groups": 4, "share": 0.8},
    "concept": {"scheme": "concept", "groups": 4},
    "sizes": {"scheme": "rotation", "sizes": [12, 5, 3]},
    "iid": {"scheme": "iid"},
    "dirichlet_10": {"scheme": "dirichlet", "alpha": 0.1},
    "majority_50": {"scheme": "majority", "groups": 4, "share": 0.5},
    "dirichlet_50": {"scheme": "dirichlet", "alpha": 0.5},
    "majority_33": {"scheme": "majority", "groups": 4, "share": 0.33},
}
"""The partitions of each set of images, in the order in which they run."""

PEOPLE: dict[str, Any] = {
    "rounds": 15,
    "data": {"name": "usc_had", "clients": 14, "samples": 0, "public": 0},
    "partition": {"scheme": "natural", "column": "subject"},
    "model": {"name": "mlp", "hidden": [64]},
    "local": {"epochs": 1, "batch": 50, "lr": 0.05},
}
"""Recordings of 14 people, as in compare_usc_had.toml; there are no others for the server of FedTSDP."""


def _images(*names: str) -> dict[str, dict[str, Any]]:
    """The federations of some sets of images, all sets with one partition before the next partition."""
    return {
        f"{name}_{scheme}": {"data": {"name": name}, "partition": partition}
        for scheme, partition in SCHEMES.items()
        for name in names
    }


def _of_size(clients: int, groups: int) -> dict[str, dict[str, Any]]:
    """Federations of another number of clients."""
    data = {"name": "mnist", "clients": clients}
    rotation = {"scheme": "rotation", "groups": min(groups, 4)}
    majority = {"scheme": "majority", "groups": groups, "share": 0.8}
    return {
        f"mnist_rotation_of_{clients}": {"data": data, "partition": rotation},
        f"mnist_majority_80_of_{clients}": {"data": data, "partition": majority},
        f"mnist_dirichlet_30_of_{clients}": {"data": data, "partition": SCHEMES["dirichlet_30"]},
    }


GROUPS_OF_MIXES: dict[str, Any] = {
    "data": {"name": "mnist"},
    "partition": {"scheme": "rotation", "groups": 2, "inside": {"scheme": "dirichlet", "alpha": 0.5}},
}
"""Two rotations, in which every client has its own mix of classes."""

FEDERATIONS: dict[str, dict[str, Any]] = {
    **_images("mnist", "fashion_mnist"),
    "usc_had": PEOPLE,
    "mnist_rotation_and_dirichlet_50": GROUPS_OF_MIXES,
    **_images("cifar10", "emnist_letters"),
    **_of_size(8, groups=2),
    **_of_size(100, groups=10),
}
"""What each federation changes in championship.toml, in the order in which they run."""

_FEDAVG = {"name": "fedavg"}
_STRATA = {"name": "strata"}
_ORACLE = {"name": "oracle"}
_BEST = {"method": "best"}

METHODS: dict[str, dict[str, Any]] = {
    "local": {"algorithm": {"name": "local"}},
    "fedavg": {"algorithm": _FEDAVG},
    "fedavg_best": {"algorithm": _FEDAVG, "personal": _BEST},
    **{
        f"finetune_{epochs}": {"algorithm": _FEDAVG, "personal": {"method": "finetune", "epochs": epochs}}
        for epochs in (1, 3, 10)
    },
    "ditto_001": {"algorithm": {"name": "ditto", "lam": 0.01}},
    "ditto_01": {"algorithm": {"name": "ditto", "lam": 0.1}},
    "ditto_1": {"algorithm": {"name": "ditto", "lam": 1.0}},
    "fedper": {"algorithm": {"name": "fedper"}},
    "fedrep": {"algorithm": {"name": "fedrep"}},
    "lg_fedavg": {"algorithm": {"name": "lg_fedavg"}},
    # The models are drawn anew until each is chosen.
    "ifca": {"algorithm": {"name": "ifca", "init": "restart"}},
    "fesem": {"algorithm": {"name": "fesem"}},
    "clove": {"algorithm": {"name": "clove"}},
    "cfl": {"algorithm": {"name": "cfl"}},
    "layercfl": {"algorithm": {"name": "layercfl"}},
    "hicfl": {"algorithm": {"name": "hicfl"}},
    "hicfl_mean": {"algorithm": {"name": "experiments.papers.variants:MeanOfMembers"}},
    "adacfl": {"algorithm": {"name": "adacfl"}},
    "fedtsdp": {"algorithm": {"name": "fedtsdp"}},
    "fedclust": {"algorithm": {"name": "fedclust"}},
    "pacfl": {"algorithm": {"name": "pacfl"}},
    "oracle": {"algorithm": _ORACLE},
    "oracle_best": {"algorithm": _ORACLE, "personal": _BEST},
    "strata": {"algorithm": _STRATA},
    "strata_best": {"algorithm": _STRATA, "personal": _BEST},
}
"""The tables of each method. `method_keys` adds what its paper makes depend on the federation."""

SHARED_MODEL: dict[str, str] = {
    **{method: "fedavg" for method in METHODS if method.startswith(("finetune", "ditto", "fedavg_"))},
    "oracle_best": "oracle",
}
"""The method whose models are those of the clusters before clients make theirs personal. Strata is not here: in a run
with personal models it splits otherwise, so the results of such a run have which samples its clusters' models get
right."""

ENGINE: dict[str, Any] = {"name": "loop"}
"""The engine whose results are the same in every bit, whatever runs beside it."""

LAYERS: dict[str, str] = {
    "rotation": "conv",
    "majority": "first_linear",
    "dirichlet": "first_linear",
    "concept": "first_linear",
    "natural": "all",
    "iid": "all",
}
"""The layers that LayerCFL compares, by scheme: its rule for feature skew, for label skew, and for neither."""


def main() -> None:
    """Run what is missing, and keep the results of a federation and seed as soon as they are there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--federations", default=",".join(FEDERATIONS), help="comma-separated; all by default")
    parser.add_argument("--methods", default=",".join(METHODS), help="comma-separated; all by default")
    parser.add_argument("--seeds", default="0,1,2,3,4")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--set", action="append", default=[], help="KEY=VALUE for all runs; needs another --out")
    parser.add_argument("--out", type=Path, default=RESULTS, help="the folder of the results")
    given = parser.parse_args()
    if given.set and given.out == RESULTS:
        parser.error("--set: expected another --out as well; the results here are those of championship.toml")
    seeds = [int(seed) for seed in given.seeds.split(",")]
    federations = _known("--federations", given.federations, FEDERATIONS, parser.error)
    methods = _known("--methods", given.methods, METHODS, parser.error)
    matches = [(federation, seed) for seed in seeds for federation in federations]
    sys.exit(not run_matches(matches, methods, given.set, given.out, given.jobs))


def _known(option: str, text: str, known: Mapping[str, Any], error: Callable[[str], Any]) -> list[str]:
    """The names of an option, each of which must be known."""
    names = list[str](text.split(","))
    for name in names:
        if name not in known:
            error(f"{option}: expected some of {', '.join(known)}, found {name!r}")
    return names


def run_matches(
    matches: Sequence[tuple[str, int]], methods: Sequence[str], sets: Sequence[str], out: Path, jobs: int
) -> bool:
    """Run the methods that are missing on federations with seeds, and keep what came out.

    Args:
        matches: The federation and the seed of each.
        methods: The methods.
        sets: Changes of all experiments, ``KEY=VALUE``.
        out: The folder of the results.
        jobs: The number of processes.

    Returns:
        Whether none failed. A refusal is no failure.
    """
    succeeded = True
    with ProcessPoolExecutor(jobs) as pool:
        running = {}
        for federation, seed in matches:
            wanted = missing(out / f"{federation}.json", federation, seed, methods, sets)
            if wanted:
                running[pool.submit(results_of_match, federation, seed, wanted, sets)] = f"{federation}, seed {seed}"
        for count, job in enumerate(as_completed(running), start=1):
            what = f"{count} of {len(running)}: {running[job]}"
            if error := job.exception():
                succeeded = False
                print(f"{what}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
                continue
            match = job.result()
            for result in match.results:
                keep(out / f"{match.federation}.json", result)
            for method, failure in match.failures.items():
                succeeded = False
                print(f"{what}, {method}: {failure}", file=sys.stderr, flush=True)
            refused = ", ".join(result["variant"] for result in match.results if "refused" in result)
            told = f", refused by {refused}" if refused else ""
            print(f"{what}: {len(match.results)} methods in {match.seconds:.0f} s{told}", flush=True)
    return succeeded


def missing(path: Path, federation: str, seed: int, methods: Sequence[str], sets: Sequence[str]) -> list[str]:
    """The methods that a file of results does not hold for a seed, with the same keys."""
    known = json.loads(path.read_text()) if path.exists() else []
    held = {(run["variant"], run["digest"]) for run in known if run["seed"] == seed}
    return [method for method in methods if (method, digest(federation, method, seed, sets)) not in held]


def experiment_keys(federation: str, method: str, seed: int) -> dict[str, Any]:
    """The keys of the experiment of a method on a federation."""
    base = tomllib.loads(BASE.read_text())
    changes = FEDERATIONS[federation]
    data = {**base["data"], **changes["data"]}
    return {**base, **changes, "data": data, **method_keys(federation, method), "seed": seed, "engine": ENGINE}


def method_keys(federation: str, method: str) -> dict[str, Any]:
    """The tables of a method, with the keys that its paper makes depend on the federation."""
    tables = METHODS[method]
    algorithm = dict(tables["algorithm"])
    partition = FEDERATIONS[federation]["partition"]
    if algorithm["name"] in ("ifca", "fesem", "clove"):
        algorithm["k"] = true_groups(partition) or UNKNOWN_GROUPS
    if algorithm["name"] == "layercfl":
        algorithm["layers"] = LAYERS[partition["scheme"]]
    return {**tables, "algorithm": algorithm}


def true_groups(partition: Mapping[str, Any]) -> int | None:
    """The true number of groups of a partition; None where there are none."""
    if partition["scheme"] == "iid":
        return 1
    groups: int | None = partition.get("groups")
    return len(partition["sizes"]) if "sizes" in partition else groups


def digest(federation: str, method: str, seed: int, sets: Sequence[str]) -> str:
    """A short text that is another one for other keys."""
    keys = json.dumps([experiment_keys(federation, method, seed), list(sets)], sort_keys=True)
    return blake2b(keys.encode(), digest_size=6).hexdigest()


@dataclass(frozen=True)
class Match:
    """What several methods came to on one federation with one seed.

    Attributes:
        federation: The name of the federation.
        results: What is kept of each method that ran or refused.
        failures: Why others failed.
        seconds: How long all of them took.
    """

    federation: str
    results: list[dict[str, Any]]
    failures: dict[str, str]
    seconds: float


@dataclass
class Work:
    """The computing of a run.

    Attributes:
        trained: The training samples of all steps of all clients.
        compared: The training samples of all passes by which clients compared models.
    """

    trained: int = 0
    compared: int = 0

    def add(self, plan: Plan, report: Report) -> None:
        """Add what clients did for a plan."""
        for name, result in report.results.items():
            task = plan.tasks[name]
            sizes = result.sizes.tolist()
            if any(task.trainable):
                self.trained += sum(map(task.training.samples_seen, sizes))
            # A client with one candidate has nothing to compare.
            models = (~result.losses.isnan()).sum(dim=1).tolist()
            self.compared += sum(size * count for size, count in zip(sizes, models, strict=True) if count > 1)


def results_of_match(federation: str, seed: int, methods: Sequence[str], sets: Sequence[str] = ()) -> Match:
    """Run methods round by round on one federation, and do equal local work once.

    Args:
        federation: The name of the federation.
        seed: The seed of all of them.
        methods: The names of the methods.
        sets: Changes of all experiments, ``KEY=VALUE``.
    """
    began = perf_counter()
    experiments = {method: load_experiment(experiment_keys(federation, method, seed), sets) for method in methods}
    with TemporaryDirectory() as folder, one_thread():
        # The data are those of every method, and FedAvg refuses none.
        setup = build_run(load_experiment(experiment_keys(federation, "fedavg", seed), sets))
        setups, refused = _setups(setup, experiments)
        folders = {method: Path(folder) / method for method in setups}
        work = {method: Work() for method in setups}
        devices = {method: LocalStores(setup.clients) for method in setups}
        runs = dict[str, RunSteps]()
        for method, own in setups.items():
            own = replace(own, clients=devices[method])
            runs[method] = measured(run_steps(experiments[method], own, folders[method]), work[method])
        lockstep = Lockstep(runs, devices)
        while lockstep.round is not None:
            lockstep.step()
        failures = {method: failure.error for method, failure in lockstep.failures.items()}
        samples = sum(len(setup.client_data.train(client)) for client in range(len(setup.client_data)))
        found = {
            method: {"refused": refused[method]}
            if method in refused
            else _result(folders[method], work[method], samples)
            | (_right_with_cluster_models(setups[method], folders[method]) if _splits_otherwise(method) else {})
            for method in methods
            if method not in failures
        }
    results = [
        {"variant": method, "seed": seed, "digest": digest(federation, method, seed, sets), **result}
        for method, result in found.items()
    ]
    return Match(federation, results, failures, perf_counter() - began)


def _setups(setup: RunSetup, experiments: Mapping[str, Experiment]) -> tuple[dict[str, RunSetup], dict[str, str]]:
    """What each method needs to run on the clients of a setup; and why others refuse the federation."""
    setups = dict[str, RunSetup]()
    refused = dict[str, str]()
    for method, experiment in experiments.items():
        try:
            own = on_same_clients(setup, experiment)
            own.server.algorithm.init(own.server.problem)
        except InputError as error:
            refused[method] = str(error)
            continue
        setups[method] = own
    return setups, refused


def measured(steps: RunSteps, work: Work) -> RunSteps:
    """A run whose work is measured."""
    try:
        plan = next(steps)
        while True:
            reply = yield plan
            work.add(plan, reply.report)
            plan = steps.send(reply)
    except StopIteration as end:
        run: Run = end.value
        return run


def _result(folder: Path, work: Work, samples: int) -> dict[str, Any]:
    """What is kept of a finished run.

    Args:
        folder: Its folder.
        work: What its clients computed.
        samples: The number of training samples of all clients.
    """
    summary = Folder(folder).summary()
    # The rounds do not count the stage after them.
    after = summary.get("personal", {}).get("seconds", 0.0)
    return {
        **{key: _short(summary[key]) for key in ("acc_client", "acc_worst", "clusters", "ari")},
        "epochs": _short(work.trained / samples),
        "passes": _short(work.compared / samples),
        "seconds": _short(summary["seconds"] + after),
        "right": _packed_rows(last_predictions(folder)),
    }


def _splits_otherwise(method: str) -> bool:
    """Whether no other method has the models that the clusters of a method have before clients make theirs personal."""
    return "personal" in METHODS[method] and method not in SHARED_MODEL


def _right_with_cluster_models(setup: RunSetup, folder: Path) -> dict[str, Any]:
    """Which test samples of each client are right with the model of its cluster, after a run with personal models."""
    state = load(folder).state
    clients = setup.server.participation.active(state.round)
    labels = state.labels[clients].tolist()
    used = [ModelInUse(client, label, {}) for client, label in zip(clients.tolist(), labels, strict=True)]
    predicted = predict_test_samples(setup, state, used)
    assert predicted is not None, "the federations have test samples"
    return {"right_cluster": _packed_rows(predicted[0].by_client())}


def _packed_rows(predictions: Mapping[int, Predictions]) -> dict[str, str]:
    """Which samples of each client are right, by its id."""
    return {str(client): packed(found.right) for client, found in sorted(predictions.items())}


def packed(right: NDArray[np.bool_]) -> str:
    """Which samples are right, as their number and the hexadecimal digits of their bits: ``"5:b8"``."""
    return f"{len(right)}:{np.packbits(right).tobytes().hex()}"


def unpacked(text: str) -> NDArray[np.bool_]:
    """Which samples are right, (s,), from what `packed` made."""
    samples, _, digits = text.partition(":")
    bits = np.frombuffer(bytes.fromhex(digits), dtype=np.uint8)
    return np.unpackbits(bits, count=int(samples)).astype(np.bool_)


def _short(value: Any) -> Any:
    return float(f"{value:.6g}") if isinstance(value, float) else value


if __name__ == "__main__":
    main()
