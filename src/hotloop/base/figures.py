"""Figures of matplotlib: files, sizes, and no global state."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from hotloop.base.files import atomic_write
from hotloop.base.importing import import_matplotlib
from hotloop.errors import ConfigError, requires_extra

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg", ".pdf")
"""Supported suffixes of plot files."""


def check_plot_path(path: str | Path, *, option: str = "path") -> Path:
    """Return `path` as a plot's path. Call it before the computation, which may take minutes.

    Raises:
        ConfigError: the suffix is none of `FORMATS`.
    """
    path = Path(path)
    if path.suffix not in FORMATS:
        raise ConfigError(
            f"`{option}` must end in {', '.join(FORMATS[:-1])} or {FORMATS[-1]}, got '{path}'"
        )
    return path


def new_figure(
    width: float, height: float, *, extra: str = "train", purpose: str = "drawing a curve"
) -> Figure:
    """Return a figure without pyplot, which has global state, windows and backends.

    Args:
        width, height: size in inches.
        extra: name of the extra that installs matplotlib, for the error message.
        purpose: the drawing, for the error message.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    with requires_extra(f"{purpose} needs matplotlib", extra):
        import_matplotlib()
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: Figure, path: Path, *, dpi: int = 120, **options: Any) -> None:
    """Write a figure in the format of the path's suffix.

    Raises:
        OutputError: the file cannot be written.
    """
    with atomic_write(path) as temporary:
        figure.savefig(temporary, dpi=dpi, **options)
