from pathlib import Path

import pytest

from fedstrata.records.arrays import last_scores, read_right_samples


@pytest.mark.parametrize("damaged", [b"", b"no table"])
def test_a_damaged_file_is_as_none(damaged: bytes, tmp_path: Path) -> None:
    (tmp_path / "classified.parquet").write_bytes(damaged)
    assert read_right_samples(tmp_path) == {}


@pytest.mark.parametrize("damaged", [b"", b"no table"])
def test_damaged_scores_are_as_none(damaged: bytes, tmp_path: Path) -> None:
    (tmp_path / "clients").mkdir()
    (tmp_path / "clients" / "00001.parquet").write_bytes(damaged)
    assert last_scores(tmp_path) == {}
