"""Forecasts of how fast experience comes, for each way of stepping the environments.

A small model, in pure functions: from what was measured of one environment to a choice. What it
says is a forecast, and is told beside what was measured in the end.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any

import numpy as np

from hotloop.rollouts.protocol import Schedule

# What workers cost, measured once: beginning and ending a row; waking each other, for a fragment
# and for each worker of it; starting one, environments not included.
ROW_S = 5e-6
FRAGMENT_S = 0.4e-3
NUDGE_S = 0.05e-3
START_S = 0.5
# Workers must be so much faster than none, and save so many seconds: the forecast knows nothing of
# learning, which may be most of the run. And another schedule must be so much faster than the
# default.
WORKERS_GAIN = 1.15
LEAST_SAVING_S = 2.0
SCHEDULE_GAIN = 1.3
# Of what is forecast this close to the fastest, the fewest workers are taken.
CLOSE = 1.05
# Environments that compute more than this share of their time get no more workers than cores.
_BUSY = 0.5
# async: both slots of a worker should last for a pause of the learner of so many seconds.
_PAUSE_S = 0.1


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One of the run's environments, stepped in one process with nothing beside it.

    Attributes:
        step_s, step_sd_s, step_p99_s: wall time of a step, the reset that may follow it left out.
        busy_share: the part of that time in which it computes, or waits for a core; the rest it
            waits for something else.
        reset_s: wall time of a reset.
        reset_share: resets for each step.
        loop_s: what stepping a group costs once, however many environments it has.
        act_s: what acting for B environments at once costs, by B.
        copy_s: what copying one transition out of a worker's memory costs.
        make_s: making one environment.
        import_s: what making the first one in a process takes beyond that.
        num_steps: steps that this is made of.
        steps_together: environments that step side by side in a way of their own, as many as a
            vector environment has; None: each is stepped by itself.
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
    make_s: float = 0.0
    import_s: float = 0.0
    num_steps: int = 0
    steps_together: int | None = None

    @property
    def mean_s(self) -> float:
        """Of a step and its share of resets."""
        return self.step_s + self.reset_share * self.reset_s

    @property
    def sd_s(self) -> float:
        """Standard deviation of that: a reset comes or does not."""
        p = self.reset_share
        return math.sqrt(self.step_sd_s**2 + p * (1 - p) * self.reset_s**2)

    def acting_s(self, num_envs: int) -> float:
        """Acting for so many, between what was measured by straight lines."""
        sizes = sorted(self.act_s)
        if not sizes:
            return 0.0
        return float(np.interp(num_envs, sizes, [self.act_s[size] for size in sizes]))

    def __str__(self) -> str:
        text = f"a step takes {_ms(self.step_s)} (sd {_ms(self.step_sd_s)}"
        text += f", p99 {_ms(self.step_p99_s)}, {min(1.0, self.busy_share):.0%} of it computing)"
        if self.reset_share > 0:
            text += f", a reset {_ms(self.reset_s)} every {1 / self.reset_share:,.0f} steps"
        return text + f", acting for one {_ms(self.acting_s(1))}"


@dataclass(frozen=True, kw_only=True)
class Task:
    """What a choice must leave as it is, and what there is to do it with.

    Attributes:
        num_envs: N.
        num_steps: T of a fragment.
        num_left: transitions that the run has to collect.
        schedule, overlap: as the user has set them.
        uneven: the schedule that waits for nobody, which may be taken instead of `barrier`.
        num_cores: C.
        max_workers: that there is memory for.
    """

    num_envs: int
    num_steps: int
    num_left: int = 1_000_000
    schedule: Schedule = "barrier"
    overlap: bool = False
    uneven: Schedule = "variable"
    num_cores: int = 1
    max_workers: int = 64


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """One way to step the environments.

    Attributes:
        workers: W; 0: none but the learner's process.
        envs_per_worker: environments of each, or of the learner's process.
        schedule: which.
        steps_per_s: transitions collected a second, while the learner does not hold it up.
        wait_share: of a fragment's time, waiting for the slowest worker.
        start_s: making environments, starting workers.
        total_s: for the whole run, starting included, learning not.
    """

    workers: int
    envs_per_worker: int
    schedule: Schedule
    steps_per_s: float
    wait_share: float = 0.0
    start_s: float = 0.0
    total_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What was chosen, and from what.

    Attributes:
        taken: the way that is taken.
        candidates: all that were looked at.
        measured: what they were computed from.
        fragment_steps: of `async`, steps that a worker may be ahead, twice; None: as they are set.
    """

    taken: Forecast
    candidates: Sequence[Forecast]
    measured: Measured
    fragment_steps: int | None = None

    @property
    def inline(self) -> Forecast | None:
        """The learner's own process; None where the schedule rules it out."""
        return next((one for one in self.candidates if one.workers == 0), None)

    def summary(self, schedule: str | None = None) -> str:
        """For the user, in one line.

        Args:
            schedule: the name of the one that is taken, where users know it by another.
        """
        taken = self.taken
        what = "none, the learner's process steps all environments"
        if taken.workers:
            what = f"{taken.workers} × {taken.envs_per_worker} environments"
            what += f", {schedule or taken.schedule}"
        text = f"{what} (auto): {taken.steps_per_s:,.0f} steps/s of collecting forecast"
        others = [one for one in self.candidates if one.workers]
        if taken.workers and self.inline is not None:
            text += f", {self.inline.steps_per_s:,.0f} without workers"
        elif not taken.workers and others:
            best = max(others, key=lambda one: one.steps_per_s)
            text += f", {best.steps_per_s:,.0f} with {best.workers}, "
            text += f"which would take {best.start_s:.1f} s to start"
        return f"{text}; {self.measured}"


