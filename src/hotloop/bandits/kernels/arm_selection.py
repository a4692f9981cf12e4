"""Arm selection shared by several agents: the best of k scores, and a draw by weights."""

from __future__ import annotations

import numpy as np

from hotloop.bandits.kernels import layout
from hotloop.bandits.kernels.layout import LANES, ROW_GROUP
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
from hotloop.base.numba_tools import (
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
def _max_of_five(frame: int, scores: int, first: int) -> None:
    group = scores + first * 4 * LANES
    if first == 0:
        for i in range(LANES):
            top = load_f32(group, i)
            for arm in range(1, ROW_GROUP):
                top = max_f32(top, load_f32(group, arm * LANES + i))
            store_f32(frame + layout.TOP, i, top)
    else:
        for i in range(LANES):
            top = load_f32(frame + layout.TOP, i)
            for arm in range(ROW_GROUP):
                top = max_f32(top, load_f32(group, arm * LANES + i))
            store_f32(frame + layout.TOP, i, top)


@jit
def _arms_at_top(frame: int, scores: int, first: int) -> None:
    """Update the first top arm and the number of top arms. Call it for groups in reverse order."""
    group = scores + first * 4 * LANES
    is_last = first + ROW_GROUP == load_i64(frame, layout.ROWS)
    for i in range(LANES):
        top = load_f32(frame + layout.TOP, i)
        best, count = load_i32(frame + layout.ARM, i), load_i32(frame + layout.COUNT, i)
        if is_last:
            best, count = i32(0), i32(0)
        for offset in range(ROW_GROUP):
            arm = ROW_GROUP - 1 - offset
            is_top = load_f32(group, arm * LANES + i) == top
            count = i32(count + i32(is_top))
            best = i32(first + arm) if is_top else best
        store_i32(frame + layout.ARM, i, best)
        store_i32(frame + layout.COUNT, i, count)


@jit
def _best_of_ten(frame: int, scores: int) -> int:
    """Select the best of ten arms in registers; return non-zero if a lane has a tie."""
    has_ties = i32(0)
    for i in range(LANES):
        top = load_f32(scores, i)
        for arm in range(1, 2 * ROW_GROUP):
            top = max_f32(top, load_f32(scores, arm * LANES + i))
        best, count = i32(0), i32(0)
        for offset in range(2 * ROW_GROUP):
            arm = 2 * ROW_GROUP - 1 - offset
            is_top = load_f32(scores, arm * LANES + i) == top
            count = i32(count + i32(is_top))
            best = i32(arm) if is_top else best
        store_i32(frame + layout.ARM, i, best)
        store_i32(frame + layout.COUNT, i, count)
        store_f32(frame + layout.TOP, i, top)
        has_ties = i32(has_ties | i32(count - i32(1)))
    return has_ties


@jit
def _best_bound_of_ten(frame: int, estimates: int, roots: int, radius: float) -> int:
    has_ties, factor = i32(0), f32(radius)
    for i in range(LANES):
        top = fma_f32(factor, load_f32(roots, i), load_f32(estimates, i))
        for arm in range(1, 2 * ROW_GROUP):
            cell = arm * LANES + i
            top = max_f32(top, fma_f32(factor, load_f32(roots, cell), load_f32(estimates, cell)))
        best, count = i32(0), i32(0)
        for offset in range(2 * ROW_GROUP):
            arm = 2 * ROW_GROUP - 1 - offset
            cell = arm * LANES + i
            is_top = fma_f32(factor, load_f32(roots, cell), load_f32(estimates, cell)) == top
            count = i32(count + i32(is_top))
            best = i32(arm) if is_top else best
        store_i32(frame + layout.ARM, i, best)
        store_i32(frame + layout.COUNT, i, count)
        store_f32(frame + layout.TOP, i, top)
        has_ties = i32(has_ties | i32(count - i32(1)))
    return has_ties


@jit
def policy_word(frame: int, step: int, lane: int) -> int:
    """Return the random word of a run's agent for one step, prepared or computed here."""
    prepared = load_i64(frame, layout.POLICY)
    if prepared != 0:
        return load_u32(prepared, lane)
    a, b, c, d = lane_words(frame, lane, step >> 2, POLICY_STREAM, 0)
    index = step & 3
    if index == 0:
        return a
    if index == 1:
        return b
    return c if index == 2 else d


@jit
def exploration_limit(epsilon: float) -> int:
    """Return ε in units of 2⁻³². A run explores if the fraction of word · k is below this limit."""
    return i64(np.rint(epsilon * 4294967296.0))


@jit
def _tie_number(word: int, num_arms: int, limit: int) -> int:
    """Return a number below k · 2³² that is uniform over the words that do not explore."""
    # The scaled word itself is not uniform, because the words that explore leave gaps in its range.
    scaled = u64(word) * u64(num_arms)
    fraction = scaled & _LOW_32
    if limit == 0 or fraction < u64(limit):
        return scaled
    num_unexplored = u64(4294967296 - limit)
    return (scaled & ~_LOW_32) | (((fraction - u64(limit)) << _32) // num_unexplored)


@jit
def _draw_among_ties(frame: int, scores: int, step: int, limit: int) -> None:
    num_arms = load_i64(frame, layout.NUM_ARMS)
    for i in range(LANES):
        count = load_i32(frame + layout.COUNT, i)
        if count > i32(1):
            word = policy_word(frame, step, i)
            number = _tie_number(word, num_arms, limit)
            skip = i64((number * u64(count)) // (u64(num_arms) << _32))
            top = load_f32(frame + layout.TOP, i)
            for arm in range(num_arms):
                if load_f32(scores, arm * LANES + i) == top:
                    if skip == 0:
                        store_i32(frame + layout.ARM, i, i32(arm))
                        break
                    skip -= 1


@jit
def take_best(frame: int, scores: int, step: int, limit: int) -> None:
    """Store the arm with the largest score of each lane, breaking ties at random.

    Args:
        frame: address of the frame that receives the arms.
        scores: address of float32, (ROWS, LANES). Rows beyond the last arm must be −∞.
        step: step number, which selects the random word that breaks ties.
        limit: argument of the following call of `explore`, 0 without one.
    """
    rows = load_i64(frame, layout.ROWS)
    if rows == 2 * ROW_GROUP:
        if _best_of_ten(frame, scores) != i32(0):
            _draw_among_ties(frame, scores, step, limit)
        return
    for first in range(0, rows, ROW_GROUP):
        _max_of_five(frame, scores, first)
    for first in range(rows - ROW_GROUP, -1, -ROW_GROUP):
        _arms_at_top(frame, scores, first)
    has_ties = i32(0)
    for i in range(LANES):
        has_ties = i32(has_ties | i32(load_i32(frame + layout.COUNT, i) - i32(1)))
    if has_ties != i32(0):
        _draw_among_ties(frame, scores, step, limit)


@jit
def take_best_bound(
    frame: int, estimates: int, roots: int, radius: float, scores: int, step: int
) -> None:
    """Apply `take_best` to the scores estimate + radius · root, using `scores` as work space."""
    is_ten = load_i64(frame, layout.ROWS) == 2 * ROW_GROUP
    if is_ten and _best_bound_of_ten(frame, estimates, roots, radius) == i32(0):
        return
    factor = f32(radius)
    for cell in range(load_i64(frame, layout.ROWS) * LANES):
        bound = fma_f32(factor, load_f32(roots, cell), load_f32(estimates, cell))
        store_f32(scores, cell, bound)
    if is_ten:
        _draw_among_ties(frame, scores, step, 0)
    else:
        take_best(frame, scores, step, 0)


@jit
def explore(frame: int, limit: int) -> None:
    """Replace the chosen arm by a random one with probability limit · 2⁻³².

    The integer part of word · k · 2⁻³² is an arm, its 32-bit fraction decides whether to explore.
    Multiplying in halves of 16 bits needs 32 bits a lane instead of 64, because k is below 2¹³.
    """
    if limit == 0:
        return
    num_arms, last = u32(load_i64(frame, layout.NUM_ARMS)), u32(limit - 1)
    words = load_i64(frame, layout.POLICY)
    for i in range(LANES):
        word, arm = load_u32(words, i), load_i32(frame + layout.ARM, i)
        low = u32(u32(word & _LOW_16) * num_arms)
        high = u32(u32(u32(word >> _16) * num_arms) + u32(low >> _16))
        fraction = u32(u32(high << _16) | u32(low & _LOW_16))
        store_i32(frame + layout.ARM, i, i32(high >> _16) if fraction <= last else arm)


@jit
def draw_by_weight(frame: int, weights: int, sums: int) -> None:
    """Draw an arm with probability weight / sum: float32, weights (ROWS, LANES), sums (LANES,)."""
    last = i32(load_i64(frame, layout.NUM_ARMS) - 1)
    words = load_i64(frame, layout.POLICY)
    totals, targets = frame + layout.COUNT, frame + layout.TOP
    for i in range(LANES):
        u = unit(load_u32(words, i)) + f32(0.5 * 2.0**-24)
        store_f32(targets, i, u * load_f32(sums, i))
        store_i32(frame + layout.ARM, i, i32(0))
        store_f32(totals, i, f32(0.0))
    for first in range(0, load_i64(frame, layout.ROWS), ROW_GROUP):
        group = weights + first * 4 * LANES
        for i in range(LANES):
            total, limit = load_f32(totals, i), load_f32(targets, i)
            arm = load_i32(frame + layout.ARM, i)
            for row in range(ROW_GROUP):
                total += load_f32(group, row * LANES + i)
                arm = i32(arm + i32(limit >= total))
            store_f32(totals, i, total)
            store_i32(frame + layout.ARM, i, arm)
    for i in range(LANES):
        arm = load_i32(frame + layout.ARM, i)
        store_i32(frame + layout.ARM, i, arm if arm < last else last)
