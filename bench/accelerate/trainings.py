"""Measurement of trainings for some seconds in this process."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import math
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from bench.accelerate.rows import ROWS

# Profiler windows at the end of a run, after the speed was measured.
WINDOW_S, WINDOWS_AT_S, WINDOWS_TAKE_S = 0.25, (0.2, 1.2), 3.0
_LOAD_PERIOD_S = 0.25
_TOTAL = 1_000_000_000


def train(
    row: str | None = None,
    *,
    device: str,
    mode: str,
    warm_s: float,
    seconds: float,
    algorithm: str = "ppo",
    options: dict[str, Any] | None = None,
    seed: int = 1,
    lanes: int = 1,
    windows: bool = True,
    reaches: float | None = None,
) -> dict[str, Any]:
    """Train in this process and measure its speed.

    Args:
        row: key of `ROWS` for algorithm and options.
        device: device of the updates.
        mode: value of the option `execution`.
        warm_s: seconds after the first update that are not measured.
        seconds: measured time after warming up.
        algorithm: algorithm if there is no row.
        options: options of the configuration, which override those of the row.
        seed: seed of the run or of the first lane.
        lanes: number of seeds that are trained in one update.
        windows: whether to profile the GPU for 3 s afterwards.
        reaches: mean return that the run must reach.

    Returns:
        `steps_per_s` of all lanes together, `start_s` until the first update, `passed` ([steps,
        seconds since the start, mean return] of some reports), `load` ([seconds, percent] of the
        GPU's utilization by NVML), and from the profiler's windows `busy` (share of time),
        `launches` and `kernels` (per update), or None.
    """
    from hotloop.profiler.session.gpu import summarize_windows
    from hotloop.profiler.session.kineto import read_windows
    from hotloop.timing.gpu_window import GpuWindows
    from hotloop.training.lanes import train_lanes

    chosen = _options(row, algorithm, device, lanes, options or {})
    config_options = {"device": device, "execution": mode, "torch_threads": 1, **chosen}
    trainer = importlib.import_module(f"hotloop.algorithms.{_algorithm(row, algorithm)}").algorithm
    clock = _Clock(warm_s, seconds, windows and device != "cpu")
    with tempfile.TemporaryDirectory() as folder:
        gpu_windows = GpuWindows(
            Path(folder), "bench", length_s=WINDOW_S, start_times_s=WINDOWS_AT_S
        )
        clock.windows = gpu_windows
        config = trainer.config(**config_options, seed=seed, runs_dir=folder)
        try:
            if lanes == 1:
                trainer.train(config, on_report=lambda r: clock.report(0, r), progress=False)
            else:
                configs = [
                    dataclasses.replace(config, seed=seed + k, run_dir=f"{folder}/seed_{k}")
                    for k in range(lanes)
                ]
                for result in train_lanes(trainer, configs, on_report=clock.report):
                    if isinstance(result, Exception):
                        raise result
        finally:
            clock.stop()
        recorded, problems = read_windows([Path(folder)])
    figures = {"env_id": config.env_id, "execution": clock.execution, **clock.figures()}
    figures |= {"problems": problems, "busy": None, "launches": None, "kernels": None}
    if recorded:
        use = summarize_windows(recorded)
        figures["busy"] = use.busy_share
        if use.num_updates:
            figures["launches"] = use.launches_per_update
            figures["kernels"] = use.num_kernels / use.num_updates
    if reaches is not None and not figures["mean_return"] >= reaches:
        raise AssertionError(f"the mean return is {figures['mean_return']}, not {reaches}")
    return figures


def _algorithm(row: str | None, algorithm: str) -> str:
    return algorithm if row is None else ROWS[row].algorithm


def _options(
    row: str | None, algorithm: str, device: str, lanes: int, options: dict[str, Any]
) -> dict[str, Any]:
    """Return the options of a training's configuration."""
    chosen: dict[str, Any] = {"total_timesteps": _TOTAL}
    if row is not None:
        chosen |= {"env_id": ROWS[row].env_id, **ROWS[row].options}
    if _algorithm(row, algorithm) != "ppo":
        # A report synchronizes with the device, so a GPU gets only few reports per second.
        chosen["report_interval"] = (100 if device == "cpu" else 500) // math.ceil(lanes**0.5)
    chosen |= options
    if chosen["env_id"].startswith("envpool:") and importlib.util.find_spec("envpool") is None:
        # ALE's own vector environment plays the same games, but slower.
        chosen |= {"env_id": chosen["env_id"].replace("envpool:", "ALE/"), "env_kwargs": {}}
    return chosen


class _Clock:
    """A report callback that measures a training, profiles the GPU and stops the training.

    Args:
        warm_s, seconds: see `train`.
        profiles: whether to profile the GPU after the measurement.
    """

    def __init__(self, warm_s: float, seconds: float, profiles: bool) -> None:
        self._warm_s, self._seconds, self._profiles = warm_s, seconds, profiles
        self._started_at, self._learned_at, self._windows_at = time.monotonic(), 0.0, 0.0
        self._is_finished, self._num_warm = False, 0
        self._timesteps: dict[int, int] = {}
        # Steps of all lanes, seconds since the start, the first lane's mean return.
        self._progress: list[tuple[int, float, float]] = []
        self._load: list[tuple[float, int]] = []
        self._sampled = threading.Event()
        self.windows: Any = None
        self.execution = ""

    def report(self, lane: int, report: Any) -> bool:
        """Store a lane's report; return whether its training should stop."""
        if report.activity:
            return False
        self._timesteps[lane] = report.timesteps
        if lane or self._is_finished:
            return self._is_finished
        now = time.monotonic()
        if self._windows_at:
            self._is_finished = now - self._windows_at > WINDOWS_TAKE_S
            return self._is_finished
        self._progress.append(
            (sum(self._timesteps.values()), now - self._started_at, report.mean_return)
        )
        self.execution = report.execution
        if not self._learned_at and report.metrics:
            self._learned_at = now
            threading.Thread(target=self._sample_load, daemon=True).start()
        warm_until = self._learned_at + self._warm_s
        if not self._learned_at or now < warm_until:
            return False
        self._num_warm += 1
        # The speed is computed between two reports, however long an iteration takes.
        if self._num_warm < 2 or now < warm_until + self._seconds:
            return False
        self._sampled.set()
        if not self._profiles:
            self._is_finished = True
        else:
            self._windows_at = now
            self.windows.start()
        return self._is_finished

    def stop(self) -> None:
        """Stop the profiler and the sampling of the load."""
        self._sampled.set()
        self.windows.stop()

    def figures(self) -> dict[str, Any]:
        """Return the speed and the progress over time."""
        warm = self._progress[-self._num_warm :]
        (first, start_s, _), (last, end_s, mean_return) = warm[0], warm[-1]
        thinned = self._progress[:: max(1, len(self._progress) // 200)]
        return {
            "steps_per_s": (last - first) / (end_s - start_s),
            "start_s": self._learned_at - self._started_at,
            "mean_return": None if math.isnan(mean_return) else round(mean_return, 2),
            "passed": [
                [steps, round(time_s, 3), None if math.isnan(mean) else round(mean, 2)]
                for steps, time_s, mean in thinned
            ],
            "load": self._load,
        }

    def _sample_load(self) -> None:
        import torch

        start_s = time.monotonic()
        while not self._sampled.wait(_LOAD_PERIOD_S):
            try:
                percent = torch.cuda.utilization()
            except Exception:  # no GPU, or no NVML
                return
            self._load.append((round(time.monotonic() - start_s, 2), percent))
