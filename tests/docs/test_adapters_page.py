"""The page of adapters, as somebody would follow it."""

import sys
from pathlib import Path

import pytest

from blocks import follow

pytest.importorskip("peft")
pytest.importorskip("transformers")


def test_every_block_does_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    follow("methods/adapters.md", tmp_path)
    sys.modules.pop("adapted", None)
