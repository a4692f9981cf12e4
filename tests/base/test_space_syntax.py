"""Syntax of search spaces: exact ends, distinct points, and numbers that are too large."""

import numpy as np
import pytest

from hotloop.base.space_syntax import parse_domain, parse_value
from hotloop.errors import ConfigError


def points(text):
    return parse_domain("x", text, parse_value).points("x")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("lin:0,0.99999999,3", (0.0, 0.5, 0.99999999)),
        ("log:1/3,3,3", (1 / 3, 1.0, 3.0)),
        ("log:1e-5,1e-2,7", (1e-5, 3.16228e-5, 1e-4, 3.16228e-4, 1e-3, 3.16228e-3, 1e-2)),
        ("lin:1000000,1000001,3", (1000000.0, 1000000.5, 1000001.0)),
        ("int:0,9,4", (0, 3, 6, 9)),
    ],
)
def test_a_grid_has_the_exact_ends_and_different_points(text, expected):
    assert points(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "1e-200:1e200:x10",
        "0:1e300:1e-300",
        "1:2:x1.00000000000000000001",
        "lin:-9e307,9e307,3",
        "int:0,1e19",
    ],
)
def test_ranges_beyond_floats_are_errors(text):
    with pytest.raises(ConfigError, match="is not a valid range"):
        points(text)


def test_the_widest_ranges_can_be_drawn_from():
    rng = np.random.default_rng(0)
    for text in ("int:-9007199254740992,9007199254740992", "lin:-9e306,9e306"):
        domain = parse_domain("x", text, parse_value)
        assert all(domain.low <= domain.draw(rng) <= domain.high for _ in range(100))
