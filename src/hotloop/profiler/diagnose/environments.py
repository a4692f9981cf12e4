"""Rules on environments: their own time, vector environment overhead, waiting for the slowest."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hotloop.profiler.diagnose.causes import Explanation
from hotloop.profiler.diagnose.evidence import Evidence, SampleRow, is_waiting, total_time
from hotloop.profiler.diagnose.limits import LIMITS
from hotloop.profiler.session.lockstep import lockstep
from hotloop.timing.table import duration

_STEPS = ("env_step", "env_reset")


def environment_bound(evidence: Evidence) -> Explanation | None:
    """Detect environments that the main process steps one after another while cores are idle.

    Blocked environments need no idle core, since simulators outside the process do the work.
    """
    main = evidence.main
    if any(evidence.span_totals(worker, "env_step")[0] for worker in evidence.session.workers):
        return None
    training = evidence.training
    if training.get("has_auto_workers"):
        return None  # `--workers auto` measured that workers are slower in a run of this length
    count, _ = evidence.span_totals(main, "env_step")
    _, total_ns = evidence.span_totals(main, *_STEPS)
    is_small = total_ns < LIMITS.environment_share * evidence.duration_ns
    if not count or is_small or total_ns < LIMITS.parallel_step_ns * count:
        return None
    num_envs = int(evidence.fact("num_envs")) or 1
    sampled = total_time(
        row
        for row in evidence.rows_of(main)
        if row.stage == "env" or set(_STEPS).intersection(row.sample.path)
    )
    is_elsewhere = evidence.has_enough_samples and sampled.ns < 0.5 * total_ns
    if total_ns > evidence.duration_ns or is_elsewhere:
        return None  # threads of the main process step them, perhaps at the same time
    steps = total_time(row for row in evidence.rows_of(main) if row.stage == "env")
    # Environments that sleep or wait for an external simulator need no core.
    is_blocked = steps.ns > 0 and steps.on_core_ns + steps.queued_ns < 0.5 * steps.ns
    side_by_side = num_envs if num_envs > 1 else max(main.cores, 1)
    if not is_blocked:
        used = evidence.cpu_ns / evidence.duration_ns
        idle = main.cores - max(1.0, used)
        side_by_side = min(side_by_side, 1 + max(0, round(idle)))
    saved = (total_ns - LIMITS.transfer_ns * count) * (1 - 1 / side_by_side)
    if saved < LIMITS.structure_share * evidence.duration_ns:
        return None
    own_options = f"--num-envs {side_by_side} --workers auto" if num_envs == 1 else "--workers auto"
    texts = {"workers": str(side_by_side)}
    if training:
        texts["advice"] = f"Pass `{own_options}`, which measures how many workers are faster."
    return Explanation(
        saved,
        (
            f"{evidence.share(total_ns):.0%} of the time is spent in environment steps and resets",
            f"a step takes {duration(total_ns / count)} on average, the round trip to another "
            "process about 0.2 ms",
            f"{num_envs} environment{'s' if num_envs > 1 else ''}, {main.cores} cores, one process",
        ),
        texts=texts,
        confidence=0.8 if num_envs > 1 else 0.5,
    )


class LockstepTimes(NamedTuple):
    """Time of a vector environment's steps whose environments run in other processes.

    Attributes:
        steps: number of steps.
        total_ns: time of the steps in the main process.
        slowest_ns, mean_ns: maximum and mean of the processes' own time in each step, summed.
        own_ns: median own time of one environment's step.
        inline_ns: time of all environments' steps one after another, at the typical time each.
        is_by_step: whether the times come from single events. Otherwise they come from totals, and
            `slowest_ns` is the slowest process's total.
    """

    steps: int
    total_ns: float
    slowest_ns: float
    mean_ns: float
    own_ns: float
    inline_ns: float
    num_workers: int
    is_by_step: bool


def lockstep_times(evidence: Evidence) -> LockstepTimes | None:
    """Return the parts of a vector environment's steps, None if none uses other processes."""
    main = evidence.main
    steps, total_ns = evidence.span_totals(main, "vector_step")
    workers = [x for x in evidence.session.workers if evidence.span_totals(x, "env_step")[0]]
    if not steps or not workers:
        return None
    totals = [evidence.span_totals(worker, *_STEPS)[1] for worker in workers]
    inline_ns, typical = 0.0, []
    for worker in workers:
        for _, node in worker.tree.walk():
            if node.name == "env_step" and node.count:
                # For short steps use the median, since sharing cores raises the mean.
                typical_ns = node.percentile(50)
                inline_ns += node.count * (typical_ns if node.mean_ns < 1e6 else node.mean_ns)
                typical.append(typical_ns)
    inline_ns += steps * LIMITS.stacking_ns
    slowest_ns, mean_ns = max(totals), sum(totals) / len(totals)
    by_step = lockstep(evidence.session)
    is_by_step = by_step is not None and by_step.num_steps >= 20
    if by_step is not None and is_by_step:
        # Scale the latest events, which represent all steps, to the total time.
        slowest = by_step.slowest_ns.astype(np.float64)
        present = by_step.busy_ns + by_step.waste_ns
        mean = slowest * by_step.busy_ns / np.maximum(present, 1)
        scale = total_ns / max(1, int((by_step.end_ns - by_step.start_ns).sum()))
        slowest_ns, mean_ns = slowest.sum() * scale, mean.sum() * scale
    return LockstepTimes(
        steps,
        total_ns,
        float(slowest_ns),
        float(mean_ns),
        float(np.median(typical)),
        inline_ns,
        len(workers),
        is_by_step,
    )


