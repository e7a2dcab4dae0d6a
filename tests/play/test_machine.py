from collections.abc import Iterator
from pathlib import Path

import pytest

from fedstrata.play import machine as module
from fedstrata.play.machine import machine

TWO_PROCESSORS = """processor\t: 0
cpu family\t: 25
model\t\t: 17
model name\t: AMD EPYC
stepping\t: 1
flags\t\t: fpu avx512f avx2 sse4_1 rdrand

processor\t: 1
model name\t: another
"""


@pytest.fixture(autouse=True)
def anew() -> Iterator[None]:
    """The fingerprint is made once in a process."""
    machine.cache_clear()
    yield
    machine.cache_clear()


def test_the_processor_is_told_by_its_model_its_vector_instructions_and_its_caches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpuinfo").write_text(TWO_PROCESSORS)
    caches = {"index0": ("1", "Data", "32K", "0"), "index1": ("1", "Instruction", "32K", "0")}
    for index, lines in {**caches, "index2": ("3", "Unified", "8192K", "0-3,8")}.items():
        (tmp_path / index).mkdir()
        for name, line in zip(("level", "type", "size", "shared_cpu_list"), lines, strict=True):
            (tmp_path / index / name).write_text(line + "\n")
    monkeypatch.setattr(module, "_PROCESSORS", tmp_path / "cpuinfo")
    monkeypatch.setattr(module, "_CACHES", tmp_path)
    found = machine()
    assert found["processor"] == "AMD EPYC, cpu family 25, model 17, stepping 1"
    assert found["vectors"] == "avx2 avx512f sse4_1"
    assert found["caches"] == "L1 32K for 1, L3 8192K for 5"


def test_a_system_that_tells_nothing_of_its_processor_has_a_fingerprint_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PROCESSORS", tmp_path / "nowhere")
    monkeypatch.setattr(module, "_CACHES", tmp_path / "nowhere")
    found = machine()
    assert found["processor"] and found["kernels"] and found["vectors"] == found["caches"] == ""


def test_a_user_who_chooses_other_kernels_has_another_fingerprint(monkeypatch: pytest.MonkeyPatch) -> None:
    before = machine()
    machine.cache_clear()
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    assert machine() == {**before, "settings": " ".join(filter(None, (before["settings"], "MKL_CBWR=COMPATIBLE")))}