def expected_maximum(count: int) -> float:
    """E[max] of independent standard normal variables.

    ∫₀^∞ (1 − Φ(x)^W) dx − ∫₋∞^0 Φ(x)^W dx: 0 of one, 1/√π of two, 3/(2√π) of three.

    Args:
        count: W ≥ 1.
    """
    normal, x = NormalDist(), np.arange(-800, 801) / 100
    power = np.array([normal.cdf(float(one)) for one in x]) ** count
    return float(np.trapezoid(np.heaviside(x, 0.5) - power, x))


def forecast(measured: Measured, task: Task, workers: int, schedule: Schedule) -> Forecast:
    """How fast experience comes in one way.

    A group of n environments takes a row of steps in r = loop + n · step + act(n), resets included,
    one environment after another. A fragment of T rows by W workers takes

        T · max(r, W r_cpu / C) + wait + transfer,

    r_cpu the computing part of r, and C the cores but for the one on which the learner is busy at
    the same time (`async`, `overlap`). Waiting for the slowest of W sums of T · n steps is
    m_W · sd · √(T n), m_W the expected maximum of W standard normal variables; under `variable`
    only for the last row, √n; under `async` for nobody.

    Args:
        measured: of one environment.
        task: what is to be done.
        workers: W, which divides N; 0: the learner's process alone.
        schedule: which.
    """
    num_groups = max(workers, 1)
    num_envs, num_steps = task.num_envs // num_groups, task.num_steps
    own_s = measured.loop_s + measured.acting_s(num_envs)
    row_s, computing_s = own_s + num_envs * measured.mean_s, own_s
    computing_s += num_envs * measured.mean_s * measured.busy_share
    wait_s, rest_s, start_s = 0.0, 0.0, measured.make_s * task.num_envs
    if workers:
        is_shared = task.overlap or schedule == "async"
        num_cores = max(1, task.num_cores - is_shared)
        row_s, computing_s = row_s + ROW_S, computing_s + ROW_S
        row_s = max(row_s, workers * computing_s / num_cores)
        waited_for = {"barrier": num_steps, "variable": 1, "async": 0}[schedule] * num_envs
        wait_s = expected_maximum(workers) * measured.sd_s * math.sqrt(waited_for)
        rest_s = task.num_envs * num_steps * measured.copy_s
        if schedule != "async":
            rest_s += FRAGMENT_S + workers * NUDGE_S
        # The first worker is started alone, the others then side by side.
        num_turns = 1 + math.ceil((workers - 1) / task.num_cores)
        start_s = num_turns * (START_S + measured.import_s + num_envs * measured.make_s)
    fragment_s = num_steps * row_s + wait_s + rest_s
    steps_per_s = task.num_envs * num_steps / fragment_s
    return Forecast(
        workers=workers,
        envs_per_worker=num_envs,
        schedule=schedule,
        steps_per_s=steps_per_s,
        wait_share=wait_s / fragment_s,
        start_s=start_s,
        total_s=start_s + task.num_left / steps_per_s,
    )


