"""What a comparison says to four hospitals, beside repeated cross-validation with scikit-learn.

The patients are real and not in this repository: the folder ``FEDSTRATA_DATA`` has them.
"""

import os
from pathlib import Path

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pytest
from experiments.heart import COLUMNS, FOLDER, HOSPITALS
from numpy.typing import NDArray
from scipy.stats import t as student_t
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import fedstrata as fs
from fedstrata.report.comparison.words import site_answers

REAL = os.environ.get("FEDSTRATA_DATA", "")
FOLDS, REPEATS = 5, 2

pytestmark = pytest.mark.skipif(not REAL, reason="FEDSTRATA_DATA does not name the folder of the real data")


@pytest.fixture(scope="module")
def patients() -> pd.DataFrame:
    """All 920 rows, with gaps."""
    tables = []
    for hospital, name in HOSPITALS.items():
        file = Path(REAL) / FOLDER / f"processed.{name}.data"
        table = pd.read_csv(file, header=None, names=[*COLUMNS[:13], "disease"])
        numbers = table.apply(pd.to_numeric, errors="coerce")
        tables.append(numbers[numbers["age"].notna()].assign(hospital=hospital))
    found = pd.concat(tables, ignore_index=True)
    return found.assign(disease=np.where(found["disease"] > 0, "yes", "no"))


def cross_validated(patients: pd.DataFrame) -> dict[str, NDArray[np.float64]]:
    """The accuracy of each hospital alone and pooled in every fold, (2, folds times repeats)."""
    scores: dict[str, list[tuple[float, float]]] = {name: [] for name in HOSPITALS}
    features = patients.drop(columns=["hospital", "disease"]).to_numpy()
    disease, hospital = patients["disease"].to_numpy(), patients["hospital"].to_numpy()
    for repeat in range(REPEATS):
        splits = {
            name: list(
                StratifiedKFold(FOLDS, shuffle=True, random_state=repeat).split(
                    np.flatnonzero(hospital == name), disease[hospital == name]
                )
            )
            for name in HOSPITALS
        }
        for fold in range(FOLDS):
            rows = {name: [np.flatnonzero(hospital == name)[part] for part in splits[name][fold]] for name in HOSPITALS}
            pooled = np.concatenate([train for train, _ in rows.values()])
            for name, (train, test) in rows.items():
                models = [
                    make_pipeline(
                        SimpleImputer(strategy="median", keep_empty_features=True),
                        StandardScaler(),
                        LogisticRegression(max_iter=1000),
                    ).fit(features[some], disease[some])
                    for some in (train, pooled)
                ]
                alone, both = (float(model.score(features[test], disease[test])) for model in models)
                scores[name].append((alone, both))
    return {name: np.array(values).T for name, values in scores.items()}


def interval(values: NDArray[np.float64]) -> tuple[float, float]:
    """The corrected 95 % interval of the mean over folds (Nadeau and Bengio 2003)."""
    error = np.sqrt(values.var(ddof=1) * (1 / len(values) + 1 / (FOLDS - 1)))
    reach = student_t.ppf(0.975, len(values) - 1) * error
    return values.mean() - reach, values.mean() + reach


def test_what_hospitals_are_told_agrees_with_repeated_cross_validation(patients: pd.DataFrame, tmp_path: Path) -> None:
    patients.to_csv(tmp_path / "patients.csv", index=False)
    keys = {
        "rounds": 30,
        "data": {"name": str(tmp_path / "patients.csv"), "label": "disease", "folds": FOLDS, "repeats": REPEATS},
        "partition": {"column": "hospital"},
        "model": {"name": "logistic"},
        "local": {"batch": 32, "lr": 0.1},
    }
    compared = fs.compare(keys, ["local", "fedavg"], out=tmp_path / "compared", quiet=True)
    assert len(compared.runs) == 2 * FOLDS * REPEATS
    known = cross_validated(patients)
    names = compared.document.clients
    for site in compared.sites:
        alone, pooled = known[names[site.client]]
        for name, values in (("local", alone), ("fedavg", pooled)):
            low, high = interval(values)
            value = site.values[name]
            assert value is not None and low <= value <= high, (names[site.client], name, value, low, high)
    gains = {name for name, (alone, pooled) in known.items() if interval(pooled - alone)[0] > 0}
    losses = {name for name, (alone, pooled) in known.items() if interval(pooled - alone)[1] < 0}
    told = {names[site.client]: site.differences[0].verdict for site in compared.sites}
    assert {name for name, verdict in told.items() if verdict == "better"} <= gains == set()
    assert {name for name, verdict in told.items() if verdict == "worse"} <= losses
    (line,) = site_answers(compared.document)["Who gains from joining?"]
    page = (compared.folder / "comparison.html").read_text(encoding="utf-8")
    assert line in page and "better for" not in line
