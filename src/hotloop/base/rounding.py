"""Numbers as text, with the decimals that their spread needs."""

from __future__ import annotations

import math

# A spread of this size, in units of the value, is a rounding error of sums.
_ROUNDING_ERROR = 1e-9
# With more decimals, or from this magnitude on, numbers are printed with an exponent.
_MAX_DECIMALS = 9
_LARGE = 1e9


def format_number(
    value: float, spread: float | None = None, *, sign: str = "", least: int = 1
) -> str:
    """Return a number with the decimals that show two digits of its spread.

    Args:
        value: the number.
        spread: the size of differences between such numbers, such as their standard deviation. None
            or 0: unknown. Then the text has four digits, or one decimal from 10 on.
        sign: "+" to print the sign of positive numbers too, else "".
        least: minimum number of decimals.
    """
    decimals = _decimals(value, spread)
    if decimals is not None:
        return f"{value:{sign},.{max(least, decimals)}f}"
    if 10.0 <= abs(value) < _LARGE:
        return f"{value:{sign},.1f}"
    text = f"{value:{sign}.4g}"
    return f"{value:{sign}.{least}f}" if text.lstrip("+-").isdigit() else text


def format_rate(rate: float) -> str:
    """Return a number per second, whole or with the two digits that show a slow one."""
    return f"{rate:,.0f}" if rate >= 10.0 else f"{rate:.2g}"


def format_mean(mean: float, spread: float, *, sign: str = "", least: int = 1) -> str:
    """Return a mean and its standard deviation or error, such as `1.368 ± 0.013`.

    See `format_number` for the arguments.
    """
    text = format_number(mean, spread, sign=sign, least=least)
    if _decimals(mean, spread) is not None:
        return f"{text} ± {format_number(spread, spread, least=least)}"
    if "e" in text or not abs(spread) < _LARGE:
        return f"{text} ± {spread:.2g}"
    return f"{text} ± {0.0:.{len(text.partition('.')[2])}f}"


def format_interval(middle: float, bounds: tuple[float, float] | None, *, sign: str = "") -> str:
    """Return a number and the interval around it, such as `1.37 (1.35 to 1.39)`, or – for NaN."""
    if math.isnan(middle):
        return "–"
    if bounds is None:
        return format_number(middle, sign=sign)
    spread = bounds[1] - bounds[0]
    low, high = (format_number(bound, spread, sign=sign) for bound in bounds)
    return f"{format_number(middle, spread, sign=sign)} ({low} to {high})"


def _decimals(value: float, spread: float | None) -> int | None:
    """Return the number of decimals, None if the spread is unknown or needs an exponent."""
    if spread is None or not _ROUNDING_ERROR * abs(value) < spread < _LARGE:
        return None
    decimals = max(0, 1 - math.floor(math.log10(spread)))
    return decimals if decimals <= _MAX_DECIMALS and abs(value) < _LARGE else None