def stragglers(evidence: Evidence) -> Explanation | None:
    """Detect vector steps that wait for their slowest environment."""
    times = lockstep_times(evidence)
    if times is None or not times.is_by_step or times.num_workers < 2:
        return None
    waste = times.slowest_ns - times.mean_ns
    is_even = times.slowest_ns < LIMITS.straggler_ratio * times.mean_ns
    if is_even or waste < LIMITS.structure_share * evidence.duration_ns:
        return None
    return Explanation(
        waste,
        (
            f"{times.num_workers} processes make {times.steps:,} steps in lock-step",
            f"a step takes {duration(times.total_ns / times.steps)}, in which a process works for "
            f"{duration(times.mean_ns / times.steps)} on average and the slowest for "
            f"{duration(times.slowest_ns / times.steps)}",
            f"Σ(slowest − own) is {waste * times.num_workers / 1e9:,.1f} s of the processes' time, "
            f"{evidence.share(waste):.0%} of the total",
        ),
        [row for row in _transfers(evidence) if is_waiting(row)],
        texts={"workers": times.num_workers},
    )


def _transfers(evidence: Evidence) -> list[SampleRow]:
    """Return the main process's rows that send or wait in vector steps."""
    return [
        row
        for row in evidence.rows
        if row.process is evidence.main
        and "vector_step" in row.sample.path
        and (is_waiting(row) or any("/multiprocessing/" in x.file for x in row.stack.frames))
    ]


def transfer(evidence: Evidence) -> Explanation | None:
    """Detect steps whose round trip to other processes takes longer than the steps themselves.

    One process must be faster in total. Several processes may pay off together even if each
    transfer takes longer than its step.
    """
    times = lockstep_times(evidence)
    if times is None:
        return None
    sending = times.total_ns - times.slowest_ns
    saved = times.total_ns - times.inline_ns
    per_step = sending / times.steps
    if per_step < times.own_ns or saved < LIMITS.transfer_share * evidence.duration_ns:
        return None
    return Explanation(
        saved,
        (
            f"a vector step takes {duration(times.total_ns / times.steps)}, one environment's step "
            f"{duration(times.own_ns)}",
            f"{duration(per_step)} of a vector step is sending, waking and receiving",
            f"all environments one after another would take "
            f"{duration(times.inline_ns / times.steps)}",
        ),
        _transfers(evidence),
        confidence=0.9 if times.is_by_step else 0.7,
    )
