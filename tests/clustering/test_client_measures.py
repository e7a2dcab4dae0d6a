import pytest
import torch

from fedstrata.clustering import CLIENT_MEASURES, in_views, manhattan

ROWS = torch.tensor([[3.0, 4.0], [3.0, 4.0], [0.0, -1.0], [-3.0, 4.0]])
"""Two equal rows, one opposite in the second column, one mirrored in the first."""


@pytest.mark.parametrize("name", CLIENT_MEASURES)
def test_a_row_is_closest_to_itself_and_every_layer_is_compared_by_itself(name: str) -> None:
    measure = CLIENT_MEASURES[name]
    values = measure.compare(ROWS)
    assert torch.equal(values, values.T)
    away = measure.distances(values)
    assert away.diagonal().tolist() == [0, 0, 0, 0] and float(away.min()) == 0
    assert float(away[0, 2]) > float(away[0, 1])
    columns = [torch.tensor([0]), torch.tensor([1]), torch.tensor([0, 1])]
    first, second, both = measure.compare(ROWS, in_views(columns))
    assert torch.equal(first, measure.compare(ROWS[:, :1]))
    assert torch.equal(second, measure.compare(ROWS[:, 1:]))
    assert torch.allclose(both, values, atol=1e-12)


def test_models_and_updates_have_the_same_measures() -> None:
    models = {name for name, measure in CLIENT_MEASURES.items() if not measure.of_updates}
    assert set(CLIENT_MEASURES) == models | {f"d{name}" for name in models}
    for name in models:
        assert "models" in CLIENT_MEASURES[name].about and "updates" in CLIENT_MEASURES[f"d{name}"].about


def test_manhattan_adds_the_differences() -> None:
    assert manhattan(ROWS)[0].tolist() == [0, 0, 8, 6]
    with pytest.raises(ValueError, match="norm"):
        manhattan(torch.tensor([[float("nan"), 1.0], [0.0, 1.0]]))
