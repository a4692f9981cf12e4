"""Choices that several agents share: the best of k scores, and an arm drawn by weights."""

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
from hotloop.numba_tools import (
    fma_f32,
    jit,
    load_f32,
    load_i32,
    load_i64,
    load_u32,
    max_f32,
    store_f32,
    store_i32,
)

_32 = np.uint64(32)
_LOW_32 = np.uint64(0xFFFFFFFF)
_16, _LOW_16 = np.uint32(16), np.uint32(0xFFFF)


@jit
def _top_of_five(frame: int, scores: int, first: int) -> None:
    five = scores + first * 4 * LANES
    if first == 0:
        for i in range(LANES):
            top = load_f32(five, i)
            for arm in range(1, TOGETHER):
                top = max_f32(top, load_f32(five, arm * LANES + i))
            store_f32(frame + TOP, i, top)
    else:
        for i in range(LANES):
            top = load_f32(frame + TOP, i)
            for arm in range(TOGETHER):
                top = max_f32(top, load_f32(five, arm * LANES + i))
            store_f32(frame + TOP, i, top)


@jit
def _arms_at_top(frame: int, scores: int, first: int) -> None:
    """Which of five arms, if any, has the top score, and how many have; from the last five on."""
    five = scores + first * 4 * LANES
    is_last = first + TOGETHER == load_i64(frame, ROWS)
    for i in range(LANES):
        top = load_f32(frame + TOP, i)
        best, count = load_i32(frame + ARM, i), load_i32(frame + COUNT, i)
        if is_last:
            best, count = i32(0), i32(0)
        for back in range(TOGETHER):
            arm = TOGETHER - 1 - back
            is_top = load_f32(five, arm * LANES + i) == top
            count = i32(count + i32(is_top))
            best = i32(first + arm) if is_top else best
        store_i32(frame + ARM, i, best)
        store_i32(frame + COUNT, i, count)


@jit
def _best_of_ten(frame: int, scores: int) -> int:
    """As the two above, all in registers, for the usual testbed; counts are left to ties."""
    several = i32(0)
    for i in range(LANES):
        top = load_f32(scores, i)
        for arm in range(1, 2 * TOGETHER):
            top = max_f32(top, load_f32(scores, arm * LANES + i))
        best, count = i32(0), i32(0)
        for back in range(2 * TOGETHER):
            arm = 2 * TOGETHER - 1 - back
            is_top = load_f32(scores, arm * LANES + i) == top
            count = i32(count + i32(is_top))
            best = i32(arm) if is_top else best
        store_i32(frame + ARM, i, best)
        store_i32(frame + COUNT, i, count)
        store_f32(frame + TOP, i, top)
        several = i32(several | i32(count - i32(1)))
    return several


@jit
def _best_bound_of_ten(frame: int, estimates: int, roots: int, radius: float) -> int:
    several, factor = i32(0), f32(radius)
    for i in range(LANES):
        top = fma_f32(factor, load_f32(roots, i), load_f32(estimates, i))
        for arm in range(1, 2 * TOGETHER):
            cell = arm * LANES + i
            top = max_f32(top, fma_f32(factor, load_f32(roots, cell), load_f32(estimates, cell)))
        best, count = i32(0), i32(0)
        for back in range(2 * TOGETHER):
            arm = 2 * TOGETHER - 1 - back
            cell = arm * LANES + i
            is_top = fma_f32(factor, load_f32(roots, cell), load_f32(estimates, cell)) == top
            count = i32(count + i32(is_top))
            best = i32(arm) if is_top else best
        store_i32(frame + ARM, i, best)
        store_i32(frame + COUNT, i, count)
        store_f32(frame + TOP, i, top)
        several = i32(several | i32(count - i32(1)))
    return several


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
def explored_below(epsilon: float) -> int:
    """ε as a whole number of 2⁻³²: a run explores where the fraction of word · k is below it."""
    return i64(np.rint(epsilon * 4294967296.0))


