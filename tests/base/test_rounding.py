import math

import pytest

from hotloop.base.rounding import format_interval, format_mean, format_number, format_rate


@pytest.mark.parametrize(
    ("mean", "spread", "text"),
    [
        (0.955, 0.0131, "0.955 ± 0.013"),
        (0.0041, 0.00032, "0.00410 ± 0.00032"),
        (14.4, 2.04, "14.4 ± 2.0"),
        (-1227.31, 310.2, "-1,227.3 ± 310.2"),
        (10_000.0, 0.02, "10,000.000 ± 0.020"),
        (500.0, 0.0, "500.0 ± 0.0"),
        (0.955, 0.0, "0.955 ± 0.000"),
        (1.0, 0.0, "1.0 ± 0.0"),
        (0.3, 1e-17, "0.3 ± 0.0"),  # a rounding error
        (4e-12, 1e-12, "4e-12 ± 1e-12"),
        (1e12, 1e10, "1e+12 ± 1e+10"),
        (math.nan, math.nan, "nan ± nan"),
        (math.inf, math.nan, "inf ± nan"),
    ],
)
def test_mean_and_spread(mean, spread, text):
    assert format_mean(mean, spread) == text


@pytest.mark.parametrize(
    ("value", "spread", "text"),
    [
        (0.00412, None, "0.00412"),
        (0.3, None, "0.3"),
        (1.0, None, "1.0"),
        (-12.34, None, "-12.3"),
        (9.9999, None, "10.0"),
        (1_234.56, None, "1,234.6"),
        (2e9, None, "2e+09"),
        (100.004, 0.003, "100.0040"),
        (math.nan, math.nan, "nan"),
    ],
)
def test_number(value, spread, text):
    assert format_number(value, spread) == text


def test_no_decimals_where_the_spread_is_large():
    assert format_mean(-345.67, 12.3, least=0) == "-346 ± 12"
    assert format_number(21.6, 478.0, least=0) == "22"


@pytest.mark.parametrize(
    ("rate", "text"),
    [(0.0, "0"), (0.0312, "0.031"), (3.27, "3.3"), (9.99, "10"), (1_234.5, "1,234")],
)
def test_rate(rate, text):
    assert format_rate(rate) == text


def test_interval():
    assert format_interval(431.2, (420.11, 445.3)) == "431.2 (420.1 to 445.3)"
    interval = format_interval(0.0043, (0.0042, 0.0045), sign="+")
    assert interval == "+0.00430 (+0.00420 to +0.00450)"
    assert format_interval(0.5, None, sign="+") == "+0.5"


def test_an_unknown_value_has_no_interval():
    assert format_interval(math.nan, None) == format_interval(math.nan, (0.0, 1.0)) == "–"
