"""Statistics of few and noisy numbers: quantiles, robust lines, trends, autocorrelation."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def student_t(degrees_of_freedom: float, quantile: float = 0.975) -> float:
    """Return a quantile of Student's t above the median, such as 2.776 for 4 degrees of freedom.

    With t = √ν tan θ the density becomes cos^(ν−1) θ on (−π/2, π/2). The trapezoid rule integrates
    it, so that no library is needed for this one number.
    """
    theta = np.linspace(0.0, np.pi / 2, 100_001)
    density = np.cos(theta) ** (degrees_of_freedom - 1)
    mass = np.concatenate([[0.0], np.cumsum(density[1:] + density[:-1])])
    angle = float(np.interp(2.0 * quantile - 1.0, mass / mass[-1], theta))
    return math.sqrt(degrees_of_freedom) * math.tan(angle)


def interquartile_mean(values: Floats) -> Floats:
    """Return the mean of each column without its lowest and its highest quarter.

    The size of a quarter is rounded down: the middle three of five values count, and all of three.
    Agarwal et al. 2021, arXiv:2108.13264, section 4.3.

    Args:
        values: float64, (S, …).

    Returns:
        float64, (…). NaN if one of the values is NaN.
    """
    cut = len(values) // 4
    middle = np.sort(values, axis=0)[cut : len(values) - cut]
    return np.where(np.isnan(values).any(axis=0), np.nan, middle.mean(axis=0))


def bootstrap_interval(
    values: Floats, *, level: float = 0.95, resamples: int = 2_000
) -> tuple[Floats, Floats]:
    """Return a bootstrap percentile interval of the interquartile mean over seeds.

    Whole seeds are resampled, with the same draws at every call. The interval lies within the range
    of the seeds' values. Agarwal et al. 2021, arXiv:2108.13264, section 4.1, for one task.

    Args:
        values: float64, (S, G), one row for each seed.
        level: Share of the resamples that lie inside the interval.
        resamples: Number of resamples.

    Returns:
        Lower and upper bound, float64, (G,) both.
    """
    rows = np.random.default_rng(0).integers(len(values), size=(len(values), resamples))
    tails = [(1 - level) / 2, (1 + level) / 2]
    bounds = np.empty((2, values.shape[1]))
    for k in range(values.shape[1]):  # column by column: (S, R, G) may need gigabytes
        bounds[:, k] = np.quantile(interquartile_mean(values[:, k][rows]), tails)
    return bounds[0], bounds[1]


def stratified_interval(
    strata: Sequence[Floats],
    statistic: Callable[[list[Floats]], Floats],
    *,
    level: float = 0.95,
    resamples: int = 2_000,
) -> tuple[float, float]:
    """Return a bootstrap percentile interval of a statistic of several groups.

    Each group is resampled separately, with the same draws at every call. Agarwal et al. 2021,
    arXiv:2108.13264, section 4.1: a group holds the runs of one algorithm in one environment.

    Args:
        strata: float64, (S_k,) each, one value for each run.
        statistic: Maps the resampled groups, (S_k, R) each, to (R,).
        level: Share of the resamples that lie inside the interval.
        resamples: R, the number of resamples.

    Returns:
        Lower and upper bound.
    """
    rng = np.random.default_rng(0)
    redrawn = [
        stratum[rng.integers(len(stratum), size=(len(stratum), resamples))] for stratum in strata
    ]
    low, high = np.quantile(statistic(redrawn), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def probability_of_improvement(a: Floats, b: Floats) -> Floats:
    """Return the share of pairs in which B's value is above A's. Equal values count half.

    This is Mann and Whitney's U divided by the number of pairs. Agarwal et al. 2021,
    arXiv:2108.13264, section 4.3. For several environments, average the result.

    Args:
        a: float64, (S, …).
        b: float64, (T, …).

    Returns:
        float64, (…), from 0 to 1.
    """
    above = np.zeros(np.broadcast_shapes(a.shape[1:], b.shape[1:]))
    for value in a:  # value by value: all pairs of all resamples may need gigabytes
        above += (b > value).sum(axis=0) + 0.5 * (b == value).sum(axis=0)
    return above / (len(a) * len(b))


def theil_sen(x: Floats, y: Floats) -> tuple[float, float]:
    """Return slope and intercept of a robust line: the median of the slopes of all pairs.

    Up to 29 % of the points may be outliers. Sen 1968, doi:10.1080/01621459.1968.10480934.
    """
    i, j = np.triu_indices(len(x), 1)
    differs = x[j] != x[i]
    slope = (
        float(np.median((y[j] - y[i])[differs] / (x[j] - x[i])[differs])) if differs.any() else 0.0
    )
    return slope, float(np.median(y - slope * x))


def kendall(y: Floats) -> float:
    """Return Kendall's τ of a series with time: 1 if it always rises, -1 if it always falls."""
    i, j = np.triu_indices(len(y), 1)
    return float(np.mean(np.sign(y[j] - y[i]))) if len(i) else 0.0


