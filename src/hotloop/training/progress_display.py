"""The progress line and the learning curve of a run that was started from Python."""

from __future__ import annotations

import shlex
from collections.abc import Callable

from hotloop.errors import HotloopError
from hotloop.runs import OnReport, Report, RunResult
from hotloop.training.background_plot import BackgroundPlot
from hotloop.training.live_line import LiveLine


def describe_stop(result: RunResult) -> str:
    """Return why a run stopped before its last step, and how to continue it."""
    return (
        f"stopped at {result.timesteps:,} steps: {result.stop_reason}; continue with hotloop "
        f"resume {shlex.quote(str(result.run_dir))}, and change the --stop option if its condition "
        "still holds"
    )


class ProgressDisplay:
    """A progress line during a run, and a drawing of its learning curve at the end."""

    def __init__(
        self,
        total_timesteps: int,
        on_report: OnReport | None,
        on_end: Callable[[RunResult | None], None] | None,
    ) -> None:
        self._on_report, self._on_end = on_report, on_end
        self._live, self._drawing = LiveLine(), BackgroundPlot()
        self._drawing.prepare_short(total_timesteps)

    def on_report(self, report: Report) -> bool | None:
        """Show an iteration, and return whether the callback requests a stop."""
        self._live.show(report)
        self._drawing.prepare(report)
        return None if self._on_report is None else self._on_report(report)

    def on_end(self, result: RunResult | None) -> None:
        """End the progress line, and draw the curve of a finished run."""
        self._live.close()
        if result is not None and result.stop_reason:
            print(describe_stop(result), flush=True)
        try:
            if result is not None:
                print(f"learning curve: {self._drawing.draw(result.run_dir)}", flush=True)
        except (HotloopError, OSError) as error:  # the run is complete without a curve
            print(f"no learning curve was drawn: {error}", flush=True)
        if self._on_end is not None:
            self._on_end(result)

    def close(self) -> None:
        """End the drawing process, whether or not it drew a curve."""
        self._drawing.finish()
