"""Progress and learning curve of a training that was started from Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hotloop.errors import HotloopError
from hotloop.runs import OnReport, Report, Result
from hotloop.runs.drawing import Drawing
from hotloop.runs.live import LiveLine


class Shown:
    """Prints where a training stands, and draws its curve when it has ended.

    Args:
        config: the training's.
        on_report: is told of each iteration besides.
        on_end: is told of the end besides.
    """

    def __init__(
        self,
        config: Any,
        on_report: OnReport | None,
        on_end: Callable[[Result | None], None] | None,
    ) -> None:
        self._on_report, self._on_end = on_report, on_end
        self._live, self._drawing = LiveLine(), Drawing()
        self._drawing.prepare_short(config.total_timesteps)

    def on_report(self, report: Report) -> bool | None:
        """Show an iteration; return whether whoever is told of it asks to stop."""
        self._live.show(report)
        self._drawing.prepare(report)
        return None if self._on_report is None else self._on_report(report)

    def on_end(self, result: Result | None) -> None:
        """Leave the last line standing, and draw the curve of a training that came to its end."""
        self._live.close()
        try:
            if result is not None:
                print(f"learning curve: {self._drawing.draw(result.run_dir)}", flush=True)
        except (HotloopError, OSError) as error:  # the training is whole without it
            print(f"no learning curve was drawn: {error}", flush=True)
        if self._on_end is not None:
            self._on_end(result)

    def close(self) -> None:
        """End what draws, whether or not there was something to draw."""
        self._drawing.end()