def thirds(y: Floats) -> tuple[float, float]:
    """Return the medians of the first and of the last third."""
    size = max(1, len(y) // 3)
    return float(np.median(y[:size])), float(np.median(y[-size:]))


# Minimum length of a series for a trend, and of its later part, which is tested.
_MIN_TREND, _MIN_LATER = 8, 6
# Error rate of the test of the slope, and of the additional test of increments.
_SLOPE_QUANTILE, _INCREMENT_QUANTILE = 0.995, 0.85
_MAX_BLOCKS = 8
# Minimum part of the whole rise in the later part of the series.
_LATER_PART = 0.2


def keeps_rising(series: Floats, factor: float) -> bool:
    """Return whether a series rises until its end, beyond a warm-up and chance.

    The median of the last third must be larger than that of the first by a factor. The rest is
    tested on the part after the first third, in which a warm-up ends:

    * The slope of its line is compared with residuals that are an AR(1) process. This multiplies
      the variance by (1 + φ) / (1 - φ). For short series, the estimate of φ is biased by
      -(1 + 4 φ) / n: Kendall 1954, doi:10.1093/biomet/41.3-4.403.
    * For large φ the correction is too small. The increments between the means of blocks are
      independent even in a random walk, and their mean is compared with their variance.

    In simulations of steady noise with φ up to 0.8 and with a warm-up, 0.3 % of the series rise by
    a factor of 2.5, and 2.5 % in the worst case.

    Args:
        series: float64, (P,), not negative.
        factor: Minimum factor between the medians of the first and the last third.
    """
    if len(series) < _MIN_TREND:
        return False
    first, last = thirds(series)
    later = series[min(len(series) // 3, len(series) - _MIN_LATER) :]
    half = len(later) // 2
    before, after = np.median(later[:half]), np.median(later[-half:])
    if not (last > factor * first and after > (1 + _LATER_PART * (factor - 1)) * before):
        return False
    return _has_slope(later) and _has_increments(later)


def _has_slope(series: Floats) -> bool:
    """Return whether the slope of a line is positive beyond chance, with AR(1) residuals."""
    count = len(series)
    x = np.arange(count) - (count - 1) / 2
    slope = float(x @ series) / float(x @ x)
    residuals = series - series.mean() - slope * x
    variance = float(residuals @ residuals)
    if slope <= 0.0 or variance <= 1e-24 * float(series @ series):
        return slope > 0.0
    phi = float(residuals[1:] @ residuals[:-1]) / variance
    phi = min(max(phi + (1 + 4 * phi) / count, 0.0), 0.97)
    effective = count * (1 - phi) / (1 + phi)
    error = math.sqrt(variance / (count - 2) * count / effective / float(x @ x))
    return slope > student_t(max(effective - 2, 2.0), _SLOPE_QUANTILE) * error


def _has_increments(series: Floats) -> bool:
    """Return whether the increments between the means of blocks are positive beyond chance."""
    length = math.ceil(len(series) / _MAX_BLOCKS)
    blocks = series[len(series) % length :].reshape(-1, length).mean(1)
    increments = np.diff(blocks)
    error = float(increments.std(ddof=1)) / math.sqrt(len(increments))
    return increments.mean() > student_t(len(increments) - 1, _INCREMENT_QUANTILE) * error


def autocorrelation_time(series: Floats) -> float:
    """Return τ = 1 + 2 Σ ρ_k, summed up to the first lag k ≥ 5 τ, and at least 1.

    Sokal 1997, "Monte Carlo methods in statistical mechanics", section 3.

    Args:
        series: float64, (P,).
    """
    centered = series - series.mean() if len(series) else series
    variance = float(centered @ centered)
    tau = 1.0
    for lag in range(1, len(centered) if variance > 0.0 else 0):
        if lag >= 5.0 * tau:
            break
        tau = max(1.0, tau + 2.0 * float(centered[:-lag] @ centered[lag:]) / variance)
    return tau


def running_mean(values: Floats, window: int) -> Floats:
    """Return the mean of the last `window` values (fewer at the start), (E,), for (E,).

    A value affects its own windows only, also if it is huge, infinite or NaN.
    """
    count = len(values)
    if not count:
        return np.zeros(0)
    window = min(window, count)
    # In blocks of the size of a window, a window is the end of one block and the start of the next.
    blocks = np.concatenate([values, np.zeros(-count % window)]).reshape(-1, window)
    sums = np.cumsum(blocks, axis=1).ravel()[:count]
    ends = np.cumsum(blocks[:, ::-1], axis=1)[:, ::-1].ravel()
    last = np.arange(window, count)
    last = last[(last + 1) % window > 0]
    sums[last] += ends[last - window + 1]
    return sums / np.minimum(np.arange(1, count + 1), window)
