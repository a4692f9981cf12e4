"""Forecasts of the collection speed for each number of workers and schedule.

All functions are pure. They lead from the measured timing of one environment to the fastest choice.
At the end of a run, the forecast is printed next to the measured speed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any

import numpy as np

from hotloop.base.rounding import format_rate
from hotloop.rollouts.protocol import Schedule
from hotloop.timing.table import duration

# Measured costs of workers.
ROW_S = 5e-6  # beginning and ending a row
FRAGMENT_S = 0.4e-3  # waking each other for a fragment,
NUDGE_S = 0.05e-3  # and in addition for each worker
START_S = 0.5  # starting a worker, without its environments
# Minimum speed-up and minimum saving by workers. The forecast does not include learning, which may
# take most of the run.
WORKERS_GAIN = 1.15
MIN_SAVING_S = 2.0
# Minimum speed-up by a schedule other than the default.
SCHEDULE_GAIN = 1.3
# Among the candidates that take at most this factor longer than the fastest, choose the fewest
# workers.
MAX_SLOWDOWN = 1.05
# Environments that compute for a larger share of their time get no more workers than cores.
_MAX_COMPUTE_SHARE = 0.5
# async: the two slots of a worker should hold enough steps for a pause of the learner this long.
_PAUSE_S = 0.1


@dataclass(frozen=True, kw_only=True)
class EnvTiming:
    """Timing of one environment of the run, measured alone in one process.

    Attributes:
        step_s, step_sd_s, step_p99_s: Wall time of a step, without a reset after it.
        busy_share: Share of this time in which it computes or is queued for a core. Otherwise it
            waits.
        reset_s: Wall time of a reset.
        reset_share: Number of resets per step.
        loop_s: Fixed time per step of a group, independent of its size.
        act_s: Time of acting for B environments at once, by B.
        copy_s: Time of copying one transition out of a worker's memory.
        transition_bytes: Size of a transition in a fragment.
        make_s: Time of making one environment.
        import_s: Additional time of making the first environment in a process.
        num_steps: Number of measured steps.
        steps_together: Number of environments in a vector environment, which steps them together.
            None if each environment is stepped separately.
    """

    step_s: float
    step_sd_s: float = 0.0
    step_p99_s: float = math.nan
    busy_share: float = 1.0
    reset_s: float = 0.0
    reset_share: float = 0.0
    loop_s: float = 0.0
    act_s: Mapping[int, float] = field(default_factory=dict)
    copy_s: float = 0.0
    transition_bytes: int = 0
    make_s: float = 0.0
    import_s: float = 0.0
    num_steps: int = 0
    steps_together: int | None = None

    @property
    def mean_s(self) -> float:
        """Mean wall time of a step and its share of resets."""
        return self.step_s + self.reset_share * self.reset_s

    @property
    def sd_s(self) -> float:
        """Standard deviation of this time, over steps with and without a reset."""
        p = self.reset_share
        return math.sqrt(self.step_sd_s**2 + p * (1 - p) * self.reset_s**2)

    def acting_s(self, num_envs: int) -> float:
        """Return the time of acting for `num_envs` environments, by linear interpolation."""
        sizes = sorted(self.act_s)
        if not sizes:
            return 0.0
        return float(np.interp(num_envs, sizes, [self.act_s[size] for size in sizes]))

    def steps_s(self, num_envs: int) -> float:
        """Return the time of a step of `num_envs` environments, one after another."""
        return self.loop_s + num_envs * self.mean_s

    def steps_busy_s(self, num_envs: int) -> float:
        """Return the part of `steps_s` that needs a core."""
        return self.loop_s + num_envs * self.mean_s * self.busy_share

    def row_s(self, num_envs: int) -> float:
        """Return the time of acting and of a step, for `num_envs` environments."""
        return self.steps_s(num_envs) + self.acting_s(num_envs)

    def row_busy_s(self, num_envs: int) -> float:
        """Return the part of `row_s` that needs a core."""
        return self.steps_busy_s(num_envs) + self.acting_s(num_envs)

    def describe(self, *group_sizes: int) -> str:
        """Return a sentence about a step and about acting for groups of environments."""
        step, sd, p99, reset = (
            duration(1e9 * seconds)
            for seconds in (self.step_s, self.step_sd_s, self.step_p99_s, self.reset_s)
        )
        text = f"a step takes {step} (sd {sd}, p99 {p99}, "
        text += f"{min(1.0, self.busy_share):.0%} computing)"
        if self.reset_share > 0:
            text += f", a reset {reset} every {1 / self.reset_share:,.0f} steps"
        for size in dict.fromkeys(group_sizes):
            group = "one environment" if size == 1 else f"{size} environments"
            text += f", acting for {group} {duration(1e9 * self.acting_s(size))}"
        return text

    def __str__(self) -> str:
        return self.describe(1)


@dataclass(frozen=True, kw_only=True)
class CollectionTask:
    """The fixed settings of a run, and the available resources.

    Attributes:
        num_envs: N.
        num_steps: T of a fragment.
        num_remaining: Number of transitions to collect.
        schedule, overlap: Settings of the user.
        nonblocking_schedule: Schedule that may replace `barrier`, to avoid waiting for workers.
        num_cores: C.
        max_workers: Maximum number of workers that fit into memory.
    """

    num_envs: int
    num_steps: int
    num_remaining: int = 1_000_000
    schedule: Schedule = "barrier"
    overlap: bool = False
    nonblocking_schedule: Schedule = "variable"
    num_cores: int = 1
    max_workers: int = 64

    def worker_cores(self, schedule: Schedule) -> int:
        """Return the cores for workers: without one if the learner is busy at the same time."""
        return max(1, self.num_cores - (self.overlap or schedule == "async"))


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """Forecast of one number of workers and one schedule.

    Attributes:
        workers: W. 0 means that the learner's process steps the environments.
        envs_per_worker: Environments of each worker, or of the learner's process.
        schedule: Schedule.
        steps_per_s: Collected transitions per second, without waiting for the learner.
        wait_share: Share of a fragment's time spent waiting for the slowest worker.
        start_s: Time of making environments and starting workers.
        total_s: Time of the whole run, with the start but without learning.
    """

    workers: int
    envs_per_worker: int
    schedule: Schedule
    steps_per_s: float
    wait_share: float = 0.0
    start_s: float = 0.0
    total_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class CollectionChoice:
    """The chosen number of workers and schedule, with its alternatives.

    Attributes:
        chosen: Chosen candidate.
        candidates: All candidates.
        env_timing: Timing from which they were computed.
        fragment_steps: Steps of a slot for `async`. A worker has two slots. None means the
            configured value.
    """

    chosen: Forecast
    candidates: Sequence[Forecast]
    env_timing: EnvTiming
    fragment_steps: int | None = None

    @property
    def inline(self) -> Forecast | None:
        """The candidate without workers. None if the schedule needs workers."""
        return next((x for x in self.candidates if x.workers == 0), None)

    def summary(self, schedule: str | None = None) -> str:
        """Return a description for the user, in one line.

        Args:
            schedule: Name of the chosen schedule, if it has another name for the user.
        """
        chosen = self.chosen
        workers = "none, the learner's process steps all environments"
        if chosen.workers:
            workers = f"{chosen.workers} × {chosen.envs_per_worker} environments"
            workers += f", {schedule or chosen.schedule}"
        text = f"{workers} (auto): forecast {format_rate(chosen.steps_per_s)} steps/s"
        with_workers = [x for x in self.candidates if x.workers]
        if chosen.workers and self.inline is not None:
            text += f", {format_rate(self.inline.steps_per_s)} without workers"
        elif not chosen.workers and with_workers:
            best = max(with_workers, key=lambda x: x.steps_per_s)
            text += f", {format_rate(best.steps_per_s)} with {best.workers}, "
            text += f"which take {best.start_s:.1f} s to start"
        return f"{text}; {self.env_timing}"

    def to_json(self, schedule: str | None = None) -> dict[str, Any]:
        """Return the record for the run directory; `schedule` as in `summary`."""
        act_s = {str(size): seconds for size, seconds in self.env_timing.act_s.items()}
        return {
            "summary": self.summary(schedule),
            "forecast_steps_per_s": self.chosen.steps_per_s,
            "taken": vars(self.chosen),
            "candidates": [vars(candidate) for candidate in self.candidates],
            "measured": {**vars(self.env_timing), "act_s": act_s},
        }


def expected_maximum(count: int) -> float:
    """Return E[max] of independent standard normal variables.

    ∫₀^∞ (1 − Φ(x)^W) dx − ∫₋∞^0 Φ(x)^W dx: 0 for one, 1/√π for two, 3/(2√π) for three.

    Args:
        count: Number of variables, W ≥ 1.
    """
    normal, x = NormalDist(), np.arange(-800, 801) / 100
    power = np.array([normal.cdf(float(value)) for value in x]) ** count
    return float((np.heaviside(x, 0.5) - power).sum() * (x[1] - x[0]))


def forecast(
    env_timing: EnvTiming, task: CollectionTask, workers: int, schedule: Schedule
) -> Forecast:
    """Return the forecast for a number of workers and a schedule.

    A row of a group of n environments takes r = loop + n · step + act(n), resets included, one
    environment after another. A fragment of T rows by W workers takes

        T · max(r, W r_cpu / C) + wait + transfer,

    where r_cpu is the computing part of r. C is the number of cores, without one core for a learner
    that is busy at the same time (`async`, `overlap`). The wait for the slowest of W sums of T · n
    steps is m_W · sd · √(T n), where m_W is the expected maximum of W standard normal variables.
    With `variable` the learner waits only for the last row (√n), with `async` for none.

    Args:
        env_timing: Timing of one environment.
        task: Settings and resources.
        workers: W, a divisor of N. 0 means the learner's process alone.
        schedule: Schedule.
    """
    num_groups = max(workers, 1)
    num_envs, num_steps = task.num_envs // num_groups, task.num_steps
    row_s = env_timing.row_s(num_envs)
    wait_s, transfer_s, start_s = 0.0, 0.0, env_timing.make_s * task.num_envs
    if workers:
        busy_s = env_timing.row_busy_s(num_envs) + ROW_S
        row_s = max(row_s + ROW_S, workers * busy_s / task.worker_cores(schedule))
        num_waited_steps = {"barrier": num_steps, "variable": 1, "async": 0}[schedule] * num_envs
        wait_s = expected_maximum(workers) * env_timing.sd_s * math.sqrt(num_waited_steps)
        transfer_s = task.num_envs * num_steps * env_timing.copy_s
        if schedule != "async":
            transfer_s += FRAGMENT_S + workers * NUDGE_S
        # The first worker starts alone, then the others start in parallel.
        num_turns = 1 + math.ceil((workers - 1) / task.num_cores)
        start_s = num_turns * (START_S + env_timing.import_s + num_envs * env_timing.make_s)
    fragment_s = num_steps * row_s + wait_s + transfer_s
    steps_per_s = task.num_envs * num_steps / fragment_s
    return Forecast(
        workers=workers,
        envs_per_worker=num_envs,
        schedule=schedule,
        steps_per_s=steps_per_s,
        wait_share=wait_s / fragment_s,
        start_s=start_s,
        total_s=start_s + task.num_remaining / steps_per_s,
    )


def choose_collection(env_timing: EnvTiming, task: CollectionTask) -> CollectionChoice:
    """Choose a number of workers and a schedule, for unchanged N and T.

    - The candidates are divisors of N: at most C for environments that compute, at most
      C / busy_share for those that wait, and no more than fit into memory. 0 is a candidate if the
      schedule allows it.
    - The choice is the fewest workers that take at most 5 % longer than the fastest candidate.
    - The nonblocking schedule replaces a default `barrier` if it makes the run 1.3 times as fast by
      forecast, and waiting for the slowest is the reason.
    - Workers are used only if they make the run, with their start, 1.15 times as fast and save two
      seconds.
    """
    # Candidates with the user's schedule.
    counts = _counts(env_timing, task)
    needs_workers = task.schedule != "barrier" or task.overlap
    with_workers = [forecast(env_timing, task, count, task.schedule) for count in counts if count]
    if not with_workers and needs_workers:
        with_workers = [forecast(env_timing, task, 1, task.schedule)]
    candidates = list(with_workers)
    inline = None
    if not needs_workers:
        inline = forecast(env_timing, task, 0, task.schedule)
        candidates.append(inline)
    chosen = _best(candidates)
    # Candidates with the nonblocking schedule.
    nonblocking: list[Forecast] = []
    if task.schedule == "barrier" and task.nonblocking_schedule != "barrier":
        nonblocking = [
            forecast(env_timing, task, x.workers, task.nonblocking_schedule)
            for x in with_workers
            if x.workers > 1 and 1 - x.wait_share <= 1 / SCHEDULE_GAIN
        ]
        if nonblocking and chosen.total_s >= SCHEDULE_GAIN * _best(nonblocking).total_s:
            chosen = _best(nonblocking)
    # No workers, unless they save enough.
    if inline is not None:
        saved_s = inline.total_s - chosen.total_s
        if inline.total_s < WORKERS_GAIN * chosen.total_s or saved_s < MIN_SAVING_S:
            chosen = inline
    fragment_steps = None
    if chosen.schedule == "async" and task.schedule != "async":
        row_s = task.num_envs / chosen.steps_per_s
        exponent = math.ceil(math.log2(max(1.0, _PAUSE_S / 2 / row_s)))
        fragment_steps = min(512, max(8, 2**exponent))
    return CollectionChoice(
        chosen=chosen,
        candidates=[*candidates, *nonblocking],
        env_timing=env_timing,
        fragment_steps=fragment_steps,
    )


def _counts(env_timing: EnvTiming, task: CollectionTask) -> list[int]:
    """Return the candidates for the number of workers, without 0."""
    group_size = env_timing.steps_together
    if group_size is not None:  # a worker steps one whole vector environment
        return [task.num_envs // group_size] if task.num_envs % group_size == 0 else []
    busy_share = max(env_timing.busy_share, 1e-3)
    # An environment that computes on several cores counts as several.
    limit = task.num_cores / (
        max(1.0, busy_share) if busy_share > _MAX_COMPUTE_SHARE else busy_share
    )
    limit = max(1, min(limit, task.max_workers))
    return [w for w in range(1, task.num_envs + 1) if task.num_envs % w == 0 and w <= limit]


def _best(candidates: Sequence[Forecast]) -> Forecast:
    min_total_s = min(x.total_s for x in candidates)
    fast = [x for x in candidates if x.total_s <= MAX_SLOWDOWN * min_total_s]
    return min(fast, key=lambda x: x.workers)
