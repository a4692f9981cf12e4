"""Checks on a GPU that compiled and captured updates equal eager ones.

Checks belong to groups, one for each row and way of running updates. `python -m bench accelerate
--stage check` runs each group in its own process. The checks need torch, NumPy and hotloop, but
neither Gymnasium nor a simulator. Without CUDA, graphs are skipped and the rest runs on the CPU.
"""

from __future__ import annotations

import tempfile
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.accelerate.rows import MODES, ROWS
from bench.measuring import Missing

NUM_UPDATES = 20
# Allowed distance between two ways of running, relative to the distance that the parameters moved.
# Adam's first steps have the same length for any gradient, so rounding reverses some of them.
MAX_DISTANCE = {"eager": 1e-3, "cudagraph": 1e-3, "compile": 2e-2, "compile+cudagraph": 2e-2}


def set_exact_arithmetic() -> None:
    """Make float32 products exact and convolutions repeatable, as the checks assume."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False


def check_updates(name: str, mode: str, device: torch.device) -> str:
    """Compare updates of an algorithm with the same updates run eagerly."""
    from bench.accelerate.updates import make_updates

    _need_graphs(mode, device)
    eager, other = (make_updates(ROWS[name], way, device) for way in ("eager", mode))
    start = copy_tensors(eager.learner.state)
    count = num_updates(name, device)
    for updates in (eager, other):
        updates.make(count)
    executions = other.learner.modes_used()
    assert set(executions.values()) == {mode}, f"expected {mode}, ran {executions}"
    apart = compare(start, eager.learner.state, other.learner.state, MAX_DISTANCE[mode])
    return f"{count} updates, largest relative distance {apart:.1e}"


def _need_graphs(mode: str, device: torch.device) -> None:
    if "cudagraph" in mode and device.type != "cuda":
        raise Missing("no CUDA device, so no graphs")


def copy_tensors(state: Any) -> dict[str, torch.Tensor]:
    """Return copies of a learner's tensors."""
    from hotloop.learner.state import tensors

    return {key: x.clone() for key, x in tensors(state).items()}


def compare(start: dict[str, torch.Tensor], state: Any, other: Any, limit: float) -> float:
    """Compare two learners with the same initial state; return the largest relative distance.

    Args:
        start: initial tensors of both.
        state: state of the first learner, which must have learned something.
        other: state of the second learner.
        limit: largest distance, as a share of the distance that the tensor moved.
    """
    from hotloop.learner.state import tensors

    state_tensors, other_tensors = tensors(state), tensors(other)
    worst = 0.0
    for key, x in state_tensors.items():
        if not x.is_floating_point():
            assert torch.equal(x, other_tensors[key]), f"`{key}` differs"
            continue
        moved = (x - start[key]).double().norm().item()
        apart = (x - other_tensors[key]).double().norm().item() / max(moved, 1e-12)
        assert np.isfinite(apart), f"`{key}` is not finite"
        assert apart <= limit, f"`{key}` has relative distance {apart:.2e}, at most {limit} allowed"
        worst = max(worst, apart)
    assert any(not torch.equal(x, state_tensors[key]) for key, x in start.items()), (
        "nothing was learned"
    )
    return worst


def num_updates(name: str, device: torch.device) -> int:
    """Return the number of updates of a check. A core makes two with convolutions a second."""
    return 4 if name == "ppo-atari" and device.type == "cpu" else NUM_UPDATES


def check_repeats(name: str, device: torch.device) -> str:
    """Compare two series of eager updates with the same seed."""
    from bench.accelerate.updates import make_updates

    first, second = (make_updates(ROWS[name], "eager", device) for _ in range(2))
    start = copy_tensors(first.learner.state)
    count = num_updates(name, device)
    for updates in (first, second):
        updates.make(count)
    limit = 0.0 if device.type == "cpu" else MAX_DISTANCE["eager"]
    apart = compare(start, first.learner.state, second.learner.state, limit)
    return f"{count} updates of one seed, relative distance {apart:.1e}"


