"""Measurement of a run's environments, for automatic options and for `hotloop plan`.

This process makes the same environments as the run, steps them with the initial policy, and closes
them. It takes half a second, up to two seconds if steps differ much, and less for a short run. The
result is an `EnvTiming`, from which `forecast` and `inference` choose.
"""

from __future__ import annotations

import contextlib
import functools
import math
import threading
import time
from collections.abc import Callable, Collection

import numpy as np

from hotloop.base.memory import available_memory
from hotloop.base.processes import ThreadTimes, descendants
from hotloop.envs import EnvSpec, VectorEnv, make_vec
from hotloop.envs.serial import SerialVectorEnv
from hotloop.errors import HotloopError
from hotloop.policies import ActingPolicy, Network, PolicySnapshot
from hotloop.rollouts.collector import Collector, Slot, spec_bytes
from hotloop.rollouts.planning.forecast import EnvTiming
from hotloop.types import transition_bytes

# A measurement stops at the first of these limits:
# - `_MAX_STEPS` or `_MAX_S`,
# - `_TARGET_S` and `_MIN_STEPS`, if the relative standard error of the mean is below `_MAX_ERROR`,
# - `_EXTENDED_S` and `_MIN_STEPS`.
_MAX_STEPS = 4_000
_TARGET_S, _MIN_STEPS = 0.5, 20
_MAX_ERROR, _EXTENDED_S = 0.05, 2.0
_MAX_S = 10.0
# Time limit of a measurement, as a share of the time of collecting the run in this process, and its
# minimum.
_MAX_RUN_SHARE, _MIN_S = 0.01, 0.03
# If a step takes less, also step a group of environments: the fixed time of the loop matters then.
_CHEAP_STEP_S = 1e-3
_GROUP_S, _GROUP_SIZE = 0.15, 8
_ACT_S = 0.02  # for each batch size
# The first environment imports its libraries: if it takes longer than this, time a second one.
_IMPORT_S = 0.02
# Memory of a worker, without its environments.
_WORKER_BYTES = 150 * 2**20
_MAX_WORKERS = 64
_MAX_FAILURES = 10


