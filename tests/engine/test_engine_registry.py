from contextlib import nullcontext

import pytest
import torch
from forty import LAYOUT, MODELS, SITE
from small import fit_of, plan_of

from fedstrata.base.errors import ExperimentError
from fedstrata.engine import ENGINES, Parallel, Processes, Ray, resolve_engine
from fedstrata.engine.registry import check_tf32


@pytest.mark.parametrize(
    ("name", "transport"), [("processes", Processes), pytest.param("ray", Ray, marks=pytest.mark.deploy)]
)
def test_a_name_makes_an_engine_with_its_workers(name: str, transport: type[Processes | Ray]) -> None:
    engine = ENGINES[name](SITE, "cpu", 3, 600)
    assert isinstance(engine, Parallel) and isinstance(engine._transport, transport) and engine._transport.workers == 3


def test_an_engine_computes_where_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert resolve_engine("loop", "auto") == resolve_engine("loop", "cpu") == ("loop", "cpu")
    assert resolve_engine("auto", "auto") == ("auto", "auto") and resolve_engine("auto", "cuda") == ("auto", "cuda")
    assert resolve_engine("batched", "auto") == resolve_engine("batched", "cuda") == ("batched", "cuda")
    assert resolve_engine("processes", "auto") == ("processes", "cpu")
    assert resolve_engine("loop", "cuda") == ("loop", "cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_engine("batched", "auto") == ("batched", "cpu")


@pytest.mark.parametrize(
    ("name", "device", "message"),
    [
        ("ray", "cuda", '"cuda": expected engine.name = "loop" or "batched", found .ray.'),
        ("batched", "mps", '"mps": expected engine.name = "loop", found .batched.'),
        ("batched", "cuda", 'device = "cuda": expected a device of CUDA, found none'),
        ("auto", "cuda", 'device = "cuda": expected a device of CUDA, found none'),
        ("loop", "mps", 'device = "mps": expected a device of MPS, found none'),
    ],
)
def test_an_engine_without_its_device_is_refused(
    name: str, device: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind in (torch.cuda, torch.backends.mps):
        monkeypatch.setattr(kind, "is_available", lambda: False)
    with pytest.raises(ExperimentError, match=message):
        resolve_engine(name, device)


def test_an_engine_that_is_not_installed_is_told_before_data_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedstrata.engine.registry.find_spec", lambda name: None)
    assert resolve_engine("loop", "cpu") == ("loop", "cpu")
    with pytest.raises(ExperimentError, match=r'engine.name = "ray": expected Ray, found none; pip install'):
        resolve_engine("ray", "cpu")


@pytest.mark.parametrize("name", ["loop", "batched"])
def test_who_has_no_sample_to_compare_models_on_takes_the_first(name: str) -> None:
    """Of the seven samples of client 6 there are three in half A, and of the one of client 0 none."""
    task = fit_of(LAYOUT, [[2, 1], [2, 1]], selection_fold="A")
    result = ENGINES[name](SITE, "cpu", 0, 600).run(plan_of(MODELS, task, cohort=[0, 6])).results["train"]
    assert result.updates.clients.tolist() == [0, 6] and result.chosen[0] == 2
    assert result.losses.isnan().tolist() == [[True, True], [False, False]]


@pytest.mark.parametrize(("capability", "has"), [((7, 5), False), ((8, 0), True), ((9, 0), True)])
def test_tf32_is_refused_on_gpus_that_do_not_have_it(
    capability: tuple[int, int], has: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    check_tf32("float32", "cuda")
    message = r"expected a GPU of compute capability 8\.0 or more, found 7\.5"
    with nullcontext() if has else pytest.raises(ExperimentError, match=message):
        check_tf32("tf32", "cuda")
