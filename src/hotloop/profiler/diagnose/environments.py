"""Environments: their own time, what vector environments add to it, and who waits for whom."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hotloop.profiler.diagnose.diagnosis import Diagnosis
from hotloop.profiler.diagnose.evidence import Evidence, spent
from hotloop.profiler.session.lockstep import lockstep
from hotloop.timing.table import duration

# What a step in another process costs beside the step: pickling, two pipes, being woken; 0.1 to
# 0.3 ms with Gymnasium's and Stable-Baselines3's vector environments.
_TRANSFER_NS = 200_000
# What a vector environment in one process adds to a step: stacking observations, 10 to 30 µs.
_STACKING_NS = 20_000
_STEPS = ("env_step", "env_reset")


def environment_bound(evidence: Evidence) -> Diagnosis | None:
    """Environments that are stepped one after another in main, while cores are idle.

    Or while none is needed, since simulators outside do the work. Half of the time, since less
    saves less than a third on two cores; steps of 0.5 ms, since others are no dearer than their way
    to another process and back.
    """
    main = evidence.main
    if any(evidence.spans(one, "env_step")[0] for one in evidence.session.workers):
        return None
    count, _ = evidence.spans(main, "env_step")
    _, total_ns = evidence.spans(main, *_STEPS)
    if not count or total_ns < 0.5 * evidence.whole_ns or total_ns < 500_000 * count:
        return None
    num_envs = int(evidence.fact("num_envs")) or 1
    steps = spent(row for row in evidence.rows_of(main) if row.stage == "env")
    # Asleep, or waiting for a simulator outside, environments need no core each.
    is_blocked = steps.ns > 0 and steps.on_core_ns + steps.queued_ns < 0.5 * steps.ns
    side_by_side = num_envs if num_envs > 1 else max(main.cores, 1)
    if not is_blocked:
        used = evidence.cpu_ns / evidence.whole_ns
        idle = main.cores - max(1.0, used)
        side_by_side = min(side_by_side, 1 + max(0, round(idle)))
    saved = (total_ns - _TRANSFER_NS * count) * (1 - 1 / side_by_side)
    if saved < 0.15 * evidence.whole_ns:
        return None
    return Diagnosis(
        "environment-bound",
        "environments are stepped one after another",
        0.8 if num_envs > 1 else 0.5,
        evidence.gain(saved),
        (
            f"{evidence.share(total_ns):.0%} of the time is the environments' own steps and resets",
            f"a step takes {duration(total_ns / count)} on average; sending it to another process "
            "and back takes some 0.2 ms",
            f"{num_envs} environment{'s' if num_envs > 1 else ''}, {main.cores} cores, one process",
        ),
        f"Step {side_by_side} environments side by side: SubprocVecEnv, AsyncVectorEnv, or "
        f"`hotloop train … --workers {side_by_side}`, whose workers don't wait for each other.",
        evidence.profile_again,
        is_rebuild=True,
    )


class Lockstep(NamedTuple):
    """Steps of a vector environment whose environments live in other processes.

    Attributes:
        steps: how many.
        total_ns: in main.
        slowest_ns, mean_ns: of the processes' own time, the largest and the mean of each step,
            summed.
        own_ns: the typical (median) own time of a process's one environment's step.
        inline_ns: all environments' steps one after another, at the typical time each.
        is_by_step: from events one by one; otherwise from totals alone, and then `slowest_ns` is
            not known better than the slowest process's total.
    """

    steps: int
    total_ns: float
    slowest_ns: float
    mean_ns: float
    own_ns: float
    inline_ns: float
    num_workers: int
    is_by_step: bool


def lockstep_steps(evidence: Evidence) -> Lockstep | None:
    """What a vector environment's steps consist of; None: there is none with other processes."""
    main = evidence.main
    steps, total_ns = evidence.spans(main, "vector_step")
    workers = [one for one in evidence.session.workers if evidence.spans(one, "env_step")[0]]
    if not steps or not workers:
        return None
    totals = [evidence.spans(one, *_STEPS)[1] for one in workers]
    inline_ns, typical = 0.0, []
    for one in workers:
        for _, node in one.tree.walk():
            if node.name == "env_step" and node.count:
                # Short steps are told by the median: the mean holds what sharing cores adds.
                typical_ns = node.percentile(50)
                inline_ns += node.count * (typical_ns if node.mean_ns < 1e6 else node.mean_ns)
                typical.append(typical_ns)
    inline_ns += steps * _STACKING_NS
    slowest_ns, mean_ns = max(totals), sum(totals) / len(totals)
    by_step = lockstep(evidence.session)
    is_by_step = by_step is not None and by_step.num_steps >= 20
    if by_step is not None and is_by_step:
        # The events are the latest; what they say of a step holds for all.
        slowest = by_step.slowest_ns.astype(np.float64)
        present = by_step.busy_ns + by_step.waste_ns
        mean = slowest * by_step.busy_ns / np.maximum(present, 1)
        scale = total_ns / max(1, int((by_step.end_ns - by_step.start_ns).sum()))
        slowest_ns, mean_ns = slowest.sum() * scale, mean.sum() * scale
    return Lockstep(
        steps,
        total_ns,
        float(slowest_ns),
        float(mean_ns),
        float(np.median(typical)),
        inline_ns,
        len(workers),
        is_by_step,
    )


