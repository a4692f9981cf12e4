"""The settings of torch and the timing of a process that trains one run, or several as lanes."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

from hotloop import timing
from hotloop.learner import choose_device, torch_threads
from hotloop.learner.threads import ThreadLimiter, available_threads
from hotloop.ops.products import Precision, gpu_arithmetic
from hotloop.runs import RunDirectory
from hotloop.training.options import NetworkOptions, RunOptions


class TrainingProcess:
    """The process-wide settings and timing of the runs in one process.

    It sets torch's threads and the GPU's arithmetic until `exits` closes.

    Args:
        config: the configuration of the only or of the first run.
        exits: receives the functions that restore the settings.
        num_runs: the number of runs.
        is_resumed: whether the run is resumed, possibly without its original GPU.

    Attributes:
        num_runs: the number of runs.
        threads: the update's threads if their number adapts to the load, None if it is fixed.
        run_dirs: the run directories. Timing is recorded in the first.

    Raises:
        ConfigError: the device does not exist, or does not support the precision.
    """

    def __init__(
        self,
        config: RunOptions,
        exits: contextlib.ExitStack,
        *,
        num_runs: int = 1,
        is_resumed: bool = False,
    ) -> None:
        self.num_runs = num_runs
        self.run_dirs: list[Path] = []
        device = choose_device(config.device)
        precision: Precision = config.precision if isinstance(config, NetworkOptions) else "float32"
        if is_resumed and device.type == "cpu" and precision == "tf32":
            precision = "float32"  # the first report also names the changed device
        self._gpu = exits.enter_context(gpu_arithmetic(precision, device))
        self.threads: ThreadLimiter | None = None
        if isinstance(config.torch_threads, int):
            exits.enter_context(torch_threads(config.torch_threads))
        else:
            self.threads = exits.enter_context(ThreadLimiter(available_threads()).limiting())
        exits.callback(self._end_timing)

    def add(self, directory: RunDirectory) -> None:
        """Add another run, and record timing and the GPU's settings in its directory."""
        self.run_dirs.append(directory.path)
        if len(self.run_dirs) == 1:
            timing.start(directory.path / "timing", component="learner")
        if self._gpu:
            directory.add_versions(self._gpu)

    def _end_timing(self) -> None:
        """End the recording, and copy it to the other runs' directories."""
        timing.stop()
        for path in self.run_dirs[1:]:
            with contextlib.suppress(OSError):
                shutil.copytree(self.run_dirs[0] / "timing", path / "timing", dirs_exist_ok=True)
