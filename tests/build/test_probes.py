import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedstrata as fs
from builders import keys, run
from fedstrata.base.errors import InputError

SMALL = keys(
    data={"name": "digits", "clients": 6, "samples": 30},
    model={"name": "mlp", "hidden": [4]},
    algorithm={"name": "hicfl"},
)
PROBES = {
    "matrices": ["dcos", "l2"],
    "layers": ["linear1", "linear"],
    "rounds": [1, 3],
}


def digest(folder: Path, *kinds: str) -> dict[str, str]:
    files = [path for kind in kinds for path in sorted((folder / kind).iterdir())]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture(scope="module")
def probed(tmp_path_factory: pytest.TempPathFactory) -> fs.Run:
    return run(tmp_path_factory.mktemp("probed") / "run", SMALL, probe=PROBES)


def test_probes_record_what_was_asked_for(probed: fs.Run) -> None:
    folder = probed.folder
    assert [path.name for path in sorted((folder / "matrices").iterdir())] == ["00001.npz", "00003.npz"]
    with np.load(folder / "matrices" / "00003.npz") as arrays:
        names = [f"-1|{measure}|{layer}" for measure in ("dcos", "l2") for layer in ("linear1", "linear")]
        assert [name for name in arrays.files if not name.endswith("|clients")] == names
        assert arrays["-1|dcos|linear"].shape == (6, 6)
        assert arrays["-1|l2|linear1|clients"].tolist() == [0, 1, 2, 3, 4, 5]


def test_probes_do_not_touch_training_and_the_page_shows_them(probed: fs.Run, tmp_path: Path) -> None:
    plain = run(tmp_path / "run", SMALL)
    assert digest(plain.folder, "models", "clients") == digest(probed.folder, "models", "clients")
    assert "linear1, dcos, all clients" in (probed.folder / "report.html").read_text()
    alone = run(tmp_path / "fedavg", SMALL, algorithm={"name": "fedavg"}, probe={"matrices": ["dcos"], "rounds": [2]})
    assert "linear1, dcos, all clients" in (alone.folder / "report.html").read_text()


DIRICHLET = {"scheme": "dirichlet", "alpha": 1.0}
"""A partition without true groups."""


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"probe": {"matrices": ["cos"], "layers": ["conv9"]}}, "layers = 'conv9' matches no layer"),
        ({"probe": {"matrices": ["cos"], "rounds": [1, 5]}}, r"rounds = \[1, 5\]: expected rounds from 1 to"),
        ({"partition": DIRICHLET, "probe": {"gap": ["cos"]}}, r"gap = \['cos'\]: .*scheme = 'dirichlet'"),
    ],
)
def test_a_probe_that_would_record_nothing_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=rf"^probe\.{message}") as caught:
        run(tmp_path / "run", SMALL, **changes)
    assert "\n" not in str(caught.value) and not (tmp_path / "run").exists()
