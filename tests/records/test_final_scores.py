from pathlib import Path

import pytest

from fedstrata.records.arrays import last_predictions, last_scores


@pytest.mark.parametrize("damaged", [b"", b"no table"])
def test_a_damaged_file_is_as_none(damaged: bytes, tmp_path: Path) -> None:
    (tmp_path / "predictions.parquet").write_bytes(damaged)
    assert last_predictions(tmp_path) == {}


@pytest.mark.parametrize("damaged", [b"", b"no table"])
def test_damaged_scores_are_as_none(damaged: bytes, tmp_path: Path) -> None:
    (tmp_path / "clients").mkdir()
    (tmp_path / "clients" / "00001.parquet").write_bytes(damaged)
    assert last_scores(tmp_path) == {}
