"""The learning curve of a training, drawn by a separate process.

Importing matplotlib and drawing take a second. Most of it happens before the training ends.
"""

from __future__ import annotations

import contextlib
import gc
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from hotloop.base.children import python_command
from hotloop.runs.policies import policy_runs
from hotloop.training.live_line import remaining_s

if TYPE_CHECKING:
    from hotloop.runs import Report

# The process can draw after about 0.8 s. A training of this many steps hardly takes longer.
_PREPARE_S, _SHORT_RUN_STEPS = 2.0, 50_000
_TIMEOUT_S = 30.0


class BackgroundPlot:
    """A process that draws the learning curve of a run when the run ends."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._is_started = False

    def prepare(self, report: Report) -> None:
        """Start the process if the run is about to end, and let it draw after the last step.

        It draws while this process saves the last checkpoint and prints the summary.
        """
        if remaining_s(report) < _PREPARE_S:
            self._start()
        if report.timesteps >= report.total_timesteps and not policy_runs(report.run_dir):
            self._send(str(report.run_dir.resolve()))

    def prepare_short(self, total_timesteps: int) -> None:
        """Start the process now if the run is short."""
        if total_timesteps <= _SHORT_RUN_STEPS:
            self._start()

    def _start(self) -> None:
        """Start the process unless it was started before."""
        if self._is_started:
            return
        self._is_started = True
        if "matplotlib" in sys.modules or "HOTLOOP_PROFILE" in os.environ:
            return  # matplotlib is imported already, or a profile should show only the training
        with contextlib.suppress(OSError):  # `draw` then draws in this process
            self._process = subprocess.Popen(
                python_command("hotloop.training.background_plot"),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C should stop the training only
                encoding="utf-8",
            )

    def draw(self, run_dir: Path) -> Path:
        """Draw the learning curve and return its path. Draw in this process if the other one fails.

        Raises:
            MissingExtraError: matplotlib is not installed.
            OutputError, RunDirectoryError: the image cannot be written.
        """
        from hotloop.runs import RunDirectory
        from hotloop.runs.learning_curve import CURVE_FILE, learning_curve

        self._send(str(run_dir.resolve()))
        if self.finish():
            return run_dir / CURVE_FILE
        return learning_curve(RunDirectory.open(run_dir))

    def finish(self) -> bool:
        """Wait until the process has exited. Return whether it ended well."""
        process, self._process = self._process, None
        if process is None:
            return False
        try:
            process.communicate(timeout=_TIMEOUT_S)
        except (OSError, subprocess.TimeoutExpired):
            process.kill()
            process.wait()
        return process.returncode == 0

    def _send(self, run_dir: str) -> None:
        """Send the directory to draw to the process, unless one was sent before."""
        if self._process is None or self._process.stdin is None:
            return
        # It may have died, or the path may be no UTF-8. `draw` then draws in this process.
        with contextlib.suppress(OSError, UnicodeError), self._process.stdin as stream:
            stream.write(run_dir)
        self._process.stdin = None  # which `communicate` would close again


def _main() -> None:
    """Prepare to draw, and draw the run whose directory arrives on standard input."""
    from hotloop.runs import RunDirectory
    from hotloop.runs.learning_curve import learning_curve, warm_up

    warm_up()
    path = sys.stdin.read()
    if path:
        learning_curve(RunDirectory.open(path))


if __name__ == "__main__":
    gc.disable()  # the process ends soon, and has little garbage
    _main()
    os._exit(0)  # without removing each object of matplotlib, which takes 0.1 s
