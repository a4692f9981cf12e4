"""Agents that draw from weights e^H: gradient, EXP3.

State, float32: H minus its maximum (ROWS, LANES), weights (ROWS, LANES), their sums (LANES,), the
change of the maximum (LANES,); float64: sums of rewards (LANES,).
"""

from __future__ import annotations

import numpy as np

from hotloop.bandits.kernels import layout
from hotloop.bandits.kernels.arm_selection import draw_by_weight
from hotloop.bandits.kernels.layout import LANES, ROW_GROUP
from hotloop.bandits.kernels.mathematics import exp_f32
from hotloop.bandits.kernels.randomness import f32, f64, i64
from hotloop.base.numba_tools import (
    CompiledFunction,
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

STEP_SIZE, HAS_BASELINE = layout.PARAMETERS, layout.PARAMETERS + 1
GAMMA = layout.PARAMETERS
# A larger decrease may change the highest H. The maximum is then computed exactly: with a maximum
# that is too high, the weights of the other arms would underflow.
_LARGE_DECREASE = np.float32(-20.0)
STATE_BYTES_ARM, STATE_BYTES_LANE = 8, 16


@inline
def _addresses(agent):  # type: ignore[no-untyped-def]
    frame, state = load_i64(agent, layout.FRAME), load_i64(agent, layout.STATE)
    cells = load_i64(frame, layout.ROWS) * LANES
    weights = state + 4 * cells
    sums = weights + 4 * cells
    return frame, state, weights, sums, sums + 4 * LANES, sums + 8 * LANES


@CompiledFunction
def start_softmax(agent: int, step: int) -> None:
    """Give all arms the same weight."""
    frame, heights, _, _, maxima, reward_sums = _addresses(agent)
    arms = load_i64(frame, layout.NUM_ARMS) * LANES
    for cell in range(load_i64(frame, layout.ROWS) * LANES):
        store_f32(heights, cell, f32(0.0) if cell < arms else f32(-3e38))
    for i in range(LANES):
        store_f32(maxima, i, f32(0.0))
        store_f64(reward_sums, i, 0.0)


@jit
def _compute_weights(agent: int) -> None:
    """Subtract the maximum from H, and store e^H and its sum."""
    frame, heights, weights, sums, maxima, _ = _addresses(agent)
    for i in range(LANES):
        store_f32(sums, i, f32(0.0))
    for first in range(0, load_i64(frame, layout.ROWS), ROW_GROUP):
        group, powers = heights + first * 4 * LANES, weights + first * 4 * LANES
        for i in range(LANES):
            total, top = load_f32(sums, i), load_f32(maxima, i)
            for row in range(ROW_GROUP):
                height = load_f32(group, row * LANES + i) - top
                power = exp_f32(height)
                store_f32(group, row * LANES + i, height)
                store_f32(powers, row * LANES + i, power)
                total += power
            store_f32(sums, i, total)


@CompiledFunction
def choose_gradient(agent: int, step: int) -> None:
    """Draw an arm from softmax(H)."""
    frame, _, weights, sums, _, _ = _addresses(agent)
    _compute_weights(agent)
    draw_by_weight(frame, weights, sums)


@jit
def _max_height(heights: int, lane: int, num_arms: int) -> float:
    top = load_f32(heights, lane)
    for arm in range(1, num_arms):
        top = max_f32(top, load_f32(heights, arm * LANES + lane))
    return top


@CompiledFunction
def update_gradient(agent: int, step: int) -> None:
    """Update H_a ← H_a + α (r − r̄)(1[a chosen] − π_a)."""
    frame, heights, weights, sums, maxima, reward_sums = _addresses(agent)
    rate, push = f32(load_f64(agent, STEP_SIZE)), frame + layout.TOP
    # The baseline is the mean reward so far (at the first step the reward itself), or zero.
    has_baseline = load_i64(agent, HAS_BASELINE) != 0
    share = 1.0 / f64(step) if has_baseline and step > 0 else 0.0
    reward_factor = f32(1.0) if has_baseline and step == 0 else f32(0.0)
    for i in range(LANES):
        reward = load_f32(frame + layout.REWARD, i)
        total = load_f64(reward_sums, i)
        store_f64(reward_sums, i, total + f64(reward))
        advance = rate * (reward - f32(total * share) - reward_factor * reward)
        store_f32(push, i, advance)
        store_f32(frame + layout.WORK, i, -advance / load_f32(sums, i))
        store_f32(maxima, i, f32(-3e38))
    for first in range(0, load_i64(frame, layout.ROWS), ROW_GROUP):
        group, powers = heights + first * 4 * LANES, weights + first * 4 * LANES
        for i in range(LANES):
            top, factor = load_f32(maxima, i), load_f32(frame + layout.WORK, i)
            for row in range(ROW_GROUP):
                cell = row * LANES + i
                height = fma_f32(factor, load_f32(powers, cell), load_f32(group, cell))
                store_f32(group, cell, height)
                top = max_f32(top, height)
            store_f32(maxima, i, top)
    for i in range(LANES):
        cell = i64(load_i32(frame + layout.ARM, i)) * LANES + i
        height = load_f32(heights, cell) + load_f32(push, i)
        store_f32(heights, cell, height)
        if load_f32(push, i) < _LARGE_DECREASE:
            store_f32(maxima, i, _max_height(heights, i, load_i64(frame, layout.NUM_ARMS)))
        else:
            store_f32(maxima, i, max_f32(load_f32(maxima, i), height))


@CompiledFunction
def choose_exp3(agent: int, step: int) -> None:
    """Draw from (1 − γ) w / Σw + γ / k, with weights set to k times these probabilities."""
    frame, _, weights, sums, _, _ = _addresses(agent)
    _compute_weights(agent)
    num_arms = load_i64(frame, layout.NUM_ARMS)
    gamma = load_f64(agent, GAMMA)
    exploring, share = f32(gamma), f32((1.0 - gamma) * f64(num_arms))
    for i in range(LANES):
        store_f32(frame + layout.WORK, i, share / load_f32(sums, i))
        store_f32(sums, i, f32(num_arms))
    for arm in range(num_arms):
        row = weights + arm * 4 * LANES
        for i in range(LANES):
            store_f32(
                row, i, fma_f32(load_f32(frame + layout.WORK, i), load_f32(row, i), exploring)
            )
    draw_by_weight(frame, weights, sums)


@CompiledFunction
def update_exp3(agent: int, step: int) -> None:
    """Increase the chosen arm's H by γ r / (k p)."""
    frame, heights, weights, _, maxima, _ = _addresses(agent)
    gamma = f32(load_f64(agent, GAMMA))
    for i in range(LANES):
        cell = i64(load_i32(frame + layout.ARM, i)) * LANES + i
        growth = gamma * load_f32(frame + layout.REWARD, i) / load_f32(weights, cell)
        height = load_f32(heights, cell) + growth
        store_f32(heights, cell, height)
        store_f32(maxima, i, max_f32(f32(0.0), height))
