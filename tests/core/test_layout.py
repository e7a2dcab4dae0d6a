import pytest

from fedstrata.base.errors import LayoutError
from fedstrata.core.layout import Layout, TensorSpec
from fedstrata.core.row_products import column_ranges

# Ten tensors; the columns of each are in the comment.
LAYOUT = Layout(
    (
        TensorSpec("body.conv1.weight", "body.conv1", "conv", (2, 1, 3, 3)),  # 0-17
        TensorSpec("body.conv1.bias", "body.conv1", "conv", (2,)),  # 18-19
        TensorSpec("body.norm1.weight", "body.norm1", "norm", (2,)),  # 20-21
        TensorSpec("body.norm1.running_mean", "body.norm1", "buffer", (2,)),  # 22-23
        TensorSpec("conv2.weight", "conv2", "conv", (1, 2, 1, 1)),  # 24-25
        TensorSpec("linear1.weight", "linear1", "linear", (2, 1)),  # 26-27
        TensorSpec("linear1.bias", "linear1", "linear", (2,)),  # 28-29
        TensorSpec("linear2.weight", "linear2", "linear", (1, 4)),  # 30-33
        TensorSpec("linear3.weight", "linear3", "linear", (3, 2)),  # 34-39
        TensorSpec("scale", "scale", "norm", ()),  # 40
    )
)


def chosen(*selectors: str) -> list[int]:
    return [i for i, one in enumerate(LAYOUT.select(*selectors)) if one]


def test_columns_follow_the_tensors() -> None:
    assert [(span.start, span.stop) for span in LAYOUT.spans][:3] == [(0, 18), (18, 20), (20, 22)]
    assert LAYOUT.spans[-1] == slice(40, 41)
    assert LAYOUT.p == 41


def test_layers_are_conv_and_linear_in_forward_order() -> None:
    assert LAYOUT.layers == ("body.conv1", "conv2", "linear1", "linear2", "linear3")


def test_masks_of_everything_and_nothing_have_a_bool_per_tensor() -> None:
    assert LAYOUT.everything == (True,) * 10
    assert LAYOUT.nothing == LAYOUT.select() == (False,) * 10


@pytest.mark.parametrize(
    ("selector", "tensors"),
    [
        ("conv", [0, 1, 4]),
        ("linear", [5, 6, 7, 8]),
        ("all", [0, 1, 4, 5, 6, 7, 8]),
        ("head", [8]),
        ("first_linear", [5, 6]),
        ("smallest_linear", [7]),  # linear1 and linear2 have four parameters each: the deeper one
        ("conv2", [4]),
        ("linear1.bias", [6]),
        ("body.*", [0, 1]),
        ("*.bias", [1, 6]),
        ("*", [0, 1, 4, 5, 6, 7, 8]),
    ],
)
def test_selectors_name_conv_and_linear_tensors_only(selector: str, tensors: list[int]) -> None:
    assert chosen(selector) == tensors


def test_several_selectors_make_one_mask() -> None:
    assert chosen("conv2", "head", "linear3.weight") == [4, 8]


@pytest.mark.parametrize("selector", ["conv9", "body.norm1", "scale", "*.running_mean", "CONV", ""])
def test_a_selector_that_matches_nothing_is_an_error_that_lists_the_layers(selector: str) -> None:
    with pytest.raises(LayoutError, match=r"matches no layer; this model has body.conv1, conv2, .*allowed are"):
        LAYOUT.select("all", selector)


@pytest.mark.parametrize("selector", ["linear", "head", "first_linear", "smallest_linear"])
def test_a_network_without_linear_layers_has_no_head(selector: str) -> None:
    layout = Layout(LAYOUT.tensors[:2])
    with pytest.raises(LayoutError, match="matches no layer"):
        layout.select(selector)


def test_columns_of_a_mask_are_ascending() -> None:
    assert LAYOUT.columns(LAYOUT.select("linear1.bias", "conv2")).tolist() == [24, 25, 28, 29]
    assert LAYOUT.columns(LAYOUT.everything).tolist() == list(range(41))
    assert LAYOUT.columns(LAYOUT.nothing).tolist() == []


def test_ranges_of_a_mask_are_ascending_and_those_of_neighbours_are_one() -> None:
    assert column_ranges(LAYOUT, LAYOUT.select("linear1.bias", "conv2")) == (slice(24, 26), slice(28, 30))
    assert column_ranges(LAYOUT, LAYOUT.everything) == (slice(0, 41),)
    assert column_ranges(LAYOUT, LAYOUT.nothing) == ()


def test_an_empty_layout_has_no_columns() -> None:
    assert Layout(()).p == 0
    assert Layout(()).select() == ()


def test_norms_and_buffers_belong_to_the_layer_before_them() -> None:
    mask = LAYOUT.whole(LAYOUT.select("body.conv1"))
    assert [i for i, one in enumerate(mask) if one] == [0, 1, 2, 3]
    assert [i for i, one in enumerate(LAYOUT.whole(LAYOUT.select("linear3"))) if one] == [8, 9]
    assert LAYOUT.whole(LAYOUT.nothing) == LAYOUT.nothing
    assert LAYOUT.whole(LAYOUT.select("all")) == LAYOUT.everything


def test_those_before_the_first_layer_belong_to_it() -> None:
    norm = TensorSpec("in", "in", "norm", (2,))
    layout = Layout((norm, *(TensorSpec(name, name, "linear", (2, 2)) for name in ("a", "b"))))
    assert layout.whole(layout.select("a")) == (True, True, False)
    assert layout.whole(layout.select("b")) == (False, False, True)
    assert layout.whole(layout.select("all")) == layout.everything
