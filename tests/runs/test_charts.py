import re
from xml.etree import ElementTree

import numpy as np
import pytest

from hotloop.runs.charts import Drawn, Series, averages, chart, finite, last_of_columns, thinned


def series(at, values):
    return Series(name="n", at=np.asarray(at, np.float64), values=np.asarray(values, np.float64))


def drawn(**parts):
    label = parts.pop("label", "return")
    text = chart(Drawn(**parts), label=label, end=1000.0, width=400, height=200, about="it <shows>")
    svg = ElementTree.fromstring(text)
    assert svg.attrib["aria-label"] == "it <shows>"
    return {one.attrib.get("class"): one for one in svg.iter("path")}, [
        one.text for one in svg.iter("text")
    ]


def places(path):
    found = re.findall(r"[ML]?(-?[\d.]+) (-?[\d.]+)", path.attrib["d"])
    return [(float(x), float(y)) for x, y in found]


def test_points_stand_where_they_belong():
    paths, texts = drawn(lines=series([0, 500, 1000], [0, 100, 200]))
    (left, bottom), (middle, half), (right, top) = places(paths["mean"])
    assert (bottom, top, right) == (160.0, 30.0, 386.0)
    assert middle == pytest.approx((left + right) / 2, abs=0.1)
    assert half == pytest.approx((bottom + top) / 2, abs=0.1)
    assert {"return", "steps", "0", "500", "1,000", "100", "200"} <= set(texts)


def test_ticks_have_one_unit():
    _, texts = drawn(lines=series([0, 1000], [2_000, 16_000]))
    assert {"5k", "10k", "15k"} <= set(texts)
    _, texts = drawn(lines=series([0, 1000], [0.00001, 0.00002]))
    assert "1.5e−05" in texts
    _, texts = drawn(lines=series([0, 1000], [-0.5, 0.5]))
    assert "−0.5" in texts


@pytest.mark.parametrize(
    "values", [[0.0, 0.0], [7.0, 7.0], [-1e-12, -1e-12], [1e300, -1e300], [0, 5e-324]]
)
def test_any_numbers_can_be_drawn(values):
    paths, texts = drawn(lines=series([10, 1000], values), dots=series([10, 1000], values))
    assert all(30.0 <= y <= 160.0 for _, y in places(paths["mean"]))
    assert len(texts) >= 4


def test_nothing_to_draw_is_an_empty_chart():
    paths, texts = drawn(dots=series([], []), averaged=series([], []), marks=series([], []))
    assert paths.keys() == {"grid", "axis"}
    assert "steps" in texts


def test_marks_and_their_bars():
    bars = np.array([[0.0, 5.0], [10.0, 10.0]])
    paths, _ = drawn(marks=series([500, 1000], [5, 8]), spread=bars)
    assert paths["spread"].attrib["d"].count("M") == 2
    assert paths["diamonds"].attrib["d"].count("z") == 2
    assert len(places(paths["eval"])) == 2


def test_a_label_is_text():
    _, texts = drawn(lines=series([0], [1]), label="<script>")
    assert "<script>" in texts


def test_thinning_keeps_the_extremes_of_each_column():
    rng = np.random.default_rng(0)
    many = series(np.arange(1, 100_001), rng.normal(size=100_000))
    few = thinned(many, 100_000.0, 50)
    assert 4 * 50 <= len(few) <= 5 * 50
    assert np.all(np.diff(few.at) > 0)
    # The column of a step is that of its part of the run.
    for start, one in enumerate(np.array_split(many.values[:-1], 50)):
        own = few.values[(few.at - 1) // 2000 == start]
        assert abs(own.max() - one.max()) < 0.5
    assert few.values.min() == many.values.min()
    assert few.values.max() == many.values.max()
    assert thinned(few, 100_000.0, 50) is few


def test_averages_of_columns_by_hand():
    one = series([1, 2, 60, 70, 80, 99], [1, 3, 5, 6, 10, 7])
    at, mean, least, greatest = averages(one, 100.0, 2)
    assert at.tolist() == [1.5, 77.25]
    assert mean.tolist() == [2.0, 7.0]
    assert least.tolist() == [1.0, 5.0]
    assert greatest.tolist() == [3.0, 10.0]
    assert averages(one, 100.0, 6)[1].tolist() == one.values.tolist()
    assert last_of_columns(one, 100.0, 2).values.tolist() == [1, 3, 7]


def test_what_is_not_finite_is_left_out():
    one = finite("n", [1, 2, 3], [1.0, np.nan, np.inf])
    assert one.at.tolist() == [1.0]
