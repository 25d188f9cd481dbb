"""Charts: positions of points, labels of axes, and a check that they are well-formed XML."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from p2ptrain.bench.charts import Axis, Chart, page, short

SVG = "{http://www.w3.org/2000/svg}"


def test_equal_factors_have_equal_lengths_on_a_logarithmic_axis() -> None:
    axis = Axis(1, 100, 0, 50, "log")
    assert [axis.at(each) for each in (1, 10, 100)] == pytest.approx([0, 25, 50])
    assert axis.ticks() == [1, 2, 5, 10, 20, 50, 100]


def test_axis_over_many_decades_labels_only_powers_of_ten() -> None:
    assert Axis(1, 10_000, 0, 50, "log").ticks() == [1, 10, 100, 1000, 10_000]


def test_equal_differences_have_equal_lengths_on_a_linear_axis() -> None:
    axis = Axis(1.7, 2.9, 100, 0, "linear")
    assert [axis.at(each) for each in (1.7, 2.3, 2.9)] == pytest.approx([100, 50, 0])
    assert axis.ticks() == pytest.approx([1.8, 2.0, 2.2, 2.4, 2.6, 2.8])


def test_line_looks_the_same_in_all_charts_and_has_one_legend_entry() -> None:
    first = Chart("loss", "tokens", {"b": [(0, 2.0), (10, 1.0)]}, "linear", "linear")
    second = Chart("seconds", "peers", {"a": [(1, 3.0)], "b": [(2, 4.0)]})
    root = ElementTree.fromstring(page([first, second], "<note>"))
    colours = [each.get("stroke") for each in root.iter(f"{SVG}polyline")]
    assert colours[0] == colours[2] != colours[1]
    words = [each.text for each in root.iter(f"{SVG}text")]
    assert [words.count(each) for each in ("a", "b", "<note>", "loss", "seconds")] == [1] * 5


def test_constant_line_can_be_drawn() -> None:
    flat = Chart("delays", "members", {"all": [(10, 6), (100, 6)]}, scale_up="linear")
    (line,) = ElementTree.fromstring(page([flat], "")).iter(f"{SVG}polyline")
    heights = [point.split(",")[1] for point in line.get("points", "").split()]
    assert heights[0] == heights[1]


def test_vertical_axis_can_begin_at_zero() -> None:
    chart = Chart("delays", "members", {"all": [(10, 6), (100, 7)]}, "log", "linear", (), True)
    words = [each.text for each in ElementTree.fromstring(page([chart], "")).iter(f"{SVG}text")]
    assert {"0", "2", "4", "6"} <= {*words}


@pytest.mark.parametrize(
    ("value", "words"), [(25e6, "25 M"), (1000, "1 k"), (999, "999"), (0.5, "0.5")]
)
def test_axis_labels_use_short_numbers(value: float, words: str) -> None:
    assert short(value) == words
