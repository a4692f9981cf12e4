"""What several agents have in common: the best of k scores, and drawing an arm by weights."""

from __future__ import annotations

import numpy as np

from hotloop.bandits.kernels.layout import ARM, COUNT, LANES, NUM_ARMS, POLICY, ROWS, TOGETHER, TOP
from hotloop.bandits.kernels.randomness import (
    POLICY_STREAM,
    f32,
    i32,
    i64,
    lane_words,
    u32,
    u64,
    unit,
)
from hotloop.compiled import (
    inline,
    jit,
    load_f32,
    load_i32,
    load_i64,
    load_u32,
    store_f32,
    store_i32,
)

_32 = np.uint64(32)


@inline
def _compare(score, arm, top, best, count):  # type: ignore[no-untyped-def]
    is_more = score > top
    count = i32(1) if is_more else i32(count + i32(score == top))
    return (score if is_more else top), (i32(arm) if is_more else best), count


@jit
def _first_five(frame: int, scores: int) -> None:
    for i in range(LANES):
        top, best, count = load_f32(scores, i), i32(0), i32(1)
        for arm in range(1, TOGETHER):
            score = load_f32(scores, arm * LANES + i)
            top, best, count = _compare(score, arm, top, best, count)
        store_f32(frame + TOP, i, top)
        store_i32(frame + ARM, i, best)
        store_i32(frame + COUNT, i, count)


@jit
def _next_five(frame: int, scores: int, first: int) -> None:
    five = scores + first * 4 * LANES
    for i in range(LANES):
        top, best = load_f32(frame + TOP, i), load_i32(frame + ARM, i)
        count = load_i32(frame + COUNT, i)
        for arm in range(TOGETHER):
            score = load_f32(five, arm * LANES + i)
            top, best, count = _compare(score, first + arm, top, best, count)
        store_f32(frame + TOP, i, top)
        store_i32(frame + ARM, i, best)
        store_i32(frame + COUNT, i, count)


@jit
def policy_word(frame: int, step: int, lane: int) -> int:
    """The word that a run's agent has for one step, prepared or not."""
    prepared = load_i64(frame, POLICY)
    if prepared != 0:
        return load_u32(prepared, lane)
    a, b, c, d = lane_words(frame, lane, step >> 2, POLICY_STREAM, 0)
    which = step & 3
    if which == 0:
        return a
    if which == 1:
        return b
    return c if which == 2 else d


@jit
def _draw_among_ties(frame: int, scores: int, step: int) -> None:
    num_arms = load_i64(frame, NUM_ARMS)
    for i in range(LANES):
        count = load_i32(frame + COUNT, i)
        if count > i32(1):
            word = policy_word(frame, step, i)
            left = i64((u64(word) * u64(count)) >> _32)
            top = load_f32(frame + TOP, i)
            for arm in range(num_arms):
                if load_f32(scores, arm * LANES + i) == top:
                    if left == 0:
                        store_i32(frame + ARM, i, i32(arm))
                        break
                    left -= 1


@jit
def take_best(frame: int, scores: int, step: int) -> None:
    """For each lane the arm with the largest score; ties are drawn.

    Args:
        frame: its arms are written.
        scores: float32, (ROWS, LANES); what is beyond the last arm must be −∞.
        step: decides, with the run, which of the best arms it is.
    """
    _first_five(frame, scores)
    for arm in range(TOGETHER, load_i64(frame, ROWS), TOGETHER):
        _next_five(frame, scores, arm)
    several = i32(0)
    for i in range(LANES):
        several |= load_i32(frame + COUNT, i) - i32(1)
    if several != i32(0):
        _draw_among_ties(frame, scores, step)


@jit
def explore(frame: int, epsilon: float) -> None:
    """With probability ε any arm instead of the one taken."""
    num_arms = u64(load_i64(frame, NUM_ARMS))
    limit = i64(np.rint(epsilon * 4294967296.0))
    if limit == 0:
        return
    last = u32(limit - 1)
    words = load_i64(frame, POLICY)
    for i in range(LANES):
        # The word times k: the arm before the point, behind it 32 bits that decide.
        scaled = u64(load_u32(words, i)) * num_arms
        arm = load_i32(frame + ARM, i)
        store_i32(frame + ARM, i, i32(scaled >> _32) if u32(scaled) <= last else arm)


@jit
def draw_by_weight(frame: int, weights: int, sums: int) -> None:
    """An arm with probability weight / sum; weights float32 (k, LANES), their sums (LANES,)."""
    num_arms = load_i64(frame, NUM_ARMS)
    words = load_i64(frame, POLICY)
    below, target = frame + COUNT, frame + TOP
    for i in range(LANES):
        u = unit(load_u32(words, i)) + f32(0.5 * 2.0**-24)
        store_f32(target, i, u * load_f32(sums, i))
        store_i32(frame + ARM, i, i32(0))
        store_f32(below, i, f32(0.0))
    for arm in range(num_arms - 1):
        row = weights + arm * 4 * LANES
        for i in range(LANES):
            total = load_f32(below, i) + load_f32(row, i)
            store_f32(below, i, total)
            passed = load_f32(target, i) >= total
            store_i32(frame + ARM, i, load_i32(frame + ARM, i) + i32(passed))
