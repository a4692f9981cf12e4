"""Curves as one line of text."""

import numpy as np

from hotloop.base.sparkline import sparkline


def test_sparkline_literal():
    steps = np.array([10, 20, 50, 60, 99])
    got = sparkline(steps, np.array([10.0, 30.0, 20.0, 160.0, 370.0]), width=4)
    assert got == "20 ▁▂█ 370"  # means 20, 90, 370; no episode ended in the second quarter
    assert sparkline(steps, np.ones(5), width=2) == "1 ▁▁ 1"
    assert sparkline(steps[:0], np.empty(0)) == ""
    for extreme in (1e308, -1e308, np.inf):
        curve = sparkline(steps, np.array([extreme, extreme, 0.0, -extreme, extreme]), width=3)
        assert len(curve.split()[1]) == 3


def test_unknown_returns_are_left_out():
    steps = np.array([10, 20, 50, 60, 99])
    curve = sparkline(steps, np.array([np.nan, 20.0, np.nan, 160.0, 370.0]), width=4)
    assert curve == "20 ▁▄█ 370"
    assert sparkline(steps, np.full(5, np.nan)) == ""