def max_workers() -> int:
    """Return the number of workers that fit into memory, 64 at most."""
    free_bytes = available_memory()
    if free_bytes is None:
        return _MAX_WORKERS
    return max(1, min(_MAX_WORKERS, free_bytes // 2 // _WORKER_BYTES))


def measure(
    spec: EnvSpec,
    make_network: Callable[[VectorEnv], Network],
    *,
    num_envs: int,
    num_remaining: int = 10**9,
) -> EnvTiming:
    """Step one environment for up to two seconds, or for 20 slow steps.

    Args:
        spec: Environments.
        make_network: Returns the acting network for environments.
        num_envs: N.
        num_remaining: Number of transitions to collect.

    Raises:
        UnknownNameError, MissingExtraError, SpaceError, ConfigError: An environment can't be made.
        EnvironmentFailure: Environments failed more than ten times.
    """
    failure_limit = _FailureLimit()
    # Existing child processes, such as the one for plots, do not belong to the environment.
    known_pids = {process.pid for process in descendants()}

    def make(count: int | None) -> VectorEnv:
        return make_vec(spec, count, on_failure=failure_limit)

    # Make an environment, and a second one if imports seem to take time.
    start_s = time.perf_counter()
    envs = make(num_envs if spec.is_envpool else None)
    first_s = make_s = time.perf_counter() - start_s
    try:
        if _IMPORT_S < first_s < _EXTENDED_S and isinstance(envs, SerialVectorEnv):
            start_s = time.perf_counter()
            make(None).close()
            make_s = min(first_s, time.perf_counter() - start_s)
        # Step the environment.
        network = make_network(envs)
        policy = ActingPolicy(network, PolicySnapshot(0, network.initial_parameters(spec.seed)))
        row_times, busy_share, reset_share, reset_s = _measure_steps(
            envs, policy, spec.seed, _TARGET_S, num_remaining, known_pids
        )
    finally:
        envs.close()
    group_size = None if isinstance(envs, SerialVectorEnv) else envs.num_envs
    if group_size is not None:
        row_times /= group_size
    step_s, loop_s = float(row_times.mean()), 0.0
    # Step a group of cheap environments, to separate the time of the loop.
    has_time = _GROUP_SIZE * make_s < min(2 * _TARGET_S, _budget_s(step_s * num_remaining))
    if group_size is None and num_envs > 1 and step_s < _CHEAP_STEP_S and has_time:
        size = min(num_envs, _GROUP_SIZE)
        group = make(size)
        try:
            group_s = np.median(
                _measure_steps(group, policy, spec.seed, _GROUP_S, num_remaining, known_pids)[0]
            )
        finally:
            group.close()
        # A row of n takes loop + n · step. Solve it with the medians of 1 and of `size`.
        single_s = float(np.median(row_times))
        env_s = min(max((float(group_s) - single_s) / (size - 1), 0.2 * single_s), single_s)
        loop_s = single_s - env_s
        step_s -= loop_s
    row_bytes = transition_bytes(spec_bytes(network.obs_spec), spec_bytes(network.action_spec))
    return EnvTiming(
        step_s=step_s,
        # The row times of a vector environment are means over its environments.
        step_sd_s=float(row_times.std()) * math.sqrt(group_size or 1),
        step_p99_s=float(np.percentile(row_times, 99)),
        busy_share=busy_share,
        reset_s=reset_s,
        reset_share=reset_share,
        loop_s=loop_s,
        act_s=_measure_acting(policy, num_envs, spec.seed),
        copy_s=_measure_copy(row_bytes),
        transition_bytes=row_bytes,
        make_s=make_s / (group_size or 1),
        import_s=first_s - make_s,
        num_steps=len(row_times),
        steps_together=num_envs if spec.is_envpool else group_size,
    )


class _FailureLimit:
    """A callback for failing environments that raises after too many failures."""

    def __init__(self) -> None:
        self._count = 0

    def __call__(self, error: HotloopError) -> None:
        self._count += 1
        if self._count > _MAX_FAILURES:
            raise error


class _RowTimer:
    """A `StepObserver` that records the duration of each row in seconds."""

    def __init__(self) -> None:
        self.row_times: list[float] = []
        self._start_s = 0.0

    def on_step_start(self) -> None:
        self._start_s = time.perf_counter()

    def on_step_end(self, t: int) -> None:
        self.row_times.append(time.perf_counter() - self._start_s)


def _measure_steps(
    envs: VectorEnv,
    policy: ActingPolicy,
    seed: int,
    target_s: float,
    num_remaining: int,
    known_pids: Collection[int],
) -> tuple[np.ndarray, float, float, float]:
    """Return seconds of rows without resets, busy share, resets per step, seconds of a reset."""
    num_rows = 32
    slot = Slot.allocate(num_rows, envs.num_envs, policy.network)
    collector = Collector(envs, policy, seed=seed)
    start_s = time.perf_counter()
    collector.begin()
    first_reset_s = (time.perf_counter() - start_s) / envs.num_envs
    collector.collect(slot, 0, 1)  # excludes the initial costs of the first step
    # Step until the mean is precise enough.
    timer, num_ends = _RowTimer(), []
    start_s, busy_time = time.perf_counter(), _BusyTime(known_pids)
    while len(timer.row_times) < _MAX_STEPS:
        t = len(timer.row_times) % num_rows
        collector.collect(slot, t, t + 1, timer)
        num_ends.append(int((slot.fragment.terminated[t] | slot.fragment.truncated[t]).sum()))
        elapsed_s = time.perf_counter() - start_s
        if len(timer.row_times) == _MIN_STEPS:
            run_s = sum(timer.row_times) / _MIN_STEPS * num_remaining / envs.num_envs
            target_s = min(target_s, _budget_s(run_s))
        if elapsed_s > target_s and len(timer.row_times) >= _MIN_STEPS:
            row_times = np.array(timer.row_times)
            error = row_times.std() / math.sqrt(len(row_times)) / row_times.mean()
            if target_s < _TARGET_S or error < _MAX_ERROR or elapsed_s > _EXTENDED_S:
                break
        if elapsed_s > _MAX_S:
            break
    # Separate the time of resets from that of steps.
    busy_share = busy_time.share()
    row_times, ends = np.array(timer.row_times), np.array(num_ends)
    if not isinstance(envs, SerialVectorEnv) or not (ends == 0).any():
        return row_times, busy_share, 0.0, 0.0  # the row times include the resets
    step_times, num_resets = row_times[ends == 0], int(ends.sum())
    num_steps = len(row_times) * envs.num_envs
    if num_resets:
        surplus_s = row_times[ends > 0].sum() - (ends > 0).sum() * step_times.mean()
        return step_times, busy_share, num_resets / num_steps, max(0.0, surplus_s / num_resets)
    limit = envs.time_limit  # no episode ended in the measurement
    return step_times, busy_share, 1 / limit if limit else 0.0, first_reset_s


def _budget_s(run_s: float) -> float:
    """Return the time limit of a measurement, if collecting the whole run here takes `run_s`."""
    return max(_MIN_S, _MAX_RUN_SHARE * run_s)


def _measure_acting(policy: ActingPolicy, num_envs: int, seed: int) -> dict[int, float]:
    """Return the seconds of acting for 1, 2, 4, … and N environments at once, by number."""
    sizes = {min(2**k, num_envs) for k in range(num_envs.bit_length() + 1)}
    seconds: dict[int, float] = {}
    for size in sorted(sizes):
        obs, mask, head, action, _ = Slot.allocate(1, size, policy.network).rows[0]
        mask.fill(True)
        noise = policy.draw_noise(seed, first_step=0, num_steps=1, num_envs=size)[0]
        inputs = (obs, noise, head, action, policy.new_memory(size), mask)
        seconds[size] = _median_s(functools.partial(policy.draw, *inputs), _ACT_S)
    return seconds


def _measure_copy(size_bytes: int) -> float:
    """Return the seconds of copying a transition from a worker's memory to the learner's."""
    source = np.zeros(8 * 2**20, np.uint8)
    copy_s = _median_s(functools.partial(np.copyto, np.ones_like(source), source))
    return copy_s * size_bytes / len(source)


def _median_s(call: Callable[[], object], target_s: float = 0.0) -> float:
    """Return the median duration of a call, repeated for `target_s`, from 5 to 200 times."""
    times: list[float] = []
    start_s = time.perf_counter()
    while len(times) < 5 or (len(times) < 200 and time.perf_counter() - start_s < target_s):
        call_start_s = time.perf_counter()
        call()
        times.append(time.perf_counter() - call_start_s)
    return float(np.median(times))


class _BusyTime:
    """Time in which this process and those not in `known_pids` compute or wait for a core."""

    def __init__(self, known_pids: Collection[int]) -> None:
        self._known_pids = known_pids
        self._start_s, self._initial_busy_s = time.perf_counter(), self._busy_s()

    def share(self) -> float:
        elapsed_s = time.perf_counter() - self._start_s
        return max(0.0, self._busy_s() - self._initial_busy_s) / elapsed_s

    def _busy_s(self) -> float:
        # On a machine that other processes use, a process that computes also waits for a core.
        with contextlib.closing(ThreadTimes()) as threads:
            times = threads.read(threading.get_native_id())
        wait_ns = 0 if times is None else times.queued_ns
        child_ns = sum(x.cpu_ns for x in descendants() if x.pid not in self._known_pids)
        return time.process_time() + (wait_ns + child_ns) / 1e9
