"""Whole trainings for some seconds, in processes of their own: hotloop's, and LeanRL's scripts."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.accelerate.rows import ROWS, Row
from bench.measuring import Missing

# Of the windows at a run's end: the speed was measured before the profiler was begun.
WINDOW_S, WINDOWS_AT_S, WINDOWS_TAKE_S = 0.25, (0.2, 1.2), 3.0
# A process that does not come to learn within this is given up.
_START_S = 240.0
_SPEED = re.compile(r"([\d.]+) sps")
_TOTAL = 10_000_000


def train(job: dict[str, Any]) -> dict[str, Any]:
    """Train as a job says, in this process.

    Args:
        job: `row`, `mode`, `device`, `seed`; `warm_s` and `seconds`: from the first update on, how
            long nothing is measured, and then how long something is; `options`: of the config.

    Returns:
        `steps_per_s`; `passed`: [steps, seconds since it began, mean return] of each report;
        `busy`, `launches`, `kernels`: the GPU's share, and numbers of an update, or None.
    """
    from hotloop.profiler.session.gpu import use_of
    from hotloop.profiler.session.kineto import read_windows
    from hotloop.timing.gpu_window import GpuWindows

    row = ROWS[job["row"]]
    algorithm = importlib.import_module(f"hotloop.algorithms.{row.algorithm}").algorithm
    options = {
        "env_id": row.env_id,
        "execution": job["mode"],
        "device": job["device"],
        "seed": job["seed"],
        "torch_threads": 1,
        "total_timesteps": _TOTAL,
        **row.options,
        **job.get("options", {}),
    }
    if row.algorithm != "ppo":
        options.setdefault("report_interval", 200)
    passed: list[tuple[int, float, float]] = []
    began, learned_at, windows_at = time.monotonic(), 0.0, 0.0
    with tempfile.TemporaryDirectory() as folder:
        windows = GpuWindows(Path(folder), "bench", length_s=WINDOW_S, at_s=WINDOWS_AT_S)

        def on_report(report: Any) -> bool:
            nonlocal learned_at, windows_at
            now = time.monotonic()
            if report.doing:
                return False
            if windows_at:
                return now - windows_at > WINDOWS_TAKE_S
            passed.append((report.timesteps, now - began, report.mean_return))
            if not learned_at and report.metrics:
                learned_at = now
            if not learned_at or now - learned_at < job["warm_s"] + job["seconds"]:
                return False
            if job["device"] == "cpu":
                return True
            windows_at = now
            windows.start()
            return False

        try:
            algorithm.train(
                algorithm.config(**options, runs_dir=folder), on_report=on_report, progress=False
            )
        finally:
            windows.stop()
        found, problems = read_windows([Path(folder)])
    warm = [one for one in passed if one[1] + began >= learned_at + job["warm_s"]]
    if len(warm) < 2:
        raise Missing("too few reports: raise `--seconds`")
    result: dict[str, Any] = {
        "steps_per_s": (warm[-1][0] - warm[0][0]) / (warm[-1][1] - warm[0][1]),
        "start_s": learned_at - began,
        "passed": [[steps, round(at, 3), round(mean, 2)] for steps, at, mean in passed[::5]],
        "problems": problems,
        "busy": None,
        "launches": None,
        "kernels": None,
    }
    if found:
        use = use_of(found)
        result["busy"] = use.busy
        if use.num_updates:
            result["launches"] = use.launches_per_update
            result["kernels"] = use.num_kernels / use.num_updates
    return result


def in_process(job: dict[str, Any]) -> dict[str, Any]:
    """Train in a fresh process.

    Raises:
        Missing: it could not; the message is its last line.
    """
    command = [sys.executable, "-W", "ignore", "-m", "bench", "accelerate", "--worker"]
    limit_s = _START_S + job["warm_s"] + job["seconds"] + WINDOWS_TAKE_S
    try:
        done = subprocess.run(
            [*command, json.dumps(job)], capture_output=True, text=True, timeout=limit_s
        )
    except subprocess.TimeoutExpired:
        raise Missing(f"nothing after {limit_s:.0f} s") from None
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        told = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise Missing(told.rpartition("Error: ")[2][:200])
    return json.loads(lines[-1])


def leanrl(path: Path, row: Row, mode: str, seconds: float) -> float:
    """Steps a second that one of LeanRL's scripts tells of itself, after its own burn-in.

    Args:
        path: a checkout; its requirements are installed where this runs.
        row: which script.
        mode: what of `--compile` and `--cudagraphs` it is given.
        seconds: how long it may run from its first figure on.

    Raises:
        Missing: there is no such script, or it told of no speed; the message is its last line.
    """
    script = path / "leanrl" / f"{row.script}_torchcompile.py"
    if not script.is_file():
        raise Missing(f"no {script.name} in {path}")
    flags = {"compile": "--compile", "cudagraph": "--cudagraphs"}
    given = [flag for part, flag in flags.items() if part in mode.split("+")]
    environment = {**os.environ, "WANDB_MODE": "disabled", "MUJOCO_GL": "egl"}
    with tempfile.TemporaryFile("w+", errors="replace") as told:
        process = subprocess.Popen(
            [sys.executable, "-W", "ignore", str(script), "--seed", "21", *given],
            cwd=path,
            env=environment,
            stdout=told,
            stderr=subprocess.STDOUT,
        )
        speeds: list[float] = []
        until = time.monotonic() + _START_S
        while process.poll() is None and time.monotonic() < until:
            time.sleep(0.5)
            had = bool(speeds)
            speeds = _speeds(told)
            if speeds and not had:
                until = time.monotonic() + seconds
        process.kill()
        process.wait()
        speeds = _speeds(told)
        told.seek(0)
        last = (told.read().strip().splitlines() or ["no output"])[-1]
    if not speeds:
        raise Missing(last[:200])
    return speeds[-1]


def _speeds(told: Any) -> list[float]:
    """All speeds in what a script has printed so far; those above 0."""
    text = os.pread(told.fileno(), os.fstat(told.fileno()).st_size, 0).decode(errors="replace")
    return [value for one in _SPEED.findall(text) if (value := float(one)) > 0]
