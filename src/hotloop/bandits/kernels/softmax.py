"""Agents that draw from weights e^H: gradient, EXP3.

State, float32: H less its maximum (ROWS, LANES), weights (ROWS, LANES), their sums (LANES,), the
change of the maximum (LANES,); float64: sums of rewards (LANES,).
"""

from __future__ import annotations

import numpy as np

from hotloop.bandits.kernels.choosing import draw_by_weight
from hotloop.bandits.kernels.layout import (
    ARM,
    FRAME,
    LANES,
    NUM_ARMS,
    PARAMETERS,
    REWARD,
    ROWS,
    STATE,
    TOGETHER,
    TOP,
    WORK,
)
from hotloop.bandits.kernels.mathematics import exp_f32
from hotloop.bandits.kernels.randomness import f32, f64, i64
from hotloop.numba_tools import (
    Part,
    fma_f32,
    inline,
    jit,
    load_f32,
    load_f64,
    load_i32,
    load_i64,
    max_f32,
    store_f32,
    store_f64,
)

STEP_SIZE, HAS_BASELINE = PARAMETERS, PARAMETERS + 1
GAMMA = PARAMETERS
# A push further down than this may take away the highest H itself, and the others must not lie so
# far below what is subtracted from them that their weights are lost.
_DEEP = np.float32(-20.0)
STATE_BYTES_ARM, STATE_BYTES_LANE = 8, 16


@inline
def _places(agent):  # type: ignore[no-untyped-def]
    frame, state = load_i64(agent, FRAME), load_i64(agent, STATE)
    cells = load_i64(frame, ROWS) * LANES
    weights = state + 4 * cells
    sums = weights + 4 * cells
    return frame, state, weights, sums, sums + 4 * LANES, sums + 8 * LANES


@Part
def start_softmax(agent: int, step: int) -> None:
    """All arms alike."""
    frame, heights, _, _, highest, gained = _places(agent)
    arms = load_i64(frame, NUM_ARMS) * LANES
    for cell in range(load_i64(frame, ROWS) * LANES):
        store_f32(heights, cell, f32(0.0) if cell < arms else f32(-3e38))
    for i in range(LANES):
        store_f32(highest, i, f32(0.0))
        store_f64(gained, i, 0.0)


@jit
def _weigh(agent: int) -> None:
    """H less its maximum, and e to that."""
    frame, heights, weights, sums, highest, _ = _places(agent)
    for i in range(LANES):
        store_f32(sums, i, f32(0.0))
    for first in range(0, load_i64(frame, ROWS), TOGETHER):
        five, powers = heights + first * 4 * LANES, weights + first * 4 * LANES
        for i in range(LANES):
            total, top = load_f32(sums, i), load_f32(highest, i)
            for row in range(TOGETHER):
                height = load_f32(five, row * LANES + i) - top
                power = exp_f32(height)
                store_f32(five, row * LANES + i, height)
                store_f32(powers, row * LANES + i, power)
                total += power
            store_f32(sums, i, total)


@Part
def choose_gradient(agent: int, step: int) -> None:
    """Drawn from softmax(H)."""
    frame, _, weights, sums, _, _ = _places(agent)
    _weigh(agent)
    draw_by_weight(frame, weights, sums)


@jit
def _highest_of(heights: int, lane: int, num_arms: int) -> float:
    top = load_f32(heights, lane)
    for arm in range(1, num_arms):
        top = max_f32(top, load_f32(heights, arm * LANES + lane))
    return top


@Part
def update_gradient(agent: int, step: int) -> None:
    """H_a ← H_a + α (r − r̄)(1[a taken] − π_a)."""
    frame, heights, weights, sums, highest, gained = _places(agent)
    rate, push = f32(load_f64(agent, STEP_SIZE)), frame + TOP
    # The baseline is the mean so far, at the first step the reward itself, or nothing.
    has_baseline = load_i64(agent, HAS_BASELINE) != 0
    share = 1.0 / f64(step) if has_baseline and step > 0 else 0.0
    own = f32(1.0) if has_baseline and step == 0 else f32(0.0)
    for i in range(LANES):
        reward = load_f32(frame + REWARD, i)
        total = load_f64(gained, i)
        store_f64(gained, i, total + f64(reward))
        advance = rate * (reward - f32(total * share) - own * reward)
        store_f32(push, i, advance)
        store_f32(frame + WORK, i, -advance / load_f32(sums, i))
        store_f32(highest, i, f32(-3e38))
    for first in range(0, load_i64(frame, ROWS), TOGETHER):
        five, powers = heights + first * 4 * LANES, weights + first * 4 * LANES
        for i in range(LANES):
            top, factor = load_f32(highest, i), load_f32(frame + WORK, i)
            for row in range(TOGETHER):
                cell = row * LANES + i
                height = fma_f32(factor, load_f32(powers, cell), load_f32(five, cell))
                store_f32(five, cell, height)
                top = max_f32(top, height)
            store_f32(highest, i, top)
    for i in range(LANES):
        cell = i64(load_i32(frame + ARM, i)) * LANES + i
        height = load_f32(heights, cell) + load_f32(push, i)
        store_f32(heights, cell, height)
        if load_f32(push, i) < _DEEP:
            store_f32(highest, i, _highest_of(heights, i, load_i64(frame, NUM_ARMS)))
        else:
            store_f32(highest, i, max_f32(load_f32(highest, i), height))


@Part
def choose_exp3(agent: int, step: int) -> None:
    """Drawn from (1 − γ) w / Σw + γ / k; the weights become k times these probabilities."""
    frame, _, weights, sums, _, _ = _places(agent)
    _weigh(agent)
    num_arms = load_i64(frame, NUM_ARMS)
    gamma = load_f64(agent, GAMMA)
    exploring, share = f32(gamma), f32((1.0 - gamma) * f64(num_arms))
    for i in range(LANES):
        store_f32(frame + WORK, i, share / load_f32(sums, i))
        store_f32(sums, i, f32(num_arms))
    for arm in range(num_arms):
        row = weights + arm * 4 * LANES
        for i in range(LANES):
            store_f32(row, i, fma_f32(load_f32(frame + WORK, i), load_f32(row, i), exploring))
    draw_by_weight(frame, weights, sums)


@Part
def update_exp3(agent: int, step: int) -> None:
    """The taken arm's H grows by γ r / (k p)."""
    frame, heights, weights, _, highest, _ = _places(agent)
    gamma = f32(load_f64(agent, GAMMA))
    for i in range(LANES):
        cell = i64(load_i32(frame + ARM, i)) * LANES + i
        growth = gamma * load_f32(frame + REWARD, i) / load_f32(weights, cell)
        height = load_f32(heights, cell) + growth
        store_f32(heights, cell, height)
        store_f32(highest, i, max_f32(f32(0.0), height))