def stragglers(evidence: Evidence) -> Diagnosis | None:
    """Every step waits for the slowest environment of it.

    A seventh of the time, and steps 1.3 times as long as the mean: two equal environments that
    share a core with something else come to 1.1 to 1.2.
    """
    found = lockstep_steps(evidence)
    if found is None or not found.is_by_step or found.num_workers < 2:
        return None
    waste = found.slowest_ns - found.mean_ns
    if waste < 0.15 * evidence.whole_ns or found.slowest_ns < 1.3 * found.mean_ns:
        return None
    return Diagnosis(
        "lockstep-stragglers",
        "every step waits for its slowest environment",
        0.9,
        evidence.gain(waste),
        (
            f"{found.num_workers} processes step in lock-step, {found.steps:,} times",
            f"of a step's {duration(found.total_ns / found.steps)} a process is at work for "
            f"{duration(found.mean_ns / found.steps)} on average, the slowest for "
            f"{duration(found.slowest_ns / found.steps)}",
            f"Σ(slowest − own) is {waste * found.num_workers / 1e9:,.1f} s of the processes' time: "
            f"{evidence.share(waste):.0%} of what they have",
        ),
        "Let every process collect a fragment of many steps by itself, and train on what is ready: "
        f"`hotloop train … --workers {found.num_workers} --schedule variable` (or async).",
        evidence.profile_again,
    )


def transfer(evidence: Evidence) -> Diagnosis | None:
    """Sending steps to processes and back takes longer than the steps.

    Only where one process would be faster: several processes pay together, even where each one's
    transfer is dearer than its step.
    """
    found = lockstep_steps(evidence)
    if found is None:
        return None
    sending = found.total_ns - found.slowest_ns
    saved = found.total_ns - found.inline_ns
    per_step = sending / found.steps
    if per_step < found.own_ns or saved < 0.1 * evidence.whole_ns:
        return None
    return Diagnosis(
        "transfer-dearer-than-step",
        "sending steps to other processes takes longer than the steps",
        0.9 if found.is_by_step else 0.7,
        evidence.gain(saved),
        (
            f"a vector step takes {duration(found.total_ns / found.steps)}; an environment's own "
            f"step {duration(found.own_ns)}",
            f"{duration(per_step)} of it is sending, waking and receiving",
            f"all environments one after another would take "
            f"{duration(found.inline_ns / found.steps)}",
        ),
        "Step them in one process (DummyVecEnv, SyncVectorEnv), or let workers collect whole "
        "fragments by themselves: `hotloop train … --workers auto` measures which is faster.",
        evidence.profile_again,
    )
