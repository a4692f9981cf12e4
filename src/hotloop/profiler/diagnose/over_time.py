"""Changes over a run: a long start, and a loop that gets slower."""

from __future__ import annotations

import numpy as np

from hotloop.profiler.diagnose.diagnosis import Diagnosis
from hotloop.profiler.diagnose.evidence import Evidence, place
from hotloop.profiler.diagnose.replay import sampling_grows
from hotloop.profiler.diagnose.series import STEPS, UPDATES, counted
from hotloop.profiler.session import Process
from hotloop.profiler.session.stages import Leaf
from hotloop.statistics import kendall, theil_sen, thirds

# Of a run's part that is looked at; a tenth each, so that rollouts and updates that take turns by
# the second come out even.
_BINS = 10


def start_up(evidence: Evidence) -> Diagnosis | None:
    """Most of the time goes into importing and starting.

    Half of it, and two seconds: nobody waits for less.
    """
    starting = evidence.stage_ns("import")
    if starting < max(0.5 * evidence.whole_ns, 2e9) or not evidence.is_sampled:
        return None
    rest = evidence.whole_ns - starting
    importing = [one for one in evidence.session.processes if _imports_ns(evidence, one) > 5e8]
    return Diagnosis(
        "start-up",
        "importing and starting take most of the time",
        0.6,
        None,
        (
            f"{evidence.share(starting):.0%} of the time ({starting / 1e9:.1f} s) is importing and "
            f"starting, {rest / 1e9:.1f} s are left for the rest",
            f"{len(importing)} of {len(evidence.session.processes)} processes import for half a "
            "second and longer",
        ),
        "Do more in one process (several seeds, several settings), import what workers don't need "
        "where it is needed, and let workers be forked or live on.",
        f"python -X importtime {evidence.target} 2>&1 | sort -t'|' -k2 -n | tail -20",
    )


def _imports_ns(evidence: Evidence, process: Process) -> float:
    return sum(row.sample.elapsed_ns for row in evidence.rows_of(process) if row.stage == "import")


def decay(evidence: Evidence) -> Diagnosis | None:
    """Fewer and fewer steps a second.

    A quarter fewer in the last third than in the first, falling nearly always: ten bins that fall
    as nearly always by chance (Kendall's τ below −0.6) come up once in a hundred and fifty. Counted
    from the first update to the last: learning that begins late, or an evaluation at the end, is no
    decay, and neither is a pause.
    """
    main = evidence.main
    if sampling_grows(evidence) is not None:
        return None  # that is why
    found = counted(main, UPDATES, STEPS)
    if found is None:
        return None
    name, one = found
    learning = np.flatnonzero(one.counts > 0)
    while_learning = slice(learning[0], learning[-1] + 1) if len(learning) else slice(0)
    seconds, counts = one.seconds[while_learning], one.counts[while_learning]
    if len(counts) < _BINS or seconds.sum() < 8.0 or counts.sum() < 50:
        return None
    clock = np.concatenate(([0.0], np.cumsum(seconds)))
    done = np.concatenate(([0.0], np.cumsum(counts)))
    edges = np.linspace(0.0, clock[-1], _BINS + 1)
    rates = np.diff(np.interp(edges, clock, done)) / np.diff(edges)
    first, last = thirds(rates)
    if rates.min() <= 0 or last > 0.75 * first or kendall(rates) > -0.6:
        return None
    # What a step took before anything had grown: by the line through all bins, within a third of
    # the quickest bin and that.
    per_step = 1.0 / rates
    _, intercept = theil_sen(np.interp((edges[:-1] + edges[1:]) / 2, clock, done), per_step)
    least = per_step.min()
    saved = 1e9 * float(clock[-1] - done[-1] * np.clip(intercept, least / 3, least))
    grown = _grown_line(evidence, while_learning)
    told = {"vector_step": "steps", "env_step": "steps"}.get(name, f"{name}s".replace("_", " "))
    return Diagnosis(
        "decay",
        f"fewer and fewer {told} a second",
        0.7,
        evidence.gain(saved),
        (
            f"{first:,.1f} {told} a second in the first third, {last:,.1f} in the last",
            *((f"what grew most: {place(grown)}",) if grown else ()),
        ),
        (f"Look at {place(grown)}: " if grown else "")
        + "something is kept that grows (a list, a graph of tensors, a log), or is gone through "
        "again each time.",
        evidence.profile_again,
        (grown,) if grown else (),
        pace="growing",
    )


def _grown_line(evidence: Evidence, part_of_run: slice) -> Leaf | None:
    """The user's line whose share of the samples has risen most."""
    main = evidence.main
    leaves = {row.sample.stack: row.leaf for row in evidence.rows_of(main)}
    periods = main.periods[part_of_run]
    size = max(1, len(periods) // 3)
    risen: dict[Leaf, float] = {}
    for sign, part in ((-1, periods[:size]), (1, periods[-size:])):
        whole = sum(sum(period.by_stack.values()) for period in part) or 1
        for period in part:
            for stack, count in period.by_stack.items():
                if stack in leaves:
                    leaf = leaves[stack]
                    risen[leaf] = risen.get(leaf, 0.0) + sign * count / whole
    if not risen:
        return None
    leaf = max(risen, key=lambda one: risen[one])
    return leaf if risen[leaf] > 0.1 else None
