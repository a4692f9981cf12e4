"""KL-UCB, solving its index equation only for the arms that can be chosen.

An arm's index grows with ln t along a concave curve, so its tangent at an earlier step bounds it
from above. Each step solves the index of the chosen arm, for all lanes together, and of every arm
whose bound reaches the best index, one by one. Bisection for all arms takes microseconds a step.

State, float64: (k, LANES) each sums, counts, tangents' values at budget 0, their slopes and the
budgets of both; then (LANES,) each mean, budget divided by count, index, best bound.
"""

from __future__ import annotations

import math

import numpy as np

from hotloop.bandits.kernels import layout
from hotloop.bandits.kernels.arm_selection import policy_word
from hotloop.bandits.kernels.layout import LANES
from hotloop.bandits.kernels.mathematics import exp_f64, log_f64
from hotloop.bandits.kernels.randomness import f64, i32, i64, u64
from hotloop.base.numba_tools import (
    CompiledFunction,
    inline,
    jit,
    load_f32,
    load_f64,
    load_i32,
    load_i64,
    store_f64,
    store_i32,
)

C = layout.PARAMETERS
STATE_BYTES_ARM, STATE_BYTES_LANE = 40, 32
_UNTRIED = 1e300
_TOLERANCE = 1e-13
_MAX_ROUNDS = 60
_32 = np.uint64(32)


@inline
def _newton_start(p, budget):  # type: ignore[no-untyped-def]
    """Return a start for Newton's method above the root, from which it descends monotonically."""
    # The smaller of two upper bounds: Pinsker's, and the one that omits p ln(1/q).
    complement = 1.0 - p if p < 1.0 else 1e-300
    pinsker = p + math.sqrt(0.5 * budget)
    partial = 1.0 - complement * exp_f64((p * log_f64(p) - budget) / complement)
    bound = pinsker if pinsker < partial else partial
    return bound if bound < 1.0 - 1e-15 else 1.0 - 1e-15


@inline
def _newton_step(p, budget, q):  # type: ignore[no-untyped-def]
    """Return Newton's step from q down towards the root of kl(p, q) = budget."""
    complement = 1.0 - q
    divergence = p * log_f64(p / q) + (1.0 - p) * log_f64((1.0 - p) / complement)
    change = (divergence - budget) * (q * complement) / (q - p)
    return change if p < 1.0 else 0.0


@inline
def _final_index(p, budget, q):  # type: ignore[no-untyped-def]
    """Return the index from the root q, including the cases without an equation to solve."""
    index = q if q > p else p
    index = p if budget <= 0.0 else index
    return 1.0 if p >= 1.0 else index


@jit
def solve_index(p: float, budget: float) -> float:
    """Return the largest q with kl(p, q) ≤ budget, for Bernoulli distributions."""
    q = _newton_start(p, budget)
    for _ in range(_MAX_ROUNDS):
        change = _newton_step(p, budget, q)
        if not change > _TOLERANCE:
            break
        q -= change
    return _final_index(p, budget, q)


@jit
def _solve_lanes(means: int, budgets: int, indices: int) -> None:
    """Compute `solve_index` for all lanes, with bitwise equal results."""
    for i in range(LANES):
        store_f64(indices, i, _newton_start(load_f64(means, i), load_f64(budgets, i)))
    for _ in range(_MAX_ROUNDS):
        has_moved = i64(0)
        for i in range(LANES):
            q = load_f64(indices, i)
            change = _newton_step(load_f64(means, i), load_f64(budgets, i), q)
            is_moving = change > _TOLERANCE
            store_f64(indices, i, q - (change if is_moving else 0.0))
            has_moved |= i64(is_moving)
        if has_moved == 0:
            break
    for i in range(LANES):
        index = _final_index(load_f64(means, i), load_f64(budgets, i), load_f64(indices, i))
        store_f64(indices, i, index)


@inline
def _addresses(agent):  # type: ignore[no-untyped-def]
    frame, sums = load_i64(agent, layout.FRAME), load_i64(agent, layout.STATE)
    row = 8 * load_i64(frame, layout.NUM_ARMS) * LANES
    return frame, sums, sums + row, sums + 2 * row, sums + 3 * row, sums + 4 * row


@CompiledFunction
def start_kl(agent: int, step: int) -> None:
    """Mark all arms as untried."""
    frame, sums, counts, values, slopes, budgets = _addresses(agent)
    for cell in range(load_i64(frame, layout.NUM_ARMS) * LANES):
        store_f64(sums, cell, 0.0)
        store_f64(counts, cell, 0.0)
        store_f64(values, cell, _UNTRIED)
        store_f64(slopes, cell, 0.0)
        store_f64(budgets, cell, 0.0)


