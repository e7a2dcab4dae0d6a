"""The heart disease data of four hospitals: FLamby's Fed-Heart-Disease, then what clustered methods add to it.

    FEDSTRATA_DATA=DATA python -m experiments.heart
    FEDSTRATA_DATA=DATA python -m experiments.heart --studies published --methods fedavg,strata --seeds 42,43

Adds to ``experiments/results/heart.json`` the runs that it does not hold yet, so it can be stopped and called again.
Of each run it keeps the probability of disease of every test patient. ``heart_tables.py`` makes all figures of them.

The protocol is that of FLamby (du Terrail et al., "FLamby: datasets and benchmarks for cross-silo federated learning in
realistic healthcare settings", NeurIPS Datasets and Benchmarks 2022): its split, standardisation, network, batches,
steps, rounds, learning rates and initial weights. Two things differ. The batches have other random numbers. And FLamby
goes on with the batches of the last round, while here each round begins with newly shuffled rows. ``heart_twin.py`` has
FLamby's own batches.
"""

from __future__ import annotations

import argparse
import json
import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.compose import ColumnTransformer
from sklearn.dummy import DummyClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from torch import nn

import fedstrata as fs

BASE = Path(__file__).with_suffix(".toml")
RESULTS = Path(__file__).parent / "results" / "heart.json"
FOLDER = "heart_disease"

HOSPITALS = {"Cleveland": "cleveland", "Hungary": "hungarian", "Switzerland": "switzerland", "VA": "va"}
"""The hospitals, and how their files are called."""

COLUMNS = (
    "age",
    "sex",
    "cp",
    "trestbps",
    "chol",
    "fbs",
    "restecg",
    "thalach",
    "exang",
    "oldpeak",
    "slope",
    "ca",
    "thal",
)
"""The features of a file, in their order. Behind them is the target: 0 is no disease."""

DROPPED = ("slope", "ca", "thal")
"""What FLamby leaves out, as most hospitals seldom have it."""

CODES = ("cp", "restecg")
"""The columns that FLamby takes as codes of categories."""

FLOAT = NDArray[np.float64]


class Logistic(nn.Module):
    """One linear unit, whose output is the logit of disease.

    It is FLamby's network. The logit of no disease is 0, so that cross-entropy is the binary cross-entropy of FLamby,
    and that methods which compare class probabilities can use it.

    Args:
        features: The number of features.
        seed: The seed of the initial weights. With thirteen features they are those of FLamby.
    """

    def __init__(self, features: int, seed: int) -> None:
        """Draw the weights."""
        super().__init__()
        torch.manual_seed(seed)
        self.linear = nn.Linear(features, 1)

    def forward(self, samples: torch.Tensor) -> torch.Tensor:
        """Return the logits of both classes, (b, 2)."""
        logit = self.linear(samples)
        return torch.cat([torch.zeros_like(logit), logit], dim=1)


# The data.


@dataclass(frozen=True)
class Patients:
    """Patients of one hospital.

    Attributes:
        features: Their features, (patients, columns) float64; nan is a gap.
        disease: Whether they have the disease, (patients,) int64.
        trains: Whether they are training samples, (patients,) bool.
    """

    features: FLOAT
    disease: NDArray[np.int64]
    trains: NDArray[np.bool_]

    @property
    def train(self) -> FLOAT:
        """The features of the training samples."""
        return self.features[self.trains]

    def pair(self, features: FLOAT) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
        """Training and test data as fedstrata takes them, with prepared features of all patients."""
        inputs = features.astype(np.float32)
        tests = ~self.trains
        return (inputs[self.trains], self.disease[self.trains]), (inputs[tests], self.disease[tests])


def read(folder: Path) -> dict[str, Patients]:
    """All 920 patients by hospital, with gaps.

    Args:
        folder: The folder of the four files.
    """
    found = {}
    for hospital, name in HOSPITALS.items():
        # What is no number is a gap: "?" or nothing.
        table = np.genfromtxt(folder / f"processed.{name}.data", delimiter=",", skip_header=1)
        disease = (table[:, -1] > 0).astype(np.int64)
        found[hospital] = Patients(table[:, :-1], disease, training_rows(disease))
    return found