def check_launches(name: str, device: torch.device) -> str:
    """Count the launches and device synchronizations of captured updates."""
    from bench.accelerate.updates import make_updates
    from hotloop.profiler.session.gpu import summarize_windows

    _need_graphs("cudagraph", device)
    updates = make_updates(ROWS[name], "cudagraph", device)
    updates.make(8)  # also captures delayed updates
    torch.cuda.synchronize()
    window = profile_window(lambda: updates.make(64))
    use = summarize_windows([window])
    assert use.num_graphs >= 64, f"{use.num_graphs} launches of graphs for 64 batches"
    return (
        f"{use.num_graphs / 64:.1f} graphs and {use.num_launches / 64:.1f} launches a batch, "
        f"{use.num_kernels / 64:.0f} kernels, {len(use.syncs_ns)} waits"
    )


def profile_window(work: Callable[[], None]) -> Any:
    """Return a profiler window recorded while `work` was repeated."""
    from hotloop.profiler.session.kineto import read_windows
    from hotloop.timing.gpu_window import SUFFIX, GpuWindows

    with tempfile.TemporaryDirectory() as folder:
        device = "cuda" if torch.cuda.is_available() else None
        windows = GpuWindows(
            Path(folder), "check", length_s=0.3, start_times_s=(0.0,), device=device
        )
        windows.start()
        until = time.monotonic() + 60
        while not list(Path(folder).glob(f"*{SUFFIX}")) and time.monotonic() < until:
            work()
            if device is not None:
                torch.cuda.synchronize()
        windows.stop()
        windows_read, problems = read_windows([Path(folder)])
    assert not problems, "; ".join(problems)
    assert windows_read, "no window was written within a minute"
    return windows_read[0]


def check_launch(name: str, mode: str, device: torch.device) -> str:
    """Compare launches (draws, batches and two updates) with the same launches run eagerly."""
    from bench.accelerate.updates import make_launches

    _need_graphs(mode, device)
    (eager, first), (other, second) = (
        make_launches(ROWS[name], way, device) for way in ("eager", mode)
    )
    start = copy_tensors(eager.state)
    for launches in (first, second):
        for _ in range(NUM_UPDATES // 2):
            launches.run(2, None)
    limit = 0.0 if (mode, device.type) == ("eager", "cpu") else MAX_DISTANCE[mode]
    apart = compare(start, eager.state, other.state, limit)
    return f"{NUM_UPDATES // 2} launches of two updates, largest relative distance {apart:.1e}"


def groups(device: torch.device) -> dict[str, dict[str, Callable[[], str]]]:
    """Return the checks by group and name."""
    checks_of: dict[str, dict[str, Callable[[], str]]] = {}
    for row in ROWS:
        for mode in MODES:
            checks_of[f"{row} {mode}"] = {"updates": partial(check_updates, row, mode, device)}
        checks_of[f"{row} eager"] = {"repeats": partial(check_repeats, row, device)}
        checks_of[f"{row} cudagraph"]["launches counted"] = partial(check_launches, row, device)
        if ROWS[row].algorithm != "ppo":
            for mode in ("eager", "cudagraph"):
                checks_of[f"{row} {mode}"]["launches"] = partial(check_launch, row, mode, device)
    return checks_of


def run_group(name: str, device: torch.device) -> dict[str, Any]:
    """Run a group's checks; return results by check and the numbers of passed, failed, skipped."""
    torch.set_num_threads(1)
    set_exact_arithmetic()
    counts, results = dict.fromkeys(("passed", "failed", "skipped"), 0), {}
    for check_name, check in groups(device)[name].items():
        start_s = time.perf_counter()
        try:
            status, result = "passed", check()
        except Missing as missing:
            status, result = "skipped", str(missing)
        except Exception as error:
            status, result = "failed", f"{type(error).__name__}: {error}"
            traceback.print_exc(limit=-4)
        counts[status] += 1
        results[check_name] = f"{status}: {result}"
        seconds = time.perf_counter() - start_s
        print(f"{name}, {check_name}: {status}: {result} ({seconds:.1f} s)", flush=True)
    if not counts["passed"] + counts["failed"]:
        raise Missing("; ".join(dict.fromkeys(results.values())))
    return {**counts, "checks": results}
