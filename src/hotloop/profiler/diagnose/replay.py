"""Rule on draws from a replay buffer that take longer the fuller it is."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hotloop.base.statistics import Floats, keeps_rising, kendall, theil_sen, thirds
from hotloop.profiler.diagnose.causes import Explanation
from hotloop.profiler.diagnose.evidence import Evidence, describe_lines, top_places
from hotloop.profiler.diagnose.limits import LIMITS
from hotloop.profiler.diagnose.span_series import STEPS, UPDATES, first_nonempty_series, span_series
from hotloop.timing.table import duration

_SPANS = ("replay_sample", "sample")


class _DrawSeries(NamedTuple):
    """By period: seconds of drawing, number of draws, and buffer content (in some unit)."""

    cost_s: Floats
    draws: Floats
    filled: Floats


def sampling_grows(evidence: Evidence) -> Explanation | None:
    """Detect draws of a batch that take longer during the run, beyond chance."""
    series = _by_spans(evidence) or _by_samples(evidence)
    if series is None:
        return None
    usable = (series.draws > 2) & (series.cost_s > 0)
    cost, draws, filled = (column[usable] for column in series)
    if len(cost) < 6:
        return None
    per_draw = cost / draws
    if not keeps_rising(per_draw, LIMITS.draw_growth):
        return None
    first, last = thirds(per_draw)
    slope, _ = theil_sen(filled, per_draw)
    # Estimate the time per draw from an empty buffer by a line through the first half, since later
    # the buffer may be full.
    half = max(6, len(cost) // 2)
    early, intercept = theil_sen(filled[:half], per_draw[:half])
    constant = float(np.clip(intercept if early > 0 else first, 0.0, np.quantile(per_draw, 0.1)))
    saved = float((cost - constant * draws).sum()) * 1e9
    if saved < LIMITS.draw_share * evidence.duration_ns or slope <= 0:
        return None
    rows = [row for row in evidence.rows if row.stage == "replay"]
    lines = describe_lines(evidence, rows)
    return Explanation(
        saved,
        (
            f"drawing a batch takes {evidence.share(cost.sum() * 1e9):.0%} of the time",
            f"one draw took {duration(first * 1e9)} in the first third of the run and "
            f"{duration(last * 1e9)} in the last: {last / first:.1f} times as long",
            *((f"most of it: {lines}",) if lines else ()),
        ),
        rows,
        top_places(rows),
        confidence=0.95 if kendall(per_draw) > 0.7 else 0.8,
        pace="growing",
    )


def _by_spans(evidence: Evidence) -> _DrawSeries | None:
    draws = span_series(evidence.main, _SPANS)
    if draws.counts.sum() == 0:
        return None
    steps = first_nonempty_series(evidence.main, STEPS)
    return _DrawSeries(draws.total_s, draws.counts, (steps[1] if steps else draws).before)


def _by_samples(evidence: Evidence) -> _DrawSeries | None:
    """Return draws estimated from samples in a buffer's functions, for programs without spans."""
    # The number of draws is the number of updates, or else of steps. Without either, it is the time
    # of all other work.
    main = evidence.main
    rows = evidence.rows_of(main)
    in_replay = {row.sample.stack for row in rows if row.stage == "replay"}
    if not in_replay or not main.periods:
        return None
    # Count the samples of each period, in the buffer and in total.
    counts = np.array(
        [
            (
                sum(n for stack, n in period.by_stack.items() if stack in in_replay),
                sum(period.by_stack.values()),
            )
            for period in main.periods
        ],
        np.float64,
    )
    seconds = span_series(main, ()).seconds
    share = counts[:, 0] / np.maximum(counts[:, 1], 1)
    cost = share * seconds
    updates, steps = first_nonempty_series(main, UPDATES), first_nonempty_series(main, STEPS)
    counted = updates or steps
    draws = counted[1].counts if counted else (1 - share) * seconds * 100
    filled = steps[1].before if steps else np.cumsum(draws) - draws / 2
    return _DrawSeries(cost, draws, filled)