def training_rows(disease: NDArray[np.int64]) -> NDArray[np.bool_]:
    """FLamby's split: 66 % are training samples, the same for all seeds.

    It is stratified where each class has more than two patients.
    """
    stratified = all((disease == value).sum() > 2 for value in (0, 1))
    train, _ = train_test_split(
        np.arange(len(disease)),
        train_size=0.66,
        test_size=1 - 0.66,
        random_state=43,
        stratify=disease if stratified else None,
    )
    trains = np.zeros(len(disease), dtype=bool)
    trains[train] = True
    return trains


def complete(patients: Patients) -> Patients:
    """The patients without gaps in the columns that FLamby takes, split anew."""
    kept = [place for place, name in enumerate(COLUMNS) if name not in DROPPED]
    features = patients.features[:, kept]
    whole = ~np.isnan(features).any(axis=1)
    disease = patients.disease[whole]
    return Patients(features[whole], disease, training_rows(disease))


Clients = dict[str, Any]
"""The data of each hospital, as fedstrata takes them."""


def of_complete_rows(hospitals: Mapping[str, Patients], training: str, testing: str) -> Clients:
    """The 740 complete rows, prepared as FLamby does.

    Args:
        hospitals: All patients.
        training: By whose training rows training rows are standardised: the "hospital"'s own or the "pooled" ones.
        testing: The same of test rows.
    """
    whole = {hospital: complete(patients) for hospital, patients in hospitals.items()}
    encoded = dict(zip(whole, one_hot([patients.features for patients in whole.values()]), strict=True))
    trains = {hospital: rows[whole[hospital].trains] for hospital, rows in encoded.items()}
    pooled = np.concatenate(list(trains.values()))
    found = {}
    for hospital, patients in whole.items():
        reference = {"hospital": trains[hospital], "pooled": pooled}
        prepared = standardised(encoded[hospital], reference[testing])
        prepared[patients.trains] = standardised(trains[hospital], reference[training])
        found[hospital] = patients.pair(prepared)
    return found


def one_hot(tables: Sequence[FLOAT]) -> list[FLOAT]:
    """Tables without the dropped columns, with a column for each code but the first one of all tables.

    The codes come last, as in FLamby: the initial weights belong to columns.
    """
    names = [name for name in COLUMNS if name not in DROPPED]
    codes = [names.index(name) for name in CODES]
    numbers = [place for place in range(len(names)) if place not in codes]
    encoder = ColumnTransformer(
        [("numbers", "passthrough", numbers), ("codes", OneHotEncoder(drop="first", sparse_output=False), codes)]
    )
    encoder.fit(np.concatenate(tables))
    return [np.asarray(encoder.transform(table), dtype=np.float64) for table in tables]


def standardised(rows: FLOAT, reference: FLOAT) -> FLOAT:
    """Rows less the mean of reference rows, divided by their standard deviation; FLamby's formula."""
    scaled: FLOAT = (rows - reference.mean(axis=0)) / (reference.std(axis=0, ddof=1) + 1e-9)
    return scaled


def of_all_rows(hospitals: Mapping[str, Patients]) -> Clients:
    """All 920 rows, with thirteen features; scikit-learn fills the gaps, fitted on the training rows of all hospitals.

    A gap in a number becomes the median, and a column of its own says that it was a gap. A gap in a code is a code of
    its own. A pressure or a cholesterol of 0 is a gap, too: nobody has it.
    """
    preparation = table_preparation()
    tables = {hospital: _zeros_as_gaps(patients.features) for hospital, patients in hospitals.items()}
    preparation.fit(np.concatenate([tables[hospital][patients.trains] for hospital, patients in hospitals.items()]))
    return {
        hospital: patients.pair(preparation.transform(tables[hospital])) for hospital, patients in hospitals.items()
    }


