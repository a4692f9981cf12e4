"""SVG kit: charts over steps, for pages without matplotlib or scripts.

Each element has a CSS class, and the page sets the colors. Long series are reduced to the
resolution of a screen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from hotloop.base.html_page import escaped
from hotloop.types import Array

# Number of columns of a full-width chart, and maximum number of dots per column.
_COLUMNS, _DOTS = 360, 5
_LETTER = 6.6  # maximum width of a character, pixels
_TOP, _BOTTOM, _RIGHT = 12, 40, 14
_LEAST, _GREATEST = 1e-300, 1e300  # dividing by a difference outside of these fails
_UNITS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k"))  # k means 1e3, and is used from 1e4 on


@dataclass(frozen=True, eq=False, kw_only=True)
class ChartSeries:
    """Values over the steps of a run.

    Attributes:
        name: name of the values.
        steps: steps before each value, ascending, float64, (E,).
        values: finite values, float64, (E,).
    """

    name: str
    steps: Array
    values: Array

    def __len__(self) -> int:
        return len(self.steps)


@dataclass(frozen=True, eq=False, kw_only=True)
class ChartData:
    """The series of a chart. Each of them may be empty.

    Attributes:
        dots: values drawn as faint dots.
        lines: values drawn as a line.
        averaged: values drawn as the mean of each column, with a band from minimum to maximum.
        marks: a few values drawn as diamonds, joined by a line.
        mark_bounds: lower and upper ends of the bar through each mark, float64, (2, E). None draws
            no bars.
    """

    dots: ChartSeries | None = None
    lines: ChartSeries | None = None
    averaged: ChartSeries | None = None
    marks: ChartSeries | None = None
    mark_bounds: Array | None = None


def chart(
    data: ChartData, *, label: str, end: float, width: int, height: int, description: str = ""
) -> str:
    """Return an SVG chart over steps.

    Args:
        data: the series.
        label: label of the vertical axis, with its unit, drawn above the axis.
        end: steps of the run, the end of the horizontal axis.
        width, height: size in pixels of the page.
        description: text for screen readers.
    """
    least, greatest = _value_range(data)
    step, ticks = _ticks(least, greatest, num_ticks=max(3, height // 75))
    names = _tick_labels(ticks, step)
    left_x = 14 + _LETTER * max(map(len, names))
    top, bottom, right = _TOP + 18, height - _BOTTOM, width - _RIGHT
    end = max(end, 1.0)

    def x(steps: Array) -> Array:
        return left_x + np.asarray(steps) / end * (right - left_x)

    def y(values: Array) -> Array:
        return bottom - (np.asarray(values) - least) / (greatest - least) * (bottom - top)

    columns = max(1, round(_COLUMNS * width / 1100))
    parts = [
        f'<svg class="chart" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{escaped(description or label)}">',
        f'<text class="label" x="2" y="{_TOP}">{escaped(label)}</text>',
    ]
    # Draw the axes.
    for tick, name in zip(ticks, names, strict=True):
        tick_y = float(y(np.array(tick)))
        parts.append(f'<path class="grid" d="M{left_x:.1f} {tick_y:.1f}H{right}"/>')
        parts.append(
            f'<text x="{left_x - 6:.1f}" y="{tick_y + 4:.1f}" text-anchor="end">{name}</text>'
        )
    x_step, x_ticks = _ticks(0.0, end, num_ticks=max(3, round((right - left_x) / 160)))
    for tick, name in zip(x_ticks, _tick_labels(x_ticks, x_step), strict=True):
        tick_x = float(x(np.array(tick)))
        parts.append(f'<path class="grid" d="M{tick_x:.1f} {bottom}v5"/>')
        anchor = "end" if tick_x + _LETTER * len(name) / 2 > width else "middle"
        edge = min(tick_x, width - 1)
        parts.append(f'<text x="{edge:.1f}" y="{bottom + 18}" text-anchor="{anchor}">{name}</text>')
    parts.append(f'<path class="axis" d="M{left_x:.1f} {bottom}H{right}"/>')
    middle = (left_x + right) / 2
    parts.append(f'<text x="{middle:.1f}" y="{height - 6}" text-anchor="middle">steps</text>')
    # Draw the series.
    if data.dots is not None and len(data.dots):
        dots = thin_series(data.dots, end, columns)
        points = zip(x(dots.steps).tolist(), y(dots.values).tolist(), strict=True)
        d = "".join(f"M{px:.1f} {py:.1f}h0" for px, py in points)
        parts.append(f'<path class="dots" d="{d}"/>')
    if data.averaged is not None and len(data.averaged):
        steps, mean, low, high = column_averages(data.averaged, end, columns)
        if len(steps) < len(data.averaged):
            upper, lower = _points(x(steps), y(high)), _points(x(steps)[::-1], y(low)[::-1])
            parts.append(f'<path class="band" d="M{upper}L{lower}z"/>')
        parts.append(_line(x(steps), y(mean), "mean"))
    if data.lines is not None and len(data.lines):
        line = last_per_column(data.lines, end, columns)
        parts.append(_line(x(line.steps), y(line.values), "mean"))
    if data.marks is not None and len(data.marks):
        parts += _marks(data.marks, data.mark_bounds, x, y)
    parts.append("</svg>")
    return "".join(parts)


def thin_series(series: ChartSeries, end: float, columns: int) -> ChartSeries:
    """Return the minimum, the maximum and the quartiles of each column."""
    if len(series) <= columns * _DOTS:
        return series
    column = _column_indices(series.steps, end, columns)
    order = np.lexsort((series.values, column))
    counts = np.bincount(column, minlength=columns)
    first, counts = (np.cumsum(counts) - counts)[counts > 0], counts[counts > 0]
    shares = np.linspace(0.0, 1.0, _DOTS)
    places = first[:, None] + np.round(shares * (counts[:, None] - 1)).astype(np.int64)
    selected = np.unique(order[places.ravel()])
    return ChartSeries(
        name=series.name, steps=series.steps[selected], values=series.values[selected]
    )


def last_per_column(series: ChartSeries, end: float, columns: int) -> ChartSeries:
    """Return the first point, and the last point of each column."""
    column = _column_indices(series.steps, end, columns)
    is_last = np.append(column[1:] != column[:-1], True)
    is_last[0] = True
    return ChartSeries(name=series.name, steps=series.steps[is_last], values=series.values[is_last])


def column_averages(
    series: ChartSeries, end: float, columns: int
) -> tuple[Array, Array, Array, Array]:
    """Return statistics of each column that has points.

    Returns:
        Mean steps, mean, minimum and maximum of the values, float64, (C,). A series that has no
        more points than columns is returned unchanged.
    """
    steps, values = series.steps, series.values
    if len(series) <= columns:
        return steps, values, values, values
    column = _column_indices(steps, end, columns)
    starts = np.flatnonzero(np.concatenate([[True], column[1:] != column[:-1]]))
    counts = np.diff(np.append(starts, len(steps)))
    return (
        np.add.reduceat(steps, starts) / counts,
        np.add.reduceat(values, starts) / counts,
        np.minimum.reduceat(values, starts),
        np.maximum.reduceat(values, starts),
    )


def _column_indices(steps: Array, end: float, columns: int) -> Array:
    return np.minimum((steps * (columns / end)).astype(np.int64), columns - 1)


def _value_range(data: ChartData) -> tuple[float, float]:
    """Return the range of the vertical axis. A constant gets a margin on both sides."""
    values = [
        series.values
        for series in (data.dots, data.lines, data.averaged, data.marks)
        if series is not None and len(series)
    ]
    if data.mark_bounds is not None and data.mark_bounds.size:
        values.append(data.mark_bounds)
    if not values or not any(x.any() for x in values):
        return 0.0, 1.0
    least = float(min(x.min() for x in values))
    greatest = float(max(x.max() for x in values))
    if greatest - least <= max(1e-9 * max(abs(least), abs(greatest)), _LEAST):
        margin = 0.1 * abs(least) if abs(least) > _LEAST else 1.0
        return least - margin, greatest + margin
    return least, greatest


def _ticks(least: float, greatest: float, *, num_ticks: int) -> tuple[float, list[float]]:
    """Return the step between ticks, and at least `num_ticks` round numbers in the range."""
    power = 10.0 ** math.floor(math.log10((greatest - least) / num_ticks))
    for size in (5, 2, 1, 0.5, 0.2):
        step = size * power
        first, last = math.ceil(least / step - 1e-9), math.floor(greatest / step + 1e-9)
        if last - first + 1 >= num_ticks:
            break
    return step, [k * step for k in range(first, last + 1)]


def _tick_labels(ticks: Sequence[float], step: float) -> list[str]:
    """Return the labels of an axis, with one unit and as many digits as `step` needs: `2.5M`."""
    largest = max([step, *map(abs, ticks)])
    if largest >= 1e15 or largest < 1e-3:
        return [f"{tick:.3g}".replace("-", "−") for tick in ticks]
    size, unit = next((unit for unit in _UNITS if largest >= unit[0]), (1.0, ""))
    size = 1e3 if unit == "k" else size
    return ["0" if tick == 0 else _fixed_digits(tick / size, step / size) + unit for tick in ticks]


def _fixed_digits(value: float, step: float) -> str:
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    return f"{value:,.{digits}f}".replace("-", "−")


def _line(x: Array, y: Array, kind: str) -> str:
    if len(x) == 1:
        return f'<path class="{kind} point" d="M{x[0]:.1f} {y[0]:.1f}h0"/>'
    return f'<path class="{kind}" d="M{_points(x, y)}"/>'


def _points(x: Array, y: Array) -> str:
    return "L".join(f"{a:.1f} {b:.1f}" for a, b in zip(x.tolist(), y.tolist(), strict=True))


def _marks(
    marks: ChartSeries,
    bounds: Array | None,
    x: Callable[[Array], Array],
    y: Callable[[Array], Array],
) -> list[str]:
    """Return the SVG paths of the bars, the line and the diamonds."""
    mark_x, mark_y = x(marks.steps), y(marks.values)
    parts: list[str] = []
    if bounds is not None:
        bars = zip(mark_x.tolist(), *y(bounds).tolist(), strict=True)
        bars = "".join(f"M{bar_x:.1f} {low:.1f}V{high:.1f}" for bar_x, low, high in bars)
        parts.append(f'<path class="spread" d="{bars}"/>')
    if len(marks) > 1:
        parts.append(f'<path class="eval" d="M{_points(mark_x, mark_y)}"/>')
    if len(marks) <= _COLUMNS // 3:
        centers = zip(mark_x.tolist(), mark_y.tolist(), strict=True)
        diamonds = "".join(f"M{a:.1f} {b - 5:.1f}l5 5l-5 5l-5 -5z" for a, b in centers)
        parts.append(f'<path class="diamonds" d="{diamonds}"/>')
    return parts


def finite_series(
    name: str, steps: Sequence[float] | Array, values: Sequence[float] | Array
) -> ChartSeries:
    """Return a series of the finite values, clipped to ±1e300."""
    steps, values = np.asarray(steps, np.float64), np.asarray(values, np.float64)
    is_finite = np.isfinite(values)
    return ChartSeries(
        name=name, steps=steps[is_finite], values=values[is_finite].clip(-_GREATEST, _GREATEST)
    )
