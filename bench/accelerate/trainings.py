"""Whole trainings for some seconds, in this process."""

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

# Windows on the GPU at a run's end: the profiler starts after the speed was measured.
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
        row: a key of `ROWS`, with its algorithm and options.
        device: of the updates.
        mode: how updates run, the option `execution`.
        warm_s: seconds from the first update on that are not measured.
        seconds: measured time after that.
        algorithm: used without a row.
        options: of the algorithm's configuration, over those of the row.
        seed: of the run, or of the first lane.
        lanes: number of seeds that are trained in one update.
        windows: whether to profile the GPU for 3 s afterwards.
        reaches: the mean return that the run must have reached at its end.

    Returns:
        `steps_per_s` of all lanes together, `start_s` until the first update, `passed`: [steps,
        seconds since the start, mean return] of some reports, `load`: [seconds, percent] of the
        GPU's utilization by NVML, `busy`, `launches`, `kernels`: the GPU's share and the numbers
        of an update within the profiler's windows, or None.
    """
    from hotloop.profiler.session.gpu import use_of
    from hotloop.profiler.session.kineto import read_windows
    from hotloop.timing.gpu_window import GpuWindows
    from hotloop.training.lanes import train_lanes

    chosen = _options(row, algorithm, device, lanes, options or {})
    config_options = {"device": device, "execution": mode, "torch_threads": 1, **chosen}
    trainer = importlib.import_module(f"hotloop.algorithms.{_algorithm(row, algorithm)}").algorithm
    clock = _Clock(warm_s, seconds, windows and device != "cpu")
    with tempfile.TemporaryDirectory() as folder:
        gpu_windows = GpuWindows(Path(folder), "bench", length_s=WINDOW_S, at_s=WINDOWS_AT_S)
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
        use = use_of(recorded)
        figures["busy"] = use.busy
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
        # A report waits for the device, so on a GPU there are few a second.
        chosen["report_interval"] = (100 if device == "cpu" else 500) // math.ceil(lanes**0.5)
    chosen |= options
    if chosen["env_id"].startswith("envpool:") and importlib.util.find_spec("envpool") is None:
        # ALE's own vector environment plays the same games, some slower.
        chosen |= {"env_id": chosen["env_id"].replace("envpool:", "ALE/"), "env_kwargs": {}}
    return chosen


class _Clock:
    """Measures a training by its reports, then profiles the GPU, then stops it.

    Args:
        warm_s, seconds: see `train`.
        profiles: whether windows on the GPU follow.
    """

    def __init__(self, warm_s: float, seconds: float, profiles: bool) -> None:
        self._warm_s, self._seconds, self._profiles = warm_s, seconds, profiles
        self._began, self._learned_at, self._windows_at = time.monotonic(), 0.0, 0.0
        self._ended, self._num_warm = False, 0
        self._timesteps: dict[int, int] = {}
        # Steps of all lanes, seconds since the start, the first lane's mean return.
        self._passed: list[tuple[int, float, float]] = []
        self._load: list[tuple[float, int]] = []
        self._sampled = threading.Event()
        self.windows: Any = None
        self.execution = ""

    def report(self, lane: int, report: Any) -> bool:
        """Note a lane's report; return whether its training is to end."""
        if report.doing:
            return False
        self._timesteps[lane] = report.timesteps
        if lane or self._ended:
            return self._ended
        now = time.monotonic()
        if self._windows_at:
            self._ended = now - self._windows_at > WINDOWS_TAKE_S
            return self._ended
        self._passed.append((sum(self._timesteps.values()), now - self._began, report.mean_return))
        self.execution = report.execution
        if not self._learned_at and report.metrics:
            self._learned_at = now
            threading.Thread(target=self._sample_load, daemon=True).start()
        warm_until = self._learned_at + self._warm_s
        if not self._learned_at or now < warm_until:
            return False
        self._num_warm += 1
        # A speed needs two reports, however long an iteration takes.
        if self._num_warm < 2 or now < warm_until + self._seconds:
            return False
        self._sampled.set()
        if not self._profiles:
            self._ended = True
        else:
            self._windows_at = now
            self.windows.start()
        return self._ended

    def stop(self) -> None:
        """End what runs beside the training."""
        self._sampled.set()
        self.windows.stop()

    def figures(self) -> dict[str, Any]:
        """Return the speed, and what the run had reached when."""
        warm = self._passed[-self._num_warm :]
        (first, began, _), (last, ended, mean_return) = warm[0], warm[-1]
        thinned = self._passed[:: max(1, len(self._passed) // 200)]
        return {
            "steps_per_s": (last - first) / (ended - began),
            "start_s": self._learned_at - self._began,
            "mean_return": None if math.isnan(mean_return) else round(mean_return, 2),
            "passed": [
                [steps, round(at, 3), None if math.isnan(mean) else round(mean, 2)]
                for steps, at, mean in thinned
            ],
            "load": self._load,
        }

    def _sample_load(self) -> None:
        import torch

        began = time.monotonic()
        while not self._sampled.wait(_LOAD_PERIOD_S):
            try:
                percent = torch.cuda.utilization()
            except Exception:  # no GPU, or no NVML
                return
            self._load.append((round(time.monotonic() - began, 2), percent))