def table_preparation() -> Any:
    """The preparation of all rows, not fitted; keys of ``[data]`` will take its place."""
    numbers = [COLUMNS.index(name) for name in ("age", "trestbps", "chol", "thalach", "oldpeak", "ca")]
    codes = [place for place in range(len(COLUMNS)) if place not in numbers]
    columns = ColumnTransformer(
        [
            ("numbers", SimpleImputer(strategy="median", add_indicator=True), numbers),
            ("codes", OneHotEncoder(handle_unknown="ignore", sparse_output=False), codes),
        ]
    )
    return make_pipeline(columns, StandardScaler())


def _zeros_as_gaps(features: FLOAT) -> FLOAT:
    """Features whose impossible zeros are gaps."""
    found = features.copy()
    for name in ("trestbps", "chol"):
        column = found[:, COLUMNS.index(name)]
        column[column == 0] = np.nan
    return found


def unlabelled_rows(hospitals: Mapping[str, Patients]) -> FLOAT:
    """The 180 patients with gaps in what FLamby takes, prepared, for the server of FedTSDP.

    The complete rows of all hospitals fill their gaps by medians, and standardise them.
    """
    names = [name for name in COLUMNS if name not in DROPPED]
    kept = [COLUMNS.index(name) for name in names]
    tables = [patients.features[:, kept] for patients in hospitals.values()]
    gappy = np.concatenate([table[np.isnan(table).any(axis=1)] for table in tables])
    whole = [complete(patients).train for patients in hospitals.values()]
    filled = SimpleImputer(strategy="median").fit(np.concatenate(whole)).transform(gappy)
    reference, rows = one_hot([np.concatenate(whole), filled])
    return standardised(rows, reference)


DATA: Mapping[str, Any] = {
    "hospital": lambda hospitals: of_complete_rows(hospitals, training="hospital", testing="hospital"),
    "pooled": lambda hospitals: of_complete_rows(hospitals, training="pooled", testing="pooled"),
    "mixed": lambda hospitals: of_complete_rows(hospitals, training="pooled", testing="hospital"),
    "all": of_all_rows,
}
"""Ways to prepare the data, by name. In "mixed", as in FLamby, a pooled model meets test rows of another scale."""


# The methods.


@dataclass(frozen=True)
class Case:
    """One method in one study.

    Attributes:
        data: How the data are prepared, a name of `DATA`.
        keys: What it changes in heart.toml.
        unlabelled: Whether the server has the unlabelled rows.
    """

    data: str
    keys: Mapping[str, Any]
    unlabelled: bool = False


EPOCHS = {"steps": 0, "epochs": 50, "optimizer": "adam"}
"""How FLamby trains a model that is not federated, in one go."""

ADAPTIVE = {"lr": 0.01, "momentum": 0.9, "tau": 1e-8}
"""The server of FLamby's FedAdam and FedYogi."""

TUNED = {"method": "finetune", "epochs": 3}
"""FLamby tunes for 100 steps. The library counts epochs, and three of them are 92 steps on average."""

GROUPED: Mapping[str, Mapping[str, Any]] = {
    "finetune": {"personal": TUNED},
    "fedavg_best": {"personal": {"method": "best"}},
    "strata": {"algorithm": {"name": "strata"}},
    "strata_unchecked": {"algorithm": {"name": "strata"}, "server": {"checks": []}},
    "strata_best": {"algorithm": {"name": "strata"}, "personal": {"method": "best"}},
    # Fewer than eight clients are never split by default.
    "layercfl": {"algorithm": {"name": "layercfl", "min_split": 2}},
    "adacfl": {"algorithm": {"name": "adacfl"}},
    "hicfl": {"algorithm": {"name": "hicfl"}},
}
"""Methods that give hospitals different models, with their default keys but for what four hospitals need."""


