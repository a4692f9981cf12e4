"""Records of every step: sums over the block's runs, always added in the same order.

An agent's record, by offset in bytes, float64 (LANES,) each: the regret so far, and the reward
summed up to now, up to the curve's previous point, and up to the late steps, those at the end. Then
int32 (LANES,) each: the optimal steps, counted up to the same three times, and whether this step
was optimal.
"""

from __future__ import annotations

from hotloop.bandits.kernels import layout
from hotloop.bandits.kernels.layout import LANES
from hotloop.bandits.kernels.randomness import f64, i32, i64
from hotloop.base.numba_tools import (
    inline,
    jit,
    load_f32,
    load_f64,
    load_i32,
    load_i64,
    store_f64,
    store_i32,
    store_i64,
)

REGRET, REWARD_SUM, REWARD_SUM_AT_POINT, REWARD_SUM_BEFORE_LATE = (
    8 * LANES * row for row in range(4)
)
HITS, HITS_AT_POINT, HITS_BEFORE_LATE = (4 * LANES * row for row in range(8, 11))
IS_HIT = 4 * LANES * 11
RECORD_BYTES = 4 * LANES * 12
WIDTH = 32  # lane 32 i + j is added to sum j


@jit
def reset_record(record: int) -> None:
    """Set all sums to zero."""
    for i in range(4 * LANES):
        store_f64(record, i, 0.0)
    for i in range(4 * LANES):
        store_i32(record + HITS, i, i32(0))


@jit
def _accumulate(frame: int, record: int) -> None:
    best = load_i64(frame, layout.BEST)
    for i in range(LANES):
        regret = f64(load_f32(best, i)) - f64(load_f32(frame + layout.VALUE, i))
        store_f64(record + REGRET, i, load_f64(record + REGRET, i) + regret)
        reward_sum = load_f64(record + REWARD_SUM, i) + f64(load_f32(frame + layout.REWARD, i))
        store_f64(record + REWARD_SUM, i, reward_sum)
    if load_i64(frame, layout.IN_HINDSIGHT) != 0:
        arms = load_i64(frame, layout.BEST_ARM)
        for i in range(LANES):
            is_hit = load_i32(frame + layout.ARM, i) == load_i32(arms, i)
            store_i32(record + IS_HIT, i, i32(is_hit))
    else:
        for i in range(LANES):
            is_hit = load_f32(frame + layout.VALUE, i) == load_f32(best, i)
            store_i32(record + IS_HIT, i, i32(is_hit))
    for i in range(LANES):
        hits = load_i32(record + HITS, i) + load_i32(record + IS_HIT, i)
        store_i32(record + HITS, i, hits)


@inline
def _add(sums, column, x, row):  # type: ignore[no-untyped-def]
    cell = row * WIDTH + column
    store_f64(sums, cell, load_f64(sums, cell) + x)
    store_f64(sums, cell + WIDTH, load_f64(sums, cell + WIDTH) + x * x)


@inline
def _add_step(frame, record, sums, first, width):  # type: ignore[no-untyped-def]
    for j in range(width):
        _add(sums, j, f64(load_f32(frame + layout.REWARD, first + j)), 0)
        _add(sums, j, load_f64(record + REGRET, first + j), 4)


@inline
def _add_point(record, sums, first, width, share):  # type: ignore[no-untyped-def]
    for j in range(width):
        i = first + j
        reward_sum = load_f64(record + REWARD_SUM, i)
        _add(sums, j, (reward_sum - load_f64(record + REWARD_SUM_AT_POINT, i)) * share, 0)
        store_f64(record + REWARD_SUM_AT_POINT, i, reward_sum)
        _add(sums, j, load_f64(record + REGRET, i), 4)
    for j in range(width):
        i = first + j
        hits = load_i32(record + HITS, i)
        _add(sums, j, f64(hits - load_i32(record + HITS_AT_POINT, i)) * share, 2)
        store_i32(record + HITS_AT_POINT, i, hits)


@jit
def _add_columns(sums: int, row: int) -> float:
    base = row * WIDTH
    half = WIDTH // 2
    while half >= 4:
        for j in range(half):
            total = load_f64(sums, base + j)
            store_f64(sums, base + j, total + load_f64(sums, base + half + j))
        half //= 2
    total = load_f64(sums, base) + load_f64(sums, base + 2)
    return total + (load_f64(sums, base + 1) + load_f64(sums, base + 3))


@jit
def _write_point(frame: int, agent: int, step: int) -> None:
    record, curve = load_i64(agent, layout.RECORD), load_i64(agent, layout.CURVE)
    sums = frame + layout.SUMS
    per_point, num_runs = load_i64(frame, layout.STEPS_PER_POINT), load_i64(frame, layout.NUM_RUNS)
    num_points = (load_i64(frame, layout.NUM_STEPS) + per_point - 1) // per_point
    point = step // per_point
    for j in range(6 * WIDTH):
        store_f64(sums, j, 0.0)
    full = num_runs - num_runs % WIDTH
    if per_point == 1:
        for first in range(0, full, WIDTH):
            _add_step(frame, record, sums, first, WIDTH)
        if full < num_runs:
            _add_step(frame, record, sums, full, num_runs - full)
        hits = i64(0)
        for i in range(num_runs):
            hits += i64(load_i32(record + IS_HIT, i))
        store_f64(curve, 2 * num_points + point, f64(hits))
        store_f64(curve, 3 * num_points + point, f64(hits))
    else:
        share = 1.0 / f64(step + 1 - point * per_point)
        for first in range(0, full, WIDTH):
            _add_point(record, sums, first, WIDTH, share)
        if full < num_runs:
            _add_point(record, sums, full, num_runs - full, share)
        store_f64(curve, 2 * num_points + point, _add_columns(sums, 2))
        store_f64(curve, 3 * num_points + point, _add_columns(sums, 3))
    for row in (0, 1, 4, 5):
        store_f64(curve, row * num_points + point, _add_columns(sums, row))


@jit
def _count_pulls(frame: int, pulls: int, point: int) -> None:
    num_arms = load_i64(frame, layout.NUM_ARMS)
    for i in range(load_i64(frame, layout.NUM_RUNS)):
        cell = point * num_arms + i64(load_i32(frame + layout.ARM, i))
        store_i64(pulls, cell, load_i64(pulls, cell) + 1)


@jit
def record_step(agent: int, step: int) -> None:
    """Record the frame's arm, its value and the reward."""
    frame, record = load_i64(agent, layout.FRAME), load_i64(agent, layout.RECORD)
    if step == load_i64(frame, layout.LATE_START):
        for i in range(LANES):
            store_f64(record + REWARD_SUM_BEFORE_LATE, i, load_f64(record + REWARD_SUM, i))
            store_i32(record + HITS_BEFORE_LATE, i, load_i32(record + HITS, i))
    _accumulate(frame, record)
    per_point = load_i64(frame, layout.STEPS_PER_POINT)
    if (step + 1) % per_point == 0 or step + 1 == load_i64(frame, layout.NUM_STEPS):
        _write_point(frame, agent, step)
    pulls = load_i64(agent, layout.PULLS)
    if pulls != 0:
        _count_pulls(frame, pulls, step // per_point)
