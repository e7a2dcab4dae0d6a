import json
from math import inf, nan
from pathlib import Path

import pytest
import torch

from fedstrata.base.errors import RecordError
from fedstrata.objective import METRICS
from fedstrata.objective.metric_info import (
    ACCURACY,
    METRIC_INFOS,
    MetricInfo,
    describe_metric,
    dump_metric,
    info_of,
    read_metric,
)

MSE, R2, F1 = (METRIC_INFOS[name] for name in ("mse", "r2", "f1_macro"))


def test_a_share_is_shown_in_per_cent_and_other_metrics_as_numbers() -> None:
    assert ACCURACY.text(0.9713) == "97.1 %" and ACCURACY.text(0.9713, 0.004) == "97.1 ± 0.4 %"
    assert F1.text(0.9713) == "0.971" and R2.text(-0.25, 0.1) == "-0.250 ± 0.100"
    assert ACCURACY.gain_text(0.025) == "2.5 points" and F1.gain_text(0.025) == "0.025"


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0.000"), (0.012345, "0.01235"), (1.5, "1.500"), (123.456, "123.5"), (15234.7, "15,235"), (3e12, "3e+12")],
)
def test_a_number_without_a_usual_range_has_four_digits(value: float, text: str) -> None:
    assert MSE.text(value) == text
    assert MSE.text(-value) == ("-" + text if value else text)


def test_an_unknown_value_is_a_dash_and_worse_than_all_others() -> None:
    for value in (None, nan, inf):
        assert MSE.text(value) == "\N{EN DASH}"
        assert MSE.quality(value) == ACCURACY.quality(value) == -inf


def test_less_error_is_better_and_more_accuracy_is() -> None:
    assert min([0.3, 0.1, 0.2], key=MSE.quality) == 0.3 and max([0.3, 0.1, 0.2], key=MSE.quality) == 0.1
    assert min([0.3, 0.1, 0.2], key=F1.quality) == 0.1
    assert MSE.gain(0.25, 0.75) == 0.5 and F1.gain(0.25, 0.75) == -0.5
    assert (MSE.better, MSE.worse, MSE.best, MSE.worst) == ("lower", "higher", "lowest", "highest")
    assert MSE.scale == "at least 0, lower is better" and R2.scale == "at most 1, higher is better"
    assert ACCURACY.scale == "from 0 to 100 %, higher is better" and F1.scale == "from 0 to 1, higher is better"


def test_a_difference_counts_where_it_can_be_seen() -> None:
    """As 0.001 of a metric that is at most 1; of an error, whose unit is that of the data, as a share of it."""
    assert F1.smallest_gain(0.001, 0.002) == R2.smallest_gain(-5.0) == ACCURACY.smallest_gain(0.9) == 0.0005
    assert MSE.smallest_gain(2000.0, 1000.0) == 1.0 and MSE.smallest_gain(2e-6) == 1e-9


def test_an_interval_of_differences_has_its_unit_once() -> None:
    assert ACCURACY.interval_text(-0.009, 0.0151) == "-0.9 to 1.5 points"
    assert F1.interval_text(0, 0.5) == "0.000 to 0.500"


@pytest.mark.parametrize("name", METRICS)
def test_every_metric_lies_in_its_bounds_and_a_perfect_prediction_is_the_best(name: str) -> None:
    targets, wrong = torch.tensor([[0.0], [1.0], [1.0], [0.0]]), torch.tensor([[3.0], [-2.0], [4.0], [-1.0]])
    perfect = targets if "f1" not in name and "accuracy" not in name else 2 * targets - 1
    info = METRIC_INFOS[name]
    best, other = METRICS[name](perfect, targets), METRICS[name](wrong, targets)
    least, most = info.bounds
    assert least <= best <= most and least <= other <= most
    assert info.gain(best, other) > 0 and info.meaning


def test_a_function_of_ones_own_says_what_it_measures() -> None:
    @describe_metric("perplexity", "exp of the mean loss", larger_is_better=False, least=1.0)
    def own(outputs: object, targets: object) -> float:
        return 1.0

    assert info_of(own, "mine:own") == MetricInfo("perplexity", "exp of the mean loss", False, least=1.0)
    silent = info_of(test_less_error_is_better_and_more_accuracy_is, "mine:top_5_accuracy")
    assert silent == MetricInfo("top 5 accuracy") and silent.larger_is_better
    with pytest.raises(ValueError, match=r"expected a largest value above the smallest one, 1, found 0"):
        describe_metric("odd", least=1.0, most=0.0)


def test_a_run_folder_keeps_it(tmp_path: Path) -> None:
    own = MetricInfo("perplexity", "exp of the mean loss", False, least=1.0)
    (tmp_path / "metric.json").write_bytes(dump_metric(own))
    assert read_metric(tmp_path) == own
    with pytest.raises(RecordError, match=r"metric\.json: expected what the run's metric is, found: .* No such file"):
        read_metric(tmp_path / "nowhere")


@pytest.mark.parametrize(
    "changes",
    [{"name": ""}, {"name": "x" * 1000}, {"percent": "yes"}, {"least": float("nan")}, {"most": -1.0}, {"odd": 1}],
)
def test_a_damaged_file_is_refused_in_one_line(tmp_path: Path, changes: dict[str, object]) -> None:
    content = json.loads(dump_metric(MetricInfo("perplexity", least=1.0))) | changes
    (tmp_path / "metric.json").write_text(json.dumps(content))
    if "odd" in changes:
        assert read_metric(tmp_path).name == "perplexity"  # of a later version
        return
    with pytest.raises(RecordError, match=r"metric\.json: expected what the run's metric is, found: .*resume the run"):
        read_metric(tmp_path)