@jit
def _tie_number(word: int, num_arms: int, limit: int) -> int:
    """A number below k · 2³², uniform where the word does not say to explore.

    The word alone is not: where it says to, its values are missing all over its range.
    """
    scaled = u64(word) * u64(num_arms)
    fraction = scaled & _LOW_32
    if limit == 0 or fraction < u64(limit):
        return scaled
    kept = u64(4294967296 - limit)
    return (scaled & ~_LOW_32) | (((fraction - u64(limit)) << _32) // kept)


@jit
def _draw_among_ties(frame: int, scores: int, step: int, limit: int) -> None:
    num_arms = load_i64(frame, NUM_ARMS)
    for i in range(LANES):
        count = load_i32(frame + COUNT, i)
        if count > i32(1):
            word = policy_word(frame, step, i)
            number = _tie_number(word, num_arms, limit)
            left = i64((number * u64(count)) // (u64(num_arms) << _32))
            top = load_f32(frame + TOP, i)
            for arm in range(num_arms):
                if load_f32(scores, arm * LANES + i) == top:
                    if left == 0:
                        store_i32(frame + ARM, i, i32(arm))
                        break
                    left -= 1


@jit
def take_best(frame: int, scores: int, step: int, limit: int) -> None:
    """For each lane the arm with the largest score; ties are drawn.

    Args:
        frame: its arms are written.
        scores: float32, (ROWS, LANES); what is beyond the last arm must be −∞.
        step: decides, with the run, which of the best arms it is.
        limit: what `explore` will be called with; 0 if it will not.
    """
    rows = load_i64(frame, ROWS)
    if rows == 2 * TOGETHER:
        if _best_of_ten(frame, scores) != i32(0):
            _draw_among_ties(frame, scores, step, limit)
        return
    for first in range(0, rows, TOGETHER):
        _top_of_five(frame, scores, first)
    for first in range(rows - TOGETHER, -1, -TOGETHER):
        _arms_at_top(frame, scores, first)
    several = i32(0)
    for i in range(LANES):
        several = i32(several | i32(load_i32(frame + COUNT, i) - i32(1)))
    if several != i32(0):
        _draw_among_ties(frame, scores, step, limit)


@jit
def take_best_bound(
    frame: int, estimates: int, roots: int, radius: float, scores: int, step: int
) -> None:
    """As `take_best`, the scores being estimate + radius · root; `scores` is where they go."""
    is_ten = load_i64(frame, ROWS) == 2 * TOGETHER
    if is_ten and _best_bound_of_ten(frame, estimates, roots, radius) == i32(0):
        return
    factor = f32(radius)
    for cell in range(load_i64(frame, ROWS) * LANES):
        bound = fma_f32(factor, load_f32(roots, cell), load_f32(estimates, cell))
        store_f32(scores, cell, bound)
    if is_ten:
        _draw_among_ties(frame, scores, step, 0)
    else:
        take_best(frame, scores, step, 0)


@jit
def explore(frame: int, limit: int) -> None:
    """With probability limit · 2⁻³² any arm instead of the one taken.

    The word times k is an arm before the point and behind it 32 bits that decide; multiplied in
    halves of 16 bits, as k is below 2¹³, it takes 32 bits a lane instead of 64.
    """
    if limit == 0:
        return
    num_arms, last = u32(load_i64(frame, NUM_ARMS)), u32(limit - 1)
    words = load_i64(frame, POLICY)
    for i in range(LANES):
        word, arm = load_u32(words, i), load_i32(frame + ARM, i)
        low = u32(u32(word & _LOW_16) * num_arms)
        high = u32(u32(u32(word >> _16) * num_arms) + u32(low >> _16))
        fraction = u32(u32(high << _16) | u32(low & _LOW_16))
        store_i32(frame + ARM, i, i32(high >> _16) if fraction <= last else arm)


@jit
def draw_by_weight(frame: int, weights: int, sums: int) -> None:
    """An arm with probability weight / sum; float32, weights (ROWS, LANES), their sums (LANES,)."""
    last = i32(load_i64(frame, NUM_ARMS) - 1)
    words = load_i64(frame, POLICY)
    below, target = frame + COUNT, frame + TOP
    for i in range(LANES):
        u = unit(load_u32(words, i)) + f32(0.5 * 2.0**-24)
        store_f32(target, i, u * load_f32(sums, i))
        store_i32(frame + ARM, i, i32(0))
        store_f32(below, i, f32(0.0))
    for first in range(0, load_i64(frame, ROWS), TOGETHER):
        five = weights + first * 4 * LANES
        for i in range(LANES):
            total, limit, arm = load_f32(below, i), load_f32(target, i), load_i32(frame + ARM, i)
            for row in range(TOGETHER):
                total += load_f32(five, row * LANES + i)
                arm = i32(arm + i32(limit >= total))
            store_f32(below, i, total)
            store_i32(frame + ARM, i, arm)
    for i in range(LANES):
        arm = load_i32(frame + ARM, i)
        store_i32(frame + ARM, i, arm if arm < last else last)
