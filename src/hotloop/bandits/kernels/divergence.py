"""KL-UCB, whose index solves an equation, for the few arms whose index can matter.

An arm's index grows with ln t along a concave curve, so its tangent at an earlier step bounds it
from above. Only arms whose bound reaches the best index are solved anew: one or two a step, where
solving all of them by bisection would cost microseconds.
"""

from __future__ import annotations

import math

import numpy as np

from hotloop.bandits.kernels.choosing import policy_word
from hotloop.bandits.kernels.layout import (
    ARM,
    FRAME,
    LANES,
    NUM_ARMS,
    PARAMETERS,
    REWARD,
    STATE,
)
from hotloop.bandits.kernels.randomness import f64, i32, i64, u64
from hotloop.compiled import (
    Part,
    inline,
    jit,
    load_f32,
    load_f64,
    load_i32,
    load_i64,
    store_f64,
    store_i32,
)

C = PARAMETERS
STATE_BYTES = 40  # for each arm and lane: float64 sums, counts, indices, slopes, budgets
_UNTRIED = 1e300
_32 = np.uint64(32)


@inline
def _kl(p, q):  # type: ignore[no-untyped-def]
    """KL divergence of Bernoulli(p) from Bernoulli(q), q inside (0, 1)."""
    result = 0.0
    if p > 0.0:
        result += p * math.log(p / q)
    if p < 1.0:
        result += (1.0 - p) * math.log((1.0 - p) / (1.0 - q))
    return result


@jit
def solve_index(p: float, budget: float) -> float:
    """The largest q with kl(p, q) ≤ budget, by Newton's method.

    It starts above the root of a convex function, from where it falls towards it: Pinsker's bound,
    or the one that leaves out p ln(1/q).
    """
    if p >= 1.0:
        return 1.0
    if budget <= 0.0:
        return p
    if p <= 0.0:
        return 1.0 - math.exp(-budget)
    q = p + math.sqrt(0.5 * budget)
    other = 1.0 - (1.0 - p) * math.exp(-(budget - p * math.log(p)) / (1.0 - p))
    q = min(q, other, 1.0 - 1e-15)
    for _ in range(60):
        slope = (q - p) / (q * (1.0 - q))
        if slope <= 0.0:
            break
        change = (_kl(p, q) - budget) / slope
        q -= change
        if change <= 1e-13:
            break
    return max(q, p)


@Part
def start_kl(agent: int, step: int) -> None:
    """All arms untried."""
    frame, state = load_i64(agent, FRAME), load_i64(agent, STATE)
    cells = load_i64(frame, NUM_ARMS) * LANES
    for cell in range(cells):
        store_f64(state, cell, 0.0)
        store_f64(state, cells + cell, 0.0)
        store_f64(state, 2 * cells + cell, _UNTRIED)
        store_f64(state, 3 * cells + cell, 0.0)
        store_f64(state, 4 * cells + cell, 0.0)


@inline
def _bound(state, cells, cell, budget):  # type: ignore[no-untyped-def]
    ahead = budget - load_f64(state, 4 * cells + cell)
    return load_f64(state, 2 * cells + cell) + ahead * load_f64(state, 3 * cells + cell)


@jit
def _solve_cell(state: int, cells: int, cell: int, budget: float) -> None:
    count = load_f64(state, cells + cell)
    p = load_f64(state, cell) / count
    q = solve_index(p, budget / count)
    # dq/d(budget) = 1 / (count · dkl/dq); a bound that is flat would be wrong, a steep one is not.
    slope = q * (1.0 - q) / ((q - p) * count) if q > p else 1e30
    store_f64(state, 2 * cells + cell, q)
    store_f64(state, 3 * cells + cell, 0.0 if q >= 1.0 else slope)
    store_f64(state, 4 * cells + cell, budget)


@jit
def _choose_lane(frame: int, state: int, lane: int, step: int, budget: float) -> int:
    num_arms = load_i64(frame, NUM_ARMS)
    cells = num_arms * LANES
    while True:
        top = -1.0
        for arm in range(num_arms):
            top = max(top, _bound(state, cells, arm * LANES + lane, budget))
        count, is_solved = 0, True
        for arm in range(num_arms):
            cell = arm * LANES + lane
            if _bound(state, cells, cell, budget) == top:
                count += 1
                is_untried = load_f64(state, cells + cell) == 0.0
                if not is_untried and load_f64(state, 4 * cells + cell) != budget:
                    _solve_cell(state, cells, cell, budget)
                    is_solved = False
        if is_solved:
            break
    left = 0
    if count > 1:
        left = i64((u64(policy_word(frame, step, lane)) * u64(count)) >> _32)
    for arm in range(num_arms):
        if _bound(state, cells, arm * LANES + lane, budget) == top:
            if left == 0:
                return arm
            left -= 1
    return 0


@Part
def choose_kl(agent: int, step: int) -> None:
    """The largest q for which N kl(mean, q) ≤ ln n + c ln ln n, n the pulls so far."""
    frame, state = load_i64(agent, FRAME), load_i64(agent, STATE)
    budget = math.log(f64(max(step, 1)))
    budget = max(0.0, budget + load_f64(agent, C) * math.log(max(budget, 1.0)))
    for i in range(LANES):
        store_i32(frame + ARM, i, i32(_choose_lane(frame, state, i, step, budget)))


@Part
def update_kl(agent: int, step: int) -> None:
    """The taken arm's index is unknown until it is solved: at most 1."""
    frame, state = load_i64(agent, FRAME), load_i64(agent, STATE)
    cells = load_i64(frame, NUM_ARMS) * LANES
    for i in range(LANES):
        cell = i64(load_i32(frame + ARM, i)) * LANES + i
        reward = f64(load_f32(frame + REWARD, i))
        store_f64(state, cell, load_f64(state, cell) + reward)
        store_f64(state, cells + cell, load_f64(state, cells + cell) + 1.0)
        store_f64(state, 2 * cells + cell, 2.0)
        store_f64(state, 3 * cells + cell, 0.0)
        store_f64(state, 4 * cells + cell, -1.0)