def _published() -> dict[str, Case]:
    """The methods of FLamby's benchmark, and the others with the learning rate of its FedAvg."""
    alone = {"rounds": 1, "local": EPOCHS}
    pooled = {**alone, "algorithm": {"name": "centralized"}}
    yogi = {"local": {"lr": 0.003162}, "server": {"optimizer": "yogi", "beta2": 0.999, **ADAPTIVE}}
    adagrad = {"optimizer": "adagrad", "lr": 0.316228, "momentum": 0.9, "tau": 1e-8}
    faster = {"local": {"lr": 0.003162}}
    own: dict[str, Mapping[str, Any]] = {
        "fedavg": {},
        "fedprox": {"algorithm": {"name": "fedprox", "mu": 0.01}},
        "fedadam": {"local": {"lr": 0.01}, "server": {"optimizer": "adam", "beta2": 0.999, **ADAPTIVE}},
        "fedyogi": yogi,
        "fedadagrad": {"local": {"lr": 0.003162}, "server": adagrad},
        "fedavg_faster": faster,
        "finetune_faster": {**faster, "personal": TUNED},
        **GROUPED,
    }
    return {
        "own": Case("hospital", {**alone, "algorithm": {"name": "local"}}),
        "pooled_mixed": Case("mixed", pooled),
        "pooled": Case("pooled", pooled),
        **{name: Case("hospital", keys) for name, keys in own.items()},
        "fedtsdp": Case("hospital", {"algorithm": {"name": "fedtsdp"}}, unlabelled=True),
    }


def _faster(data: str) -> dict[str, Case]:
    """All methods with the learning rate that FLamby has for FedAdam and Cyclic, and the same optimiser and steps."""
    alike: dict[str, Mapping[str, Any]] = {
        "own": {"algorithm": {"name": "local"}},
        "pooled": {"algorithm": {"name": "centralized"}},
        "fedavg": {},
        **GROUPED,
    }
    cases = {name: Case(data, {**keys, "local": {"lr": 0.01}}) for name, keys in alike.items()}
    if data != "all":
        keys = {"algorithm": {"name": "fedtsdp"}, "local": {"lr": 0.01}}
        cases["fedtsdp"] = Case(data, keys, unlabelled=True)
    return cases


STUDIES: Mapping[str, Mapping[str, Case]] = {
    "published": _published(),
    "hospital": _faster("hospital"),
    "pooled": _faster("pooled"),
    "all": _faster("all"),
}
"""The cases of each study; the last three are called after their data. No rows are left for FedTSDP in "all"."""

SEEDS = range(42, 47)
"""Those of FLamby."""


def settings(case: Case, seed: int) -> dict[str, Any]:
    """The experiment of a case: heart.toml with its keys and its seed."""
    found = tomllib.loads(BASE.read_text())
    for name, value in case.keys.items():
        found[name] = {**found.get(name, {}), **value} if isinstance(value, Mapping) else value
    if case.unlabelled:
        found["data"] = {**found["data"], "clients": len(HOSPITALS), "public": 180}
    return {**found, "seed": seed}


def one(hospitals: Mapping[str, Patients], case: Case, seed: int) -> dict[str, Any]:
    """What is kept of a run: its keys, its groups, and the probabilities of the test patients."""
    clients: Clients = DATA[case.data](hospitals)
    given = dict(clients)
    if case.unlabelled:
        rows = unlabelled_rows(hospitals).astype(np.float32)
        # It comes last, and the partition takes the first ones, so that it is no client.
        given["unlabelled"] = (rows, np.zeros(len(rows), dtype=np.int64))
    (inputs, _), _ = clients["Cleveland"]
    network = Logistic(inputs.shape[1], seed)
    with TemporaryDirectory() as folder:
        run = fs.run(settings(case, seed), out=Path(folder) / "run", clients=given, model=network, quiet=True)
        return {
            "data": case.data,
            "keys": dict(case.keys),
            "groups": list(run.labels.values()),
            "why": sorted({node.decision.kind for node in run.tree if node.decision and node.split is None}),
            "checked": checked(run.rounds),
            "probabilities": {
                hospital: [round(float(value), 4) for value in run.predict_proba(hospital, test[0])[:, 1]]
                for hospital, (_, test) in clients.items()
            },
            "versions": run.summary["versions"],
        }


CHECKED = ("reversed", "oversized", "clipped")
"""Events in which a check takes an update out of the mean, or shortens it."""


