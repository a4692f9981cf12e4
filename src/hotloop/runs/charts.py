"""Charts of a run as SVG: drawn by hand, so that a page needs neither matplotlib nor a script.

Colours are the page's: each part has a class. However many points there are, no more are drawn than
a screen has columns.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from hotloop.types import Array

# Columns that a chart of full width is drawn with, and how many dots each may have.
_COLUMNS, _DOTS = 360, 5
_LETTER = 6.6  # pixels, of the font below, at most
_TOP, _BOTTOM, _RIGHT = 12, 40, 14
_LEAST, _GREATEST = 1e-300, 1e300  # differences beyond can't be divided by
_UNITS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k"))  # of 1e3, from ten of them on


@dataclass(frozen=True, eq=False, kw_only=True)
class Series:
    """Numbers over the steps of a run.

    Attributes:
        name: what they are.
        at: float64, (E,), ascending: after how many steps.
        values: float64, (E,), finite.
    """

    name: str
    at: Array
    values: Array

    def __len__(self) -> int:
        return len(self.at)


@dataclass(frozen=True, eq=False, kw_only=True)
class Drawn:
    """What a chart shows; each may be empty.

    Attributes:
        dots: drawn faintly, one by one.
        lines: drawn as they are.
        averaged: drawn as the mean of each column, and a band from its least to its greatest.
        marks: few points that stand out, joined.
        spread: float64, (2, E), where a bar through each mark begins and ends; None: no bars.
    """

    dots: Series | None = None
    lines: Series | None = None
    averaged: Series | None = None
    marks: Series | None = None
    spread: Array | None = None


def chart(drawn: Drawn, *, label: str, end: float, width: int, height: int, about: str = "") -> str:
    """Draw a chart over steps.

    Args:
        drawn: what it shows.
        label: of the vertical axis, with its unit; stands above it.
        end: of the run, in steps: the horizontal axis goes from 0 to there.
        width: in pixels of the page.
        height: in pixels of the page.
        about: what it shows, for who can't see it.
    """
    least, greatest = _extent(drawn)
    step, ticks = _ticks(least, greatest, about=max(3, height // 75))
    names = _numbers(ticks, step)
    left = 14 + _LETTER * max(map(len, names))
    top, bottom, right = _TOP + 18, height - _BOTTOM, width - _RIGHT
    end = max(end, 1.0)

    def x(at: Array) -> Array:
        return left + np.asarray(at) / end * (right - left)

    def y(values: Array) -> Array:
        return bottom - (np.asarray(values) - least) / (greatest - least) * (bottom - top)

    columns = max(1, round(_COLUMNS * width / 1100))
    parts = [
        f'<svg class="chart" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{_escaped(about or label)}">',
        f'<text class="label" x="2" y="{_TOP}">{_escaped(label)}</text>',
    ]
    for tick, name in zip(ticks, names, strict=True):
        at = float(y(np.array(tick)))
        parts.append(f'<path class="grid" d="M{left:.1f} {at:.1f}H{right}"/>')
        parts.append(f'<text x="{left - 6:.1f}" y="{at + 4:.1f}" text-anchor="end">{name}</text>')
    across, marks = _ticks(0.0, end, about=max(3, round((right - left) / 160)))
    for tick, name in zip(marks, _numbers(marks, across), strict=True):
        at = float(x(np.array(tick)))
        parts.append(f'<path class="grid" d="M{at:.1f} {bottom}v5"/>')
        anchor = "end" if at + _LETTER * len(name) / 2 > width else "middle"
        edge = min(at, width - 1)
        parts.append(f'<text x="{edge:.1f}" y="{bottom + 18}" text-anchor="{anchor}">{name}</text>')
    parts.append(f'<path class="axis" d="M{left:.1f} {bottom}H{right}"/>')
    middle = (left + right) / 2
    parts.append(f'<text x="{middle:.1f}" y="{height - 6}" text-anchor="middle">steps</text>')
    if drawn.dots is not None and len(drawn.dots):
        shown = thinned(drawn.dots, end, columns)
        points = zip(x(shown.at).tolist(), y(shown.values).tolist(), strict=True)
        d = "".join(f"M{px:.1f} {py:.1f}h0" for px, py in points)
        parts.append(f'<path class="dots" d="{d}"/>')
    if drawn.averaged is not None and len(drawn.averaged):
        at, mean, low, high = averages(drawn.averaged, end, columns)
        if len(at) < len(drawn.averaged):
            there, back = _points(x(at), y(high)), _points(x(at)[::-1], y(low)[::-1])
            parts.append(f'<path class="band" d="M{there}L{back}z"/>')
        parts.append(_line(x(at), y(mean), "mean"))
    if drawn.lines is not None and len(drawn.lines):
        shown = last_of_columns(drawn.lines, end, columns)
        parts.append(_line(x(shown.at), y(shown.values), "mean"))
    if drawn.marks is not None and len(drawn.marks):
        parts += _marks(drawn.marks, drawn.spread, x, y)
    parts.append("</svg>")
    return "".join(parts)


def thinned(series: Series, end: float, columns: int) -> Series:
    """Leave so many points that each column has its least, its greatest and its quartiles."""
    if len(series) <= columns * _DOTS:
        return series
    column = _columns(series.at, end, columns)
    order = np.lexsort((series.values, column))
    counts = np.bincount(column, minlength=columns)
    first, counts = (np.cumsum(counts) - counts)[counts > 0], counts[counts > 0]
    shares = np.linspace(0.0, 1.0, _DOTS)
    places = first[:, None] + np.round(shares * (counts[:, None] - 1)).astype(np.int64)
    kept = np.unique(order[places.ravel()])
    return Series(name=series.name, at=series.at[kept], values=series.values[kept])


def last_of_columns(series: Series, end: float, columns: int) -> Series:
    """Leave the last point of each column, and the very first."""
    column = _columns(series.at, end, columns)
    is_last = np.append(column[1:] != column[:-1], True)
    is_last[0] = True
    return Series(name=series.name, at=series.at[is_last], values=series.values[is_last])


def averages(series: Series, end: float, columns: int) -> tuple[Array, Array, Array, Array]:
    """Sum up each column that has points.

    Returns:
        Where they are on average, their mean, their least and their greatest, float64, (C,); all
        points as they are where there are no more of them than columns.
    """
    at, values = series.at, series.values
    if len(series) <= columns:
        return at, values, values, values
    column = _columns(at, end, columns)
    starts = np.flatnonzero(np.concatenate([[True], column[1:] != column[:-1]]))
    counts = np.diff(np.append(starts, len(at)))
    return (
        np.add.reduceat(at, starts) / counts,
        np.add.reduceat(values, starts) / counts,
        np.minimum.reduceat(values, starts),
        np.maximum.reduceat(values, starts),
    )


def _columns(at: Array, end: float, columns: int) -> Array:
    return np.minimum((at * (columns / end)).astype(np.int64), columns - 1)


def _extent(drawn: Drawn) -> tuple[float, float]:
    """The least and the greatest value that is drawn, with some room where they are one."""
    values = [
        one.values
        for one in (drawn.dots, drawn.lines, drawn.averaged, drawn.marks)
        if one is not None and len(one)
    ]
    if drawn.spread is not None and drawn.spread.size:
        values.append(drawn.spread)
    if not values or not any(one.any() for one in values):
        return 0.0, 1.0
    least = float(min(one.min() for one in values))
    greatest = float(max(one.max() for one in values))
    if greatest - least <= max(1e-9 * max(abs(least), abs(greatest)), _LEAST):
        room = 0.1 * abs(least) if abs(least) > _LEAST else 1.0
        return least - room, greatest + room
    return least, greatest


def _ticks(least: float, greatest: float, *, about: int) -> tuple[float, list[float]]:
    """Round numbers between two, that many or some more, and the distance between them."""
    power = 10.0 ** math.floor(math.log10((greatest - least) / about))
    for size in (5, 2, 1, 0.5, 0.2):
        step = size * power
        first, last = math.ceil(least / step - 1e-9), math.floor(greatest / step + 1e-9)
        if last - first + 1 >= about:
            break
    return step, [k * step for k in range(first, last + 1)]


def _numbers(ticks: Sequence[float], step: float) -> list[str]:
    """Ticks of one axis, as exact as the distance between two asks for, all in one unit.

    `0`, `0.05`, `500`, `2.5M`, `1e−05`.
    """
    largest = max([step, *map(abs, ticks)])
    if largest >= 1e15 or largest < 1e-3:
        return [f"{tick:.3g}".replace("-", "−") for tick in ticks]
    size, unit = next((one for one in _UNITS if largest >= one[0]), (1.0, ""))
    size = 1e3 if unit == "k" else size
    return ["0" if tick == 0 else _exact(tick / size, step / size) + unit for tick in ticks]


def _exact(value: float, step: float) -> str:
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    return f"{value:,.{digits}f}".replace("-", "−")


def _line(x: Array, y: Array, kind: str) -> str:
    if len(x) == 1:
        return f'<path class="{kind} point" d="M{x[0]:.1f} {y[0]:.1f}h0"/>'
    return f'<path class="{kind}" d="M{_points(x, y)}"/>'


def _points(x: Array, y: Array) -> str:
    return "L".join(f"{a:.1f} {b:.1f}" for a, b in zip(x.tolist(), y.tolist(), strict=True))


def _marks(
    marks: Series,
    spread: Array | None,
    x: Callable[[Array], Array],
    y: Callable[[Array], Array],
) -> list[str]:
    """Diamonds, joined, each with its bar."""
    across, up = x(marks.at), y(marks.values)
    parts: list[str] = []
    if spread is not None:
        bars = zip(across.tolist(), *y(spread).tolist(), strict=True)
        bars = "".join(f"M{at:.1f} {a:.1f}V{b:.1f}" for at, a, b in bars)
        parts.append(f'<path class="spread" d="{bars}"/>')
    if len(marks) > 1:
        parts.append(f'<path class="eval" d="M{_points(across, up)}"/>')
    if len(marks) <= _COLUMNS // 3:
        where = zip(across.tolist(), up.tolist(), strict=True)
        diamonds = "".join(f"M{a:.1f} {b - 5:.1f}l5 5l-5 5l-5 -5z" for a, b in where)
        parts.append(f'<path class="diamonds" d="{diamonds}"/>')
    return parts


def _escaped(text: str) -> str:
    return html.escape(text, quote=True)


def finite(name: str, at: Sequence[float] | Array, values: Sequence[float] | Array) -> Series:
    """Make a series of what is finite; what is too great to be reckoned with is cut."""
    at, values = np.asarray(at, np.float64), np.asarray(values, np.float64)
    kept = np.isfinite(values)
    return Series(name=name, at=at[kept], values=values[kept].clip(-_GREATEST, _GREATEST))
