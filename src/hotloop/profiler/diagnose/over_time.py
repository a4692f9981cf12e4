"""Rules on changes during a run: a long start-up, and a loop that slows down."""

from __future__ import annotations

import numpy as np

from hotloop.base.statistics import keeps_rising, theil_sen, thirds
from hotloop.profiler.diagnose.causes import Explanation
from hotloop.profiler.diagnose.evidence import Evidence, describe_place, total_time
from hotloop.profiler.diagnose.limits import LIMITS
from hotloop.profiler.diagnose.span_series import STEPS, UPDATES, first_nonempty_series
from hotloop.profiler.session import ProfiledProcess
from hotloop.profiler.session.stages import CodeLine

# Number of bins for the rate of steps. Each is long enough to average rollouts and updates that
# alternate every second.
_BINS = 10


def start_up(evidence: Evidence) -> Explanation | None:
    """Detect runs that spend most of their time on importing and starting."""
    starting = evidence.stage_ns("import")
    min_ns = max(LIMITS.start_up_share * evidence.duration_ns, LIMITS.start_up_ns)
    if starting < min_ns or not evidence.has_enough_samples:
        return None
    other_ns = evidence.duration_ns - starting
    importing = [x for x in evidence.session.processes if _imports_ns(evidence, x) > 5e8]
    return Explanation(
        None,
        (
            f"{evidence.share(starting):.0%} of the time ({starting / 1e9:.1f} s) goes to imports "
            f"and start-up, {other_ns / 1e9:.1f} s to all other work",
            f"{len(importing)} of {len(evidence.session.processes)} processes import for half a "
            "second or more",
        ),
    )


def _imports_ns(evidence: Evidence, process: ProfiledProcess) -> float:
    return sum(row.sample.elapsed_ns for row in evidence.rows_of(process) if row.stage == "import")


def decay(evidence: Evidence) -> Explanation | None:
    """Detect a rate of updates or steps that falls during the run.

    Ten bins must show a fall until the end that chance and a warm-up do not explain. Only the time
    from the first to the last update counts, so that a late start of learning, a final evaluation
    or a pause is no decay.
    """
    main = evidence.main
    if (
        total_time(evidence.rows_of(main)).queued_ns
        > LIMITS.taken_queued_share * evidence.duration_ns
    ):
        return None  # the rate depends on other programs
    found = first_nonempty_series(main, UPDATES, STEPS)
    if found is None:
        return None
    # Compute the rate in bins from the first update to the last.
    name, series = found
    learning = np.flatnonzero(series.counts > 0)
    while_learning = slice(learning[0], learning[-1] + 1) if len(learning) else slice(0)
    seconds, counts = series.seconds[while_learning], series.counts[while_learning]
    is_short = seconds.sum() < LIMITS.decay_s or counts.sum() < LIMITS.decay_count
    if len(counts) < _BINS or is_short:
        return None
    clock = np.concatenate(([0.0], np.cumsum(seconds)))
    step_counts = np.concatenate(([0.0], np.cumsum(counts)))
    edges = np.linspace(0.0, clock[-1], _BINS + 1)
    rates = np.diff(np.interp(edges, clock, step_counts)) / np.diff(edges)
    if rates.min() <= 0 or not keeps_rising(1.0 / rates, LIMITS.decay_ratio):
        return None
    first, last = thirds(rates)
    # Estimate the initial time per step by a line through all bins, at most the fastest bin's
    # time and at least a third of it.
    per_step = 1.0 / rates
    _, intercept = theil_sen(np.interp((edges[:-1] + edges[1:]) / 2, clock, step_counts), per_step)
    fastest = per_step.min()
    saved = 1e9 * float(clock[-1] - step_counts[-1] * np.clip(intercept, fastest / 3, fastest))
    line = _growing_line(evidence, while_learning)
    unit = {"vector_step": "steps", "env_step": "steps"}.get(name, f"{name}s".replace("_", " "))
    return Explanation(
        saved,
        (
            f"{first:,.1f} {unit} per second in the first third, {last:,.1f} in the last",
            *((f"the line whose share grew most: {describe_place(line)}",) if line else ()),
        ),
        places=(line,) if line else (),
        texts={"unit": unit, "check": f"Check {describe_place(line)}: " if line else ""},
        pace="growing",
    )


def _growing_line(evidence: Evidence, part_of_run: slice) -> CodeLine | None:
    """Return the user's line whose share of the samples rose most."""
    main = evidence.main
    leaves = {row.sample.stack: row.leaf for row in evidence.rows_of(main)}
    periods = main.periods[part_of_run]
    size = max(1, len(periods) // 3)
    risen: dict[CodeLine, float] = {}
    for sign, part in ((-1, periods[:size]), (1, periods[-size:])):
        whole = sum(sum(period.by_stack.values()) for period in part) or 1
        for period in part:
            for stack, count in period.by_stack.items():
                if stack in leaves:
                    leaf = leaves[stack]
                    risen[leaf] = risen.get(leaf, 0.0) + sign * count / whole
    if not risen:
        return None
    leaf = max(risen, key=lambda leaf: risen[leaf])
    return leaf if risen[leaf] > 0.1 else None