def choose(measured: Measured, task: Task) -> Choice:
    """Which way to take: what is learned stays the same problem, N environments and T steps.

    - W are divisors of N, at most C for environments that compute, C / busy_share for those that
      wait, and as many as there is memory for; with 0, where the schedule allows it.
    - Of what takes at most 5 % longer than the fastest, the fewest workers.
    - Where the user has left `barrier`: the schedule that waits for nobody, if the run is forecast
      to be 1.3 times as fast by it and waiting for the slowest is why.
    - None, unless workers are forecast to be 1.15 times as fast, their start included, and to save
      two seconds.
    """
    counts = _counts(measured, task)
    needs_workers = task.schedule != "barrier" or task.overlap
    asked = [forecast(measured, task, count, task.schedule) for count in counts if count]
    if not asked and needs_workers:
        asked = [forecast(measured, task, 1, task.schedule)]
    candidates = list(asked)
    inline = None
    if not needs_workers:
        inline = forecast(measured, task, 0, task.schedule)
        candidates.append(inline)
    taken = _best(candidates)
    uneven: list[Forecast] = []
    if task.schedule == "barrier" and task.uneven != "barrier":
        uneven = [
            forecast(measured, task, one.workers, task.uneven)
            for one in asked
            if one.workers > 1 and 1 - one.wait_share <= 1 / SCHEDULE_GAIN
        ]
        if uneven and taken.total_s >= SCHEDULE_GAIN * _best(uneven).total_s:
            taken = _best(uneven)
    if inline is not None:
        saved_s = inline.total_s - taken.total_s
        if inline.total_s < WORKERS_GAIN * taken.total_s or saved_s < LEAST_SAVING_S:
            taken = inline
    fragment_steps = None
    if taken.schedule == "async" and task.schedule != "async":
        row_s = task.num_envs / taken.steps_per_s
        enough = math.ceil(math.log2(max(1.0, _PAUSE_S / 2 / row_s)))
        fragment_steps = min(512, max(8, 2**enough))
    return Choice(
        taken=taken,
        candidates=[*candidates, *uneven],
        measured=measured,
        fragment_steps=fragment_steps,
    )


def _counts(measured: Measured, task: Task) -> list[int]:
    """The numbers of workers to look at, 0 left out."""
    together = measured.steps_together
    if together is not None:  # a worker can have as many as it makes, no fewer
        return [task.num_envs // together] if task.num_envs % together == 0 else []
    busy = max(measured.busy_share, 1e-3)
    # One that computes on several cores by itself counts as several.
    limit = task.num_cores / (max(1.0, busy) if busy > _BUSY else busy)
    limit = max(1, min(limit, task.max_workers))
    return [w for w in range(1, task.num_envs + 1) if task.num_envs % w == 0 and w <= limit]


def _best(candidates: Sequence[Forecast]) -> Forecast:
    fastest = min(one.total_s for one in candidates)
    close = [one for one in candidates if one.total_s <= CLOSE * fastest]
    return min(close, key=lambda one: one.workers)


def _ms(seconds: float) -> str:
    if math.isnan(seconds):
        return "–"
    return f"{seconds * 1e6:.3g} µs" if seconds < 0.9995e-3 else f"{seconds * 1e3:.4g} ms"


def to_json(choice: Choice, schedule: str | None = None) -> dict[str, Any]:
    """What a run keeps of it; `schedule` as for `Choice.summary`."""
    return {
        "summary": choice.summary(schedule),
        "forecast_steps_per_s": choice.taken.steps_per_s,
        "taken": vars(choice.taken),
        "candidates": [vars(one) for one in choice.candidates],
        "measured": {
            **vars(choice.measured),
            "act_s": {str(size): s for size, s in choice.measured.act_s.items()},
        },
    }
