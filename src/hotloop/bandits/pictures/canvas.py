"""Parts that all pictures share: files, colours, bands, legends, titles."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from hotloop.bandits.results import Result
from hotloop.errors import ConfigError, MissingExtraError
from hotloop.system.files import written_whole
from hotloop.types import Array

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg", ".pdf")
"""Endings of files that a picture can be written to."""

# Two-sided 95 % of a normal law: means over hundreds of runs are as good as normal.
Z95 = 1.959964

# Paul Tol's "bright", then his "muted": told apart with any kind of colour vision.
COLORS = (
    *("#4477AA", "#EE6677", "#228833", "#CCBB44", "#66CCEE", "#AA3377"),
    *("#332288", "#999933", "#882255", "#44AA99", "#DDAA77", "#777777"),
)


def check_picture(path: str | Path, *, option: str = "path") -> Path:
    """Whether a picture can have this name; asked before the work, which may take minutes.

    Raises:
        ConfigError: its suffix is none of `FORMATS`.
    """
    path = Path(path)
    if path.suffix not in FORMATS:
        raise ConfigError(
            f"`{option}` must end in {', '.join(FORMATS[:-1])} or {FORMATS[-1]}, got '{path}'"
        )
    return path


def new_figure(width: float, height: float) -> Figure:
    """A figure without pyplot: no global state, no window, no backend to choose."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError(
            "drawing a picture needs matplotlib: pip install 'hotloop[bandit]'"
        ) from error
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def in_lines(text: str, width: int) -> str:
    """A text of so many characters a line, three lines at most: the axes need the room."""
    return fill(text, width, max_lines=3, placeholder=" …")


def write(figure: Figure, path: Path, title: str) -> None:
    width = int(figure.get_figwidth() * 11)
    figure.suptitle("\n".join(in_lines(line, width) for line in title.split("\n")))
    with written_whole(path) as aside:
        figure.savefig(aside, dpi=120)


def colors_for(num: int) -> list[Any]:
    if num <= len(COLORS):
        return list(COLORS[:num])
    from matplotlib import colormaps

    return list(colormaps["turbo"](np.linspace(0.03, 0.97, num)))


def draw_band(axes: Any, step: Array, mean: Array, se: Array, color: Any, label: str) -> None:
    marker = "o" if len(step) == 1 else None  # of which there is no line
    axes.plot(step, mean, color=color, label=label, linewidth=1.2, marker=marker)
    half_width = Z95 * np.nan_to_num(se)
    axes.fill_between(
        step, mean - half_width, mean + half_width, color=color, alpha=0.25, linewidth=0
    )


def legend_below(figure: Figure, axes: Any, *, note: str, last: str = "") -> None:
    """One legend for all panels, beneath them: labels are long, and curves are to be seen.

    `last` is the label that comes last, whatever it is the label of.
    """
    handles, labels = axes.get_legend_handles_labels()
    order = sorted(range(len(labels)), key=lambda k: labels[k] == last)
    handles, labels = [handles[k] for k in order], [labels[k] for k in order]
    widest = max(map(len, labels))
    columns = max(1, min(len(labels), int(figure.get_figwidth() * 11) // (widest + 8)))
    figure.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=columns,
        frameon=False,
        title=note,
        title_fontsize="small",
        fontsize="medium" if len(labels) <= 12 else "small",
    )


def labels_of(results: Sequence[Result]) -> list[str]:
    """What a legend calls each; the environment too if they differ in that.

    Raises:
        ConfigError: there is no result.
    """
    if not results:
        raise ConfigError("a picture needs one result or more, got none")
    labels = [result.agent.label for result in results]
    if have_one_environment(results):
        return labels
    places = [result.environment.label for result in results]
    return [f"{label}; {place}" for label, place in zip(labels, places, strict=True)]


def have_one_environment(results: Sequence[Result]) -> bool:
    first = results[0].environment
    return all(result.environment is first or result.environment == first for result in results[1:])


def title_of(results: Sequence[Result]) -> str:
    place = results[0].environment.label if have_one_environment(results) else "environments"
    first = results[0]
    return f"{place}\n{first.num_runs:,} runs of {first.num_steps:,} steps, seed {first.seed}"


def check_regret(results: Sequence[Result]) -> None:
    if not all(np.isfinite(result.regret).all() for result in results):
        raise ConfigError(
            f"the environment '{results[0].environment.label}' does not say its arms' true "
            "values, so there is no regret to draw: give it a `mean`"
        )
