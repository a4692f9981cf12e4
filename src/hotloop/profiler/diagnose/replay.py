"""Drawing from a replay buffer that takes longer the fuller it is."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hotloop.profiler.diagnose.diagnosis import Diagnosis
from hotloop.profiler.diagnose.evidence import Evidence, places_of, told_lines
from hotloop.profiler.diagnose.series import STEPS, UPDATES, counted, series
from hotloop.statistics import Floats, kendall, theil_sen, thirds
from hotloop.timing.table import duration

_SPANS = ("replay_sample", "sample")


class _Draws(NamedTuple):
    """By period: seconds in drawing, how often, and how much was in the buffer (in some unit)."""

    cost_s: Floats
    draws: Floats
    filled: Floats


def sampling_grows(evidence: Evidence) -> Diagnosis | None:
    """Drawing a batch takes longer and longer.

    Half as long again between the first and the last third, rising with few exceptions: a tree's
    draw grows by a seventh from 1e5 entries to 1e6, colder caches by a third. And a tenth of the
    time to be saved.
    """
    found = _by_spans(evidence) or _by_samples(evidence)
    if found is None:
        return None
    usable = (found.draws > 2) & (found.cost_s > 0)
    cost, draws, filled = (column[usable] for column in found)
    if len(cost) < 6:
        return None
    per_draw = cost / draws
    first, last = thirds(per_draw)
    if last < 1.5 * first or kendall(per_draw) < 0.5:
        return None
    slope, _ = theil_sen(filled, per_draw)
    # What a draw takes from an empty buffer, by the line through the first half: later the buffer
    # may be full.
    half = max(6, len(cost) // 2)
    early, intercept = theil_sen(filled[:half], per_draw[:half])
    constant = float(np.clip(intercept if early > 0 else first, 0.0, np.quantile(per_draw, 0.1)))
    saved = float((cost - constant * draws).sum()) * 1e9
    if saved < 0.1 * evidence.whole_ns or slope <= 0:
        return None
    lines = told_lines(evidence, (row for row in evidence.rows if row.stage == "replay"))
    return Diagnosis(
        "replay-grows",
        "drawing from the replay buffer takes longer the fuller it is",
        0.95 if kendall(per_draw) > 0.7 else 0.8,
        evidence.gain(saved),
        (
            f"drawing a batch takes {evidence.share(cost.sum() * 1e9):.0%} of the time",
            f"one draw took {duration(first * 1e9)} in the first third of the run and "
            f"{duration(last * 1e9)} in the last: {last / first:.1f} times as long",
            *((f"most of it: {lines}",) if lines else ()),
        ),
        "Draw in proportion to weights by a tree, O(log N) in the buffer's size, whatever shifts "
        "the weights: `hotloop.replay.ReplayBuffer(…, sampler=Proportional())`.",
        evidence.profile_again,
        places_of(row for row in evidence.rows if row.stage == "replay"),
        pace="growing",
    )


def _by_spans(evidence: Evidence) -> _Draws | None:
    found = series(evidence.main, _SPANS)
    if found.counts.sum() == 0:
        return None
    filled = counted(evidence.main, STEPS)
    return _Draws(found.total_s, found.counts, (filled[1] if filled else found).before)


def _by_samples(evidence: Evidence) -> _Draws | None:
    """Where no span tells of draws: samples seen in the functions of a buffer.

    Draws are counted by updates, or by steps. Where neither is counted, the time that everything
    else took stands for them.
    """
    main = evidence.main
    rows = evidence.rows_of(main)
    in_replay = {row.sample.stack for row in rows if row.stage == "replay"}
    if not in_replay or not main.periods:
        return None
    # Until there is something to draw from, nothing is said.
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
    seconds = series(main, ()).seconds
    share = counts[:, 0] / np.maximum(counts[:, 1], 1)
    cost = share * seconds
    updates, steps = counted(main, UPDATES), counted(main, STEPS)
    one = updates or steps
    draws = one[1].counts if one else (1 - share) * seconds * 100
    filled = steps[1].before if steps else np.cumsum(draws) - draws / 2
    return _Draws(cost, draws, filled)
