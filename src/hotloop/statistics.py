"""Statistics of few and noisy numbers: quantiles, robust lines, trends, autocorrelation."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def student_t(degrees_of_freedom: float, quantile: float = 0.975) -> float:
    """A quantile of Student's t above the median: 12.706 for 1 degree of freedom, 2.776 for 4.

    With t = √ν tan θ its density becomes cos^(ν−1) θ on (−π/2, π/2), which is integrated by the
    trapezoid rule: no library is needed for one number.
    """
    theta = np.linspace(0.0, np.pi / 2, 100_001)
    density = np.cos(theta) ** (degrees_of_freedom - 1)
    mass = np.concatenate([[0.0], np.cumsum(density[1:] + density[:-1])])
    angle = float(np.interp(2.0 * quantile - 1.0, mass / mass[-1], theta))
    return math.sqrt(degrees_of_freedom) * math.tan(angle)


def interquartile_mean(values: Floats) -> Floats:
    """Mean of the middle half: of each column, without its lowest and its highest quarter.

    A quarter is rounded down: of five values the middle three count, of up to three all. Agarwal
    et al. 2021, arXiv:2108.13264, section 4.3.

    Args:
        values: float64, (S, …).

    Returns:
        float64, (…); NaN where one of the values is.
    """
    cut = len(values) // 4
    middle = np.sort(values, axis=0)[cut : len(values) - cut]
    return np.where(np.isnan(values).any(axis=0), np.nan, middle.mean(axis=0))


def bootstrap_interval(
    values: Floats, *, level: float = 0.95, resamples: int = 2_000
) -> tuple[Floats, Floats]:
    """Percentile interval of the interquartile mean over seeds, of which whole ones are redrawn.

    The same draws every time. An interval never leaves what the seeds themselves have reached.
    Agarwal et al. 2021, arXiv:2108.13264, section 4.1, of one task.

    Args:
        values: float64, (S, G), a row for each seed.
        level: share of the resamples that lie inside.
        resamples: how many.

    Returns:
        Lower and upper bound, float64, (G,) both.
    """
    drawn = np.random.default_rng(0).integers(len(values), size=(len(values), resamples))
    tails = [(1 - level) / 2, (1 + level) / 2]
    bounds = np.empty((2, values.shape[1]))
    for k in range(values.shape[1]):  # one at a time: (S, R, G) may be gigabytes
        bounds[:, k] = np.quantile(interquartile_mean(values[:, k][drawn]), tails)
    return bounds[0], bounds[1]


def stratified_interval(
    strata: Sequence[Floats],
    statistic: Callable[[list[Floats]], Floats],
    *,
    level: float = 0.95,
    resamples: int = 2_000,
) -> tuple[float, float]:
    """Percentile interval of a statistic of several groups, each of which is redrawn by itself.

    The same draws every time. Agarwal et al. 2021, arXiv:2108.13264, section 4.1: a group is the
    runs of one algorithm in one environment.

    Args:
        strata: float64, (S_k,) each: a value for each run.
        statistic: of the groups redrawn, (S_k, R) each, gives (R,).
        level: share of the resamples that lie inside.
        resamples: R, how many.

    Returns:
        Lower and upper bound.
    """
    rng = np.random.default_rng(0)
    redrawn = [one[rng.integers(len(one), size=(len(one), resamples))] for one in strata]
    low, high = np.quantile(statistic(redrawn), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def probability_of_improvement(a: Floats, b: Floats) -> Floats:
    """Share of the pairs in which B's value is above A's; equal ones count half.

    Mann and Whitney's U over the number of pairs. Agarwal et al. 2021, arXiv:2108.13264, section
    4.3; over several environments it is their mean.

    Args:
        a: float64, (S, …).
        b: float64, (T, …).

    Returns:
        float64, (…), from 0 to 1.
    """
    above = np.zeros(np.broadcast_shapes(a.shape[1:], b.shape[1:]))
    for one in a:  # one at a time: all pairs of all resamples may be gigabytes
        above += (b > one).sum(axis=0) + 0.5 * (b == one).sum(axis=0)
    return above / (len(a) * len(b))


def theil_sen(x: Floats, y: Floats) -> tuple[float, float]:
    """Slope and intercept of the line whose slope is the median of all pairs' slopes.

    Up to 29 % of the points may be arbitrarily wrong. Sen 1968, doi:10.1080/01621459.1968.10480934.
    """
    i, j = np.triu_indices(len(x), 1)
    apart = x[j] != x[i]
    slope = float(np.median((y[j] - y[i])[apart] / (x[j] - x[i])[apart])) if apart.any() else 0.0
    return slope, float(np.median(y - slope * x))


def kendall(y: Floats) -> float:
    """Kendall's τ of a series with time: 1 where it always rises, -1 where it always falls."""
    i, j = np.triu_indices(len(y), 1)
    return float(np.mean(np.sign(y[j] - y[i]))) if len(i) else 0.0


def thirds(y: Floats) -> tuple[float, float]:
    """Medians of the first and of the last third."""
    size = max(1, len(y) // 3)
    return float(np.median(y[:size])), float(np.median(y[-size:]))


def autocorrelation_time(series: Floats) -> float:
    """τ = 1 + 2 Σ ρ_k, up to the first lag k ≥ 5 τ, and at least 1.

    Sokal 1997, "Monte Carlo methods in statistical mechanics", section 3.

    Args:
        series: float64, (P,).
    """
    centred = series - series.mean() if len(series) else series
    variance = float(centred @ centred)
    tau = 1.0
    for lag in range(1, len(centred) if variance > 0.0 else 0):
        if lag >= 5.0 * tau:
            break
        tau = max(1.0, tau + 2.0 * float(centred[:-lag] @ centred[lag:]) / variance)
    return tau