@inline
def _upper_bound(values, slopes, cell, budget):  # type: ignore[no-untyped-def]
    return load_f64(values, cell) + budget * load_f64(slopes, cell)


@inline
def _store_tangent(agent, cell, p, count, q, budget):  # type: ignore[no-untyped-def]
    """Store the tangent of the index q, dq/d(budget) = q (1 − q) / ((q − p) count)."""
    _, _, _, values, slopes, budgets = _addresses(agent)
    slope = 0.0
    if q < 1.0:
        slope = q * (1.0 - q) / ((q - p) * count) if q > p else 1e30
    store_f64(values, cell, q - budget * slope)
    store_f64(slopes, cell, slope)
    store_f64(budgets, cell, budget)


@jit
def _choose_lane(agent: int, lane: int, step: int, budget: float, top: float) -> int:
    frame, sums, counts, values, slopes, budgets = _addresses(agent)
    num_arms = load_i64(frame, layout.NUM_ARMS)
    while True:
        count, is_solved = 0, True
        for arm in range(num_arms):
            cell = arm * LANES + lane
            if _upper_bound(values, slopes, cell, budget) == top:
                count += 1
                pulls = load_f64(counts, cell)
                if pulls != 0.0 and load_f64(budgets, cell) != budget:
                    p = load_f64(sums, cell) / pulls
                    _store_tangent(agent, cell, p, pulls, solve_index(p, budget / pulls), budget)
                    is_solved = False
        if is_solved:
            break
        top = -math.inf
        for arm in range(num_arms):
            bound = _upper_bound(values, slopes, arm * LANES + lane, budget)
            top = bound if bound > top else top
    skip = 0
    if count > 1:
        skip = i64((u64(policy_word(frame, step, lane)) * u64(count)) >> _32)
    for arm in range(num_arms):
        if _upper_bound(values, slopes, arm * LANES + lane, budget) == top:
            if skip == 0:
                return arm
            skip -= 1
    return 0


@jit
def _budget(agent: int, pulls: int) -> float:
    """Return ln n + c ln ln n."""
    log = math.log(f64(max(pulls, 1)))
    return max(0.0, log + load_f64(agent, C) * math.log(max(log, 1.0)))


@CompiledFunction
def choose_kl(agent: int, step: int) -> None:
    """Choose the arm with the largest q with N kl(mean, q) ≤ ln n + c ln ln n after n pulls."""
    frame, _, _, values, slopes, budgets = _addresses(agent)
    num_arms, budget = load_i64(frame, layout.NUM_ARMS), _budget(agent, step)
    tops = budgets + 8 * num_arms * LANES + 24 * LANES
    for i in range(LANES):
        store_f64(tops, i, -math.inf)
    for arm in range(num_arms):
        row = 8 * arm * LANES
        for i in range(LANES):
            bound, top = _upper_bound(values + row, slopes + row, i, budget), load_f64(tops, i)
            store_f64(tops, i, bound if bound > top else top)
    for i in range(LANES):
        arm = _choose_lane(agent, i, step, budget, load_f64(tops, i))
        store_i32(frame + layout.ARM, i, i32(arm))


@CompiledFunction
def update_kl(agent: int, step: int) -> None:
    """Update the chosen arm's mean and its index for the next step."""
    frame, sums, counts, _, _, budgets = _addresses(agent)
    means = budgets + 8 * load_i64(frame, layout.NUM_ARMS) * LANES
    lane_budgets, indices = means + 8 * LANES, means + 16 * LANES
    budget = _budget(agent, step + 1)
    for i in range(LANES):
        cell = i64(load_i32(frame + layout.ARM, i)) * LANES + i
        total = load_f64(sums, cell) + f64(load_f32(frame + layout.REWARD, i))
        count = load_f64(counts, cell) + 1.0
        store_f64(sums, cell, total)
        store_f64(counts, cell, count)
        store_f64(means, i, total / count)
        store_f64(lane_budgets, i, budget / count)
    _solve_lanes(means, lane_budgets, indices)
    for i in range(LANES):
        cell = i64(load_i32(frame + layout.ARM, i)) * LANES + i
        count = load_f64(counts, cell)
        _store_tangent(agent, cell, load_f64(means, i), count, load_f64(indices, i), budget)
