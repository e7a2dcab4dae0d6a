import pytest
import torch
from forty import LAYOUT, MODELS, SITE, offers
from small import fit_of, plan_of

from fedstrata.engine import ENGINES, Loop, Processes, Ray, Workers, settle
from fedstrata.engine.batched import Batched
from fedstrata.errors import ExperimentError


@pytest.mark.parametrize(("name", "transport"), [("processes", Processes), ("ray", Ray)])
def test_a_name_makes_an_engine_with_its_workers(name: str, transport: type[Processes | Ray]) -> None:
    engine = ENGINES[name](SITE, "cpu", 3, 600)
    assert isinstance(engine, Workers) and isinstance(engine._transport, transport) and engine._transport.workers == 3


@pytest.mark.parametrize(("name", "kind"), [("loop", Loop), ("batched", Batched)])
def test_other_names_make_engines_without_workers(name: str, kind: type) -> None:
    engine = ENGINES[name](SITE, "cpu", 0, 600)
    report = engine.run(plan_of(MODELS, fit_of(LAYOUT, offers([0], of=3)), cohort=[4, 5, 6]))
    assert type(engine) is kind and report.results["train"].sizes.tolist() == [5, 6, 7]


def test_an_engine_computes_where_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert settle("loop", "auto") == settle("loop", "cpu") == ("loop", "cpu")
    assert settle("auto", "auto") == ("auto", "auto") and settle("auto", "cuda") == ("auto", "cuda")
    assert settle("batched", "auto") == settle("batched", "cuda") == ("batched", "cuda")
    assert settle("processes", "auto") == ("processes", "cpu")
    with pytest.raises(ExperimentError, match=r'"cuda": expected engine\.name = "batched", found .ray.'):
        settle("ray", "cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert settle("batched", "auto") == ("batched", "cpu")
    with pytest.raises(ExperimentError, match='device = "cuda": expected a device of CUDA, found none'):
        settle("batched", "cuda")
    with pytest.raises(ExperimentError, match='device = "cuda": expected a device of CUDA, found none'):
        settle("auto", "cuda")


def test_an_engine_that_is_not_installed_is_told_before_data_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedstrata.engine.choice.find_spec", lambda name: None)
    assert settle("loop", "cpu") == ("loop", "cpu")
    with pytest.raises(ExperimentError, match=r'engine.name = "ray": expected Ray, found none; pip install'):
        settle("ray", "cpu")
