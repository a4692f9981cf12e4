"""The output of a notebook's cell during a training: the progress line and the learning curve."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any

from hotloop.base.html_page import preformatted
from hotloop.base.svg_charts import ChartData, chart, finite_series

if TYPE_CHECKING:
    from hotloop.runs import Report

# Colors that are legible on a light and on a dark notebook.
_STYLE = (
    "<style>.hotloop-curve{max-width:640px}.hotloop-curve .mean{stroke:#3b82c4}"
    ".hotloop-curve .eval,.hotloop-curve .diamonds{stroke:#3a9b52}"
    ".hotloop-curve .grid,.hotloop-curve .axis{stroke:#8886}"
    ".hotloop-curve text{fill:#888;font:12px sans-serif}.hotloop-curve path{fill:none}</style>"
)
_MOST_POINTS = 1_000


class NotebookCell:
    """Output of a running cell, replaced at each update."""

    def __init__(self, display: Any, html: Any) -> None:
        self._display, self._html = display, html
        self._handle: Any = None
        self._curve: list[tuple[int, float]] = []
        self._evaluations: list[tuple[int, float]] = []

    @classmethod
    def current(cls) -> NotebookCell | None:
        """Return the output of the running cell, or None outside of a Jupyter kernel."""
        ipython = sys.modules.get("IPython")
        shell = None if ipython is None else ipython.get_ipython()
        if not hasattr(shell, "kernel"):  # IPython in a terminal has none
            return None
        from IPython.display import HTML, display

        return cls(display, HTML)

    def add(self, report: Report) -> None:
        """Add the returns of a report to the curve."""
        if math.isfinite(report.mean_return):
            self._curve.append((report.timesteps, report.mean_return))
        if report.evaluation is not None:
            self._evaluations.append((report.timesteps, report.evaluation.mean_return))
        if len(self._curve) > _MOST_POINTS:  # each point is a mean of 100 episodes
            del self._curve[1:-1:2]

    def show(self, line: str, total_timesteps: int) -> None:
        """Show a line and the curve, in place of the last ones."""
        content = self._html(preformatted(line) + self._chart(total_timesteps))
        if self._handle is None:
            self._handle = self._display(content, display_id=True)
        else:
            self._handle.update(content)

    def _chart(self, total_timesteps: int) -> str:
        if not self._curve and not self._evaluations:
            return ""
        end = max([total_timesteps, *(steps for steps, _ in self._curve[-1:])])
        svg = chart(
            ChartData(
                lines=_series("mean return", self._curve),
                marks=_series("evaluation", self._evaluations),
            ),
            label="mean return of 100 episodes",
            end=end,
            width=640,
            height=240,
        )
        return f"{_STYLE}<div class='hotloop-curve'>{svg}</div>"


def _series(name: str, points: list[tuple[int, float]]) -> Any:
    return finite_series(name, [steps for steps, _ in points], [value for _, value in points])
