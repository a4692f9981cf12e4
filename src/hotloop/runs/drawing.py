"""The learning curve of a training, drawn by a process of its own.

To import matplotlib and to draw takes a second, and most of it can be over when the training ends.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from hotloop.runs.live import left_s

if TYPE_CHECKING:
    from hotloop.runs import Report

# It is ready to draw some 0.8 s after it has started; training so few steps takes hardly longer.
_SOON_S, _FEW_STEPS = 2.0, 50_000
_AT_MOST_S = 30.0
_CODE = """
import sys
from hotloop.runs import RunDirectory
from hotloop.runs.plots import learning_curve, warm_up
warm_up()
path = sys.stdin.read()
if path:
    learning_curve(RunDirectory.open(path))
"""


class Drawing:
    """Draws a run's learning curve, with as little left to wait for as can be."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._has_begun = False

    def prepare(self, report: Report) -> None:
        """Start the process when the run is about to end."""
        if left_s(report) < _SOON_S:
            self._begin()

    def prepare_short(self, total_timesteps: int) -> None:
        """Start the process at once, where there is not much else to wait for."""
        if total_timesteps <= _FEW_STEPS:
            self._begin()

    def _begin(self) -> None:
        """Start the process, once."""
        if self._has_begun:
            return
        self._has_begun = True
        if "matplotlib" in sys.modules or "HOTLOOP_PROFILE" in os.environ:
            return  # it would gain nothing; a profile is of the training alone
        with contextlib.suppress(OSError):  # then it is drawn here
            self._process = subprocess.Popen(
                [sys.executable, "-c", _CODE],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for the training
                encoding="utf-8",
            )

    def draw(self, run_dir: Path) -> Path:
        """Draw it, here where the process can't; return the picture's path.

        Raises:
            MissingExtraError: matplotlib is not installed.
            OutputError, RunDirectoryError: the picture can't be written.
        """
        from hotloop.runs import RunDirectory
        from hotloop.runs.plots import CURVE_FILE, learning_curve

        if self.end(str(run_dir.resolve())):
            return run_dir / CURVE_FILE
        return learning_curve(RunDirectory.open(run_dir))

    def end(self, run_dir: str = "") -> bool:
        """End the process when it has drawn a run, if one is named; return whether it has."""
        process, self._process = self._process, None
        if process is None:
            return False
        try:
            process.communicate(run_dir, timeout=_AT_MOST_S)
        except (OSError, subprocess.TimeoutExpired):
            process.kill()
            process.wait()
        return bool(run_dir) and process.returncode == 0
