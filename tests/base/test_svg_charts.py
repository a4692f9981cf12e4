import re
from xml.etree import ElementTree

import numpy as np
import pytest

from hotloop.base.svg_charts import (
    ChartData,
    ChartSeries,
    chart,
    column_averages,
    finite_series,
    last_per_column,
    thin_series,
)


def series(at, values):
    return ChartSeries(
        name="n", steps=np.asarray(at, np.float64), values=np.asarray(values, np.float64)
    )


def draw_chart(**parts):
    label = parts.pop("label", "return")
    text = chart(
        ChartData(**parts), label=label, end=1000.0, width=400, height=200, description="it <shows>"
    )
    svg = ElementTree.fromstring(text)
    assert svg.attrib["aria-label"] == "it <shows>"
    return {element.attrib.get("class"): element for element in svg.iter("path")}, [
        element.text for element in svg.iter("text")
    ]


def places(path):
    points = re.findall(r"[ML]?(-?[\d.]+) (-?[\d.]+)", path.attrib["d"])
    return [(float(x), float(y)) for x, y in points]


def test_points_have_the_expected_positions():
    paths, texts = draw_chart(lines=series([0, 500, 1000], [0, 100, 200]))
    (start, bottom), (middle, half), (end, top) = places(paths["mean"])
    assert (bottom, top, end) == (160.0, 30.0, 386.0)
    assert middle == pytest.approx((start + end) / 2, abs=0.1)
    assert half == pytest.approx((bottom + top) / 2, abs=0.1)
    assert {"return", "steps", "0", "500", "1,000", "100", "200"} <= set(texts)


def test_ticks_have_one_unit():
    _, texts = draw_chart(lines=series([0, 1000], [2_000, 16_000]))
    assert {"5k", "10k", "15k"} <= set(texts)
    _, texts = draw_chart(lines=series([0, 1000], [0.00001, 0.00002]))
    assert "1.5e−05" in texts
    _, texts = draw_chart(lines=series([0, 1000], [-0.5, 0.5]))
    assert "−0.5" in texts


@pytest.mark.parametrize(
    "values", [[0.0, 0.0], [7.0, 7.0], [-1e-12, -1e-12], [1e300, -1e300], [0, 5e-324]]
)
def test_any_numbers_can_be_drawn(values):
    paths, texts = draw_chart(lines=series([10, 1000], values), dots=series([10, 1000], values))
    assert all(30.0 <= y <= 160.0 for _, y in places(paths["mean"]))
    assert len(texts) >= 4


def test_nothing_to_draw_is_an_empty_chart():
    paths, texts = draw_chart(dots=series([], []), averaged=series([], []), marks=series([], []))
    assert paths.keys() == {"grid", "axis"}
    assert "steps" in texts


def test_marks_and_their_bars():
    bars = np.array([[0.0, 5.0], [10.0, 10.0]])
    paths, _ = draw_chart(marks=series([500, 1000], [5, 8]), mark_bounds=bars)
    assert paths["spread"].attrib["d"].count("M") == 2
    assert paths["diamonds"].attrib["d"].count("z") == 2
    assert len(places(paths["eval"])) == 2


def test_a_label_is_text():
    _, texts = draw_chart(lines=series([0], [1]), label="<script>")
    assert "<script>" in texts


def test_thinning_keeps_the_extremes_of_each_column():
    rng = np.random.default_rng(0)
    full = series(np.arange(1, 100_001), rng.normal(size=100_000))
    thin = thin_series(full, 100_000.0, 50)
    assert 4 * 50 <= len(thin) <= 5 * 50
    assert np.all(np.diff(thin.steps) > 0)
    # Columns are equal parts of the run.
    for start, column in enumerate(np.array_split(full.values[:-1], 50)):
        thinned = thin.values[(thin.steps - 1) // 2000 == start]
        assert abs(thinned.max() - column.max()) < 0.5
    assert thin.values.min() == full.values.min()
    assert thin.values.max() == full.values.max()
    assert thin_series(thin, 100_000.0, 50) is thin


def test_averages_of_columns_by_hand():
    curve = series([1, 2, 60, 70, 80, 99], [1, 3, 5, 6, 10, 7])
    at, mean, least, greatest = column_averages(curve, 100.0, 2)
    assert at.tolist() == [1.5, 77.25]
    assert mean.tolist() == [2.0, 7.0]
    assert least.tolist() == [1.0, 5.0]
    assert greatest.tolist() == [3.0, 10.0]
    assert column_averages(curve, 100.0, 6)[1].tolist() == curve.values.tolist()
    assert last_per_column(curve, 100.0, 2).values.tolist() == [1, 3, 7]


def test_non_finite_values_are_omitted():
    finite = finite_series("n", [1, 2, 3], [1.0, np.nan, np.inf])
    assert finite.steps.tolist() == [1.0]