def checked(rounds: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """In how many rounds the update of each hospital was taken out or shortened."""
    found = dict.fromkeys(HOSPITALS, 0)
    for record in rounds:
        events = [event for event in record["events"] if event["kind"] in CHECKED]
        for number, hospital in enumerate(HOSPITALS):
            found[hospital] += any(number in event["clients"] for event in events)
    return {hospital: count for hospital, count in found.items() if count}


# References that are not trained in rounds.


def references(hospitals: Mapping[str, Patients]) -> Iterator[tuple[str, dict[str, list[float]]]]:
    """Probabilities of models that need no seed, for each way to prepare the data.

    They are the logistic regression of scikit-learn with its default keys, for each hospital alone and for all rows
    together, and the share of the disease among a hospital's training rows, which knows nothing of a patient. Where all
    training rows of a hospital have the disease, its own model says so of everybody.
    """
    for data, prepare in DATA.items():
        clients: Clients = prepare(hospitals)
        trains = {hospital: train for hospital, (train, _) in clients.items()}
        every = tuple(np.concatenate(parts) for parts in zip(*trains.values(), strict=True))
        together = fitted_model(*every)
        alone = {name: fitted_model(*train) for name, train in trains.items()}
        models: dict[str, Any] = {"converged_own": alone, "converged_pooled": dict.fromkeys(clients, together)}
        for method, fitted in models.items():
            yield (
                f"{data} {method}",
                {
                    name: [round(float(value), 4) for value in fitted[name].predict_proba(test[0])[:, -1]]
                    for name, (_, test) in clients.items()
                },
            )
        shares = {name: round(float(train[1].mean()), 4) for name, train in trains.items()}
        yield f"{data} share", {name: [shares[name]] * len(test[1]) for name, (_, test) in clients.items()}


def fitted_model(features: NDArray[Any], disease: NDArray[np.int64]) -> Any:
    """A logistic regression, or of rows of one class the model that says this class of everybody."""
    kind = LogisticRegression(max_iter=1000) if len(set(disease.tolist())) > 1 else DummyClassifier()
    return kind.fit(features, disease)


# What is kept.


def main() -> None:
    """Run what is missing, one run after the other, and keep each as soon as it is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", default=",".join(STUDIES), help="studies, comma-separated")
    parser.add_argument("--methods", help="methods, comma-separated; by default all")
    parser.add_argument("--seeds", default=",".join(map(str, SEEDS)), help="seeds, comma-separated")
    given = parser.parse_args()

    torch.set_num_threads(1)
    hospitals = read(Path(os.environ["FEDSTRATA_DATA"]) / FOLDER)
    known: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"runs": {}}
    known["tests"] = {data: disease_of_tests(prepare(hospitals)) for data, prepare in DATA.items()}
    known["references"] = dict(references(hospitals))
    for seed in given.seeds.split(","):
        for study in given.studies.split(","):
            for method, case in STUDIES[study].items():
                title = f"{study} {method} {seed}"
                wanted = given.methods is None or method in given.methods.split(",")
                # A case whose keys have changed since is run again.
                if not wanted or known["runs"].get(title, {}).get("keys") == case.keys:
                    continue
                run = one(hospitals, case, int(seed))
                known["versions"] = run.pop("versions")
                known["runs"][title] = run
                write(known)
                print(title, run["groups"], flush=True)
    write(known)


def disease_of_tests(clients: Clients) -> dict[str, str]:
    """Who of a hospital's test patients has the disease: a 1 for each who has, else a 0."""
    return {hospital: "".join(map(str, test[1].tolist())) for hospital, (_, test) in clients.items()}


def write(known: Mapping[str, Any]) -> None:
    """Write the results, with a line for each run."""
    order = [f"{study} {method} {seed}" for study, cases in STUDIES.items() for method in cases for seed in SEEDS]
    runs = sorted(known["runs"], key=lambda title: order.index(title) if title in order else len(order))
    tables = {"tests": known["tests"], "references": known["references"], "versions": known.get("versions", {})}
    lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in tables.items()]
    kept = ",\n".join(f"{json.dumps(title)}: {json.dumps(known['runs'][title])}" for title in runs)
    draft = RESULTS.with_suffix(".new")
    draft.write_text("{\n" + ",\n".join([*lines, f'"runs": {{\n{kept}\n}}']) + "\n}\n")
    draft.replace(RESULTS)


if __name__ == "__main__":
    main()
