"""Curves as one line of text."""

from __future__ import annotations

import numpy as np

from hotloop.base.rounding import format_number
from hotloop.types import Array


def sparkline(steps: Array, returns: Array, *, width: int = 50) -> str:
    """Return a learning curve as one line of text, such as `22 ▁▂▅▇█ 500`.

    Args:
        steps: step of the end of each episode, int64, (E,).
        returns: return of each episode, float64, (E,). NaN: unknown, left out.
        width: number of characters. Each shows the mean of the episodes in its share of the steps.

    Returns:
        The first mean, the curve and the last mean, or "" without known returns.
    """
    steps, returns = steps[~np.isnan(returns)], returns[~np.isnan(returns)]
    if not len(returns):
        return ""
    column = np.minimum(steps * width // (steps.max() + 1), width - 1)
    counts = np.bincount(column, minlength=width)
    with np.errstate(all="ignore"):  # returns up to the largest float, and infinite ones
        sums = np.bincount(column, weights=returns, minlength=width)
        means = sums[counts > 0] / counts[counts > 0]
        span = means.max() - means.min()
        levels = np.round(7 * (means - means.min()) / span if span else np.zeros_like(means))
        levels = np.nan_to_num(levels, posinf=7).clip(0, 7)
    bars = "".join("▁▂▃▄▅▆▇█"[int(level)] for level in levels)
    first, last = (format_number(mean, span, least=0) for mean in means[[0, -1]].tolist())
    return f"{first} {bars} {last}"
