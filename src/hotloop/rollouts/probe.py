"""`workers` 'auto': a short look at the run's environments, so that a choice can be made.

Environments of the run's kind are made in this process, stepped for half a second, two where steps
differ much, less where the whole run is short, with the policy that the run begins with, and
closed. What they said is a `Measured`; `forecast` does the rest.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hotloop.envs import VectorEnv, make_vec
from hotloop.envs.serial import SerialVectorEnv
from hotloop.errors import HotloopError
from hotloop.policies import ActingPolicy, Network, PolicySnapshot
from hotloop.rollouts.collector import Collector, Slot
from hotloop.rollouts.forecast import Choice, Measured, Task, choose
from hotloop.rollouts.protocol import CollectionOptions, Schedule
from hotloop.system.cores import available_cores
from hotloop.system.memory import available_memory
from hotloop.system.processes import descendants
from hotloop.timing import span

# Steps are made until there are so many, or until so much time has passed and there are some and
# their mean is known well enough (its relative standard error) or more time has passed.
_MAX_STEPS = 4_000
_ENOUGH_S, _SOME_STEPS = 0.5, 20
_CLOSE_ERROR, _LONG_S = 0.05, 2.0
_LONGEST_S = 10.0  # whatever there is by then
# Less is enough where it would be more than this share of collecting the whole run here.
_SHARE, _LEAST_S = 0.01, 0.03
# For environments whose step is shorter, a group is stepped too: its loop costs something itself.
_CHEAP_S = 1e-3
_GROUP_S, _GROUP_SIZE = 0.15, 8
_ACT_S = 0.02  # for each size of batch
# The first environment brings its libraries: where it takes longer, a second one is timed.
_IMPORT_S = 0.02
# A worker holds as much, its environments' own memory not counted.
_WORKER_BYTES = 150 * 2**20
_MAX_WORKERS = 64
_MAX_FAILURES = 10


def probe(
    env: str | Callable[..., Any],
    make_network: Callable[[VectorEnv], Network],
    plan: CollectionOptions,
    *,
    num_envs: int,
    num_left: int,
    uneven: Schedule,
    env_kwargs: Mapping[str, Any] | None = None,
    action_masks: bool = False,
) -> Choice:
    """Measure, forecast, choose.

    Args:
        env: as for `make_vec`.
        make_network: what acts, for environments with these spaces.
        plan: how fragments are collected.
        num_envs: N.
        num_left: transitions that are to be collected.
        uneven: the schedule that may be taken instead of `barrier`.
        env_kwargs: for the environment's constructor or the factory.
        action_masks: see `make_vec`.

    Raises:
        UnknownNameError, MissingExtraError, SpaceError, ConfigError: an environment can't be made.
        EnvironmentFailure: it failed ten times.
    """
    with span("probe"):
        measured = measure(
            env,
            make_network,
            num_envs=num_envs,
            num_left=num_left,
            seed=plan.seed,
            env_kwargs=env_kwargs,
            action_masks=action_masks,
        )
    free = available_memory()
    max_workers = _MAX_WORKERS
    if free is not None:
        max_workers = max(1, min(max_workers, free // 2 // _WORKER_BYTES))
    task = Task(
        num_envs=num_envs,
        num_steps=plan.num_steps,
        num_left=num_left,
        schedule=plan.schedule,
        overlap=plan.overlap,
        uneven=uneven,
        num_cores=available_cores(),
        max_workers=max_workers,
    )
    return choose(measured, task)


def measure(
    env: str | Callable[..., Any],
    make_network: Callable[[VectorEnv], Network],
    *,
    num_envs: int,
    num_left: int = 10**9,
    seed: int = 0,
    env_kwargs: Mapping[str, Any] | None = None,
    action_masks: bool = False,
) -> Measured:
    """Step one environment, for a second or two, or some twenty steps; see `probe`."""
    failures = _Failures()
    known = {one.pid for one in descendants()}  # who draws the learning curve is no environment

    def make(count: int | None) -> VectorEnv:
        return make_vec(
            env,
            count,
            seed=seed,
            env_kwargs=env_kwargs,
            on_failure=failures,
            action_masks=action_masks,
        )

    began = time.perf_counter()
    is_pool = isinstance(env, str) and env.startswith("envpool:")
    envs = make(num_envs if is_pool else None)
    first_s = make_s = time.perf_counter() - began
    if _IMPORT_S < first_s < _LONG_S and isinstance(envs, SerialVectorEnv):
        began = time.perf_counter()
        make(None).close()
        make_s = min(first_s, time.perf_counter() - began)
    try:
        network = make_network(envs)
        policy = ActingPolicy(network, PolicySnapshot(0, network.initial_parameters(seed)))
        rows, busy_share, reset_share, reset_s = _step(
            envs, policy, seed, _ENOUGH_S, num_left, known
        )
    finally:
        envs.close()
    together = None if isinstance(envs, SerialVectorEnv) else envs.num_envs
    if together is not None:
        rows /= together
    step_s, loop_s = float(rows.mean()), 0.0
    has_room = _GROUP_SIZE * make_s < min(2 * _ENOUGH_S, _budget_s(step_s * num_left))
    if together is None and num_envs > 1 and step_s < _CHEAP_S and has_room:
        size = min(num_envs, _GROUP_SIZE)
        group = make(size)
        try:
            together_s = np.median(_step(group, policy, seed, _GROUP_S, num_left, known)[0])
        finally:
            group.close()
        # Row of n: loop + n · step, from the medians of 1 and of `size`.
        alone_s = float(np.median(rows))
        each_s = min(max((float(together_s) - alone_s) / (size - 1), 0.2 * alone_s), alone_s)
        loop_s = alone_s - each_s
        step_s -= loop_s
    return Measured(
        step_s=step_s,
        # Those of a vector environment come as one: their mean varies as little as it does.
        step_sd_s=float(rows.std()) * math.sqrt(together or 1),
        step_p99_s=float(np.percentile(rows, 99)),
        busy_share=busy_share,
        reset_s=reset_s,
        reset_share=reset_share,
        loop_s=loop_s,
        act_s=_act(policy, num_envs, seed),
        copy_s=_copy(network),
        make_s=make_s / (together or 1),
        import_s=first_s - make_s,
        num_steps=len(rows),
        steps_together=num_envs if is_pool else together,
    )


class _Failures:
    """Environments that fail are made anew, for as often as one can have bad luck."""

    def __init__(self) -> None:
        self._count = 0

    def __call__(self, error: HotloopError) -> None:
        self._count += 1
        if self._count > _MAX_FAILURES:
            raise error


class _Clock:
    """Times each row."""

    def __init__(self) -> None:
        self.rows: list[float] = []
        self._began = 0.0

    def begins(self) -> None:
        """See `Watch`."""
        self._began = time.perf_counter()

    def ended(self, t: int) -> None:
        """See `Watch`."""
        self.rows.append(time.perf_counter() - self._began)


def _step(
    envs: VectorEnv,
    policy: ActingPolicy,
    seed: int,
    enough_s: float,
    num_left: int,
    known: Collection[int],
) -> tuple[np.ndarray, float, float, float]:
    """Act and step; gives the rows' seconds without resets, the share of time that is computing,
    resets for each step and seconds of a reset."""
    num_rows = 32
    slot = Slot.allocate(num_rows, envs.num_envs, policy.network)
    collector = Collector(envs, policy, seed=seed)
    began = time.perf_counter()
    collector.begin()
    first_reset_s = (time.perf_counter() - began) / envs.num_envs
    collector.collect(slot, 0, 1)  # what the first step alone does is not counted
    clock, num_ended = _Clock(), []
    began, busy = time.perf_counter(), _Busy(known)
    while len(clock.rows) < _MAX_STEPS:
        t = len(clock.rows) % num_rows
        collector.collect(slot, t, t + 1, clock)
        num_ended.append(int((slot.fragment.terminated[t] | slot.fragment.truncated[t]).sum()))
        passed_s = time.perf_counter() - began
        if len(clock.rows) == _SOME_STEPS:
            run_s = sum(clock.rows) / _SOME_STEPS * num_left / envs.num_envs
            enough_s = min(enough_s, _budget_s(run_s))
        if passed_s > enough_s and len(clock.rows) >= _SOME_STEPS:
            rows = np.array(clock.rows)
            error = rows.std() / math.sqrt(len(rows)) / rows.mean()
            if enough_s < _ENOUGH_S or error < _CLOSE_ERROR or passed_s > _LONG_S:
                break
        if passed_s > _LONGEST_S:
            break
    busy_share = busy.share()
    rows, ended = np.array(clock.rows), np.array(num_ended)
    if not isinstance(envs, SerialVectorEnv) or not (ended == 0).any():
        return rows, busy_share, 0.0, 0.0  # what resets take is in the rows
    plain, num_resets = rows[ended == 0], int(ended.sum())
    num_steps = len(rows) * envs.num_envs
    if num_resets:
        surplus = rows[ended > 0].sum() - (ended > 0).sum() * plain.mean()
        return plain, busy_share, num_resets / num_steps, max(0.0, surplus / num_resets)
    limit = envs.time_limit  # no episode was short enough to be seen
    return plain, busy_share, 1 / limit if limit else 0.0, first_reset_s


def _budget_s(run_s: float) -> float:
    """How long a part of the probe may take, where collecting the whole run here takes `run_s`."""
    return max(_LEAST_S, _SHARE * run_s)


def _act(policy: ActingPolicy, num_envs: int, seed: int) -> dict[int, float]:
    """Seconds of acting for 1, 2, 4, … and N environments at once."""
    network = policy.network
    sizes = {min(2**k, num_envs) for k in range(num_envs.bit_length() + 1)}
    found: dict[int, float] = {}
    for size in sorted(sizes):
        obs = np.zeros((size, *network.obs_spec.shape), network.obs_spec.dtype)
        noise = policy.draw_noise(seed, first_step=0, num_steps=1, num_envs=size)[0]
        head = np.zeros((size, network.head_size), np.float32)
        spec = network.action_spec
        action = np.zeros((size, *spec.shape), spec.dtype)
        memory = policy.new_memory(size)
        times: list[float] = []
        began = time.perf_counter()
        while len(times) < 5 or (len(times) < 200 and time.perf_counter() - began < _ACT_S):
            start = time.perf_counter()
            policy.draw(obs, noise, head, action, memory)
            times.append(time.perf_counter() - start)
        found[size] = float(np.median(times))
    return found


def _copy(network: Network) -> float:
    """Seconds that a transition takes from a worker's memory into the learner's."""
    # Two observations, an action, and six numbers of up to four bytes.
    obs, action = network.obs_spec, network.action_spec
    size = 2 * np.dtype(obs.dtype).itemsize * math.prod(obs.shape)
    size += np.dtype(action.dtype).itemsize * math.prod(action.shape) + 24
    source = np.zeros(8 * 2**20, np.uint8)
    target = np.ones_like(source)
    times: list[float] = []
    for _ in range(5):
        start = time.perf_counter()
        np.copyto(target, source)
        times.append(time.perf_counter() - start)
    return float(np.median(times)) * size / len(source)


class _Busy:
    """The share of time from here on in which this process computes or waits for a core, and the
    processes that its environments have started.

    Args:
        known: processes that were there before the environments.
    """

    def __init__(self, known: Collection[int]) -> None:
        self._known = known
        self._began, self._at_first = time.perf_counter(), self._seconds()

    def share(self) -> float:
        """So far."""
        passed_s = time.perf_counter() - self._began
        return max(0.0, self._seconds() - self._at_first) / passed_s

    def _seconds(self) -> float:
        waited = 0.0
        # Nanoseconds on a core, and waiting for one: where others are busy too, who computes waits.
        with contextlib.suppress(OSError, ValueError, IndexError):
            waited = int(Path("/proc/thread-self/schedstat").read_bytes().split()[1]) / 1e9
        others = sum(one.cpu_ns for one in descendants() if one.pid not in self._known) / 1e9
        return time.process_time() + waited + others
