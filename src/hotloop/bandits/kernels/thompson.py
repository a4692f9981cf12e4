"""Thompson sampling: a score for each arm, drawn from its posterior distribution."""

from __future__ import annotations

import math
from typing import Any

from hotloop.bandits.kernels import layout
from hotloop.bandits.kernels.arm_selection import take_best
from hotloop.bandits.kernels.layout import LANES
from hotloop.bandits.kernels.q_values import NO_ARM
from hotloop.bandits.kernels.randomness import (
    BETA_STREAM,
    SAMPLE_STREAM,
    f32,
    f64,
    fill_normals,
    fill_words,
    i32,
    i64,
    lane_words,
    normal_pair,
    unit,
)
from hotloop.base.numba_tools import (
    CompiledFunction,
    fma_f32,
    inline,
    jit,
    load_f32,
    load_f64,
    load_i32,
    load_i64,
    load_u32,
    sqrt_f32,
    store_f32,
    store_f64,
    store_i32,
)

PRIOR_MEAN, PRIOR_PRECISION, NOISE_PRECISION = (layout.PARAMETERS + word for word in range(3))
PRIOR_ALPHA, PRIOR_BETA = layout.PARAMETERS, layout.PARAMETERS + 1
STATE_BYTES = 24  # for each lane and row, ROWS rounded up to a multiple of 4


@inline
def _addresses(agent):  # type: ignore[no-untyped-def]
    """Return frame, number of cells, and the addresses of the state's float arrays."""
    # They are float64 sums, two float32 parameters, and float32 scores, which counts follow.
    frame, state = load_i64(agent, layout.FRAME), load_i64(agent, layout.STATE)
    cells = (load_i64(frame, layout.ROWS) + 3) // 4 * 4 * LANES
    return frame, cells, state, state + 8 * cells, state + 12 * cells, state + 16 * cells


@CompiledFunction
def start_gaussian(agent: int, step: int) -> None:
    """Set means and standard deviations to the prior's, and sums of rewards to 0."""
    frame, cells, sums, means, deviations, scores = _addresses(agent)
    for cell in range(cells):
        store_f64(sums, cell, 0.0)
        store_f32(scores + 4 * cells, cell, f32(0.0))
        is_arm = cell < load_i64(frame, layout.NUM_ARMS) * LANES
        store_f32(scores, cell, NO_ARM)
        store_f32(means, cell, f32(load_f64(agent, PRIOR_MEAN)) if is_arm else NO_ARM)
        store_f32(deviations, cell, f32(1.0 / math.sqrt(load_f64(agent, PRIOR_PRECISION))))


@CompiledFunction
def choose_gaussian(agent: int, step: int) -> None:
    """Choose the arm with the largest of one draw from each posterior."""
    frame, _, _, means, deviations, scores = _addresses(agent)
    for group in range((load_i64(frame, layout.NUM_ARMS) + 3) // 4):
        fill_words(frame, frame + layout.WORK, step, SAMPLE_STREAM, group)
        fill_normals(frame + layout.NORMALS, frame + layout.WORK, 1.0, 0.0)
        offset = group * 16 * LANES
        for i in range(4 * LANES):
            z = load_f32(frame + layout.NORMALS, i)
            score = fma_f32(z, load_f32(deviations + offset, i), load_f32(means + offset, i))
            store_f32(scores + offset, i, score)
    take_best(frame, scores, step, 0)


@CompiledFunction
def update_gaussian(agent: int, step: int) -> None:
    """Update the posterior: its precision 1/σ² is the sum of precisions, which weight the means."""
    frame, cells, sums, means, deviations, scores = _addresses(agent)
    counts = scores + 4 * cells
    prior, noise = load_f64(agent, PRIOR_PRECISION), load_f64(agent, NOISE_PRECISION)
    prior_mean = load_f64(agent, PRIOR_MEAN)
    for i in range(LANES):
        cell = i64(load_i32(frame + layout.ARM, i)) * LANES + i
        total = load_f64(sums, cell) + f64(load_f32(frame + layout.REWARD, i))
        store_f64(sums, cell, total)
        count = load_f32(counts, cell) + f32(1.0)
        store_f32(counts, cell, count)
        precision = prior + f64(count) * noise
        store_f32(means, cell, f32((prior * prior_mean + noise * total) / precision))
        store_f32(deviations, cell, f32(1.0 / math.sqrt(precision)))


@CompiledFunction
def start_beta(agent: int, step: int) -> None:
    """Set α and β to the prior's."""
    _, cells, _, alphas, betas, scores = _addresses(agent)
    for cell in range(cells):
        store_f32(scores, cell, NO_ARM)
        store_f32(alphas, cell, f32(load_f64(agent, PRIOR_ALPHA)))
        store_f32(betas, cell, f32(load_f64(agent, PRIOR_BETA)))


@CompiledFunction
def update_beta(agent: int, step: int) -> None:
    """Add the reward to α and 1 − reward to β."""
    frame, _, _, alphas, betas, _ = _addresses(agent)
    for i in range(LANES):
        cell = i64(load_i32(frame + layout.ARM, i)) * LANES + i
        reward = load_f32(frame + layout.REWARD, i)
        store_f32(alphas, cell, load_f32(alphas, cell) + reward)
        store_f32(betas, cell, load_f32(betas, cell) + (f32(1.0) - reward))


@inline
def _gamma_attempt(shape, z):  # type: ignore[no-untyped-def]
    """Return d v and v: Marsaglia, Tsang 2000, "A simple method for generating gamma variables"."""
    d = shape - f32(1.0 / 3.0)
    root = f32(1.0) + z / (f32(3.0) * sqrt_f32(d))
    v = root * root * root
    return d * v, v


@inline
def _passes_quick_test(v, z, u):  # type: ignore[no-untyped-def]
    squared = z * z
    return (v > f32(0.0)) & (u < f32(1.0) - f32(0.0331) * squared * squared)


@inline
def _accepts(shape, v, z, u):  # type: ignore[no-untyped-def]
    if v <= f32(0.0):
        return False
    if _passes_quick_test(v, z, u):
        return True
    d, wide_v, wide_z = f64(shape) - 1.0 / 3.0, f64(v), f64(z)
    return math.log(f64(u)) < 0.5 * wide_z * wide_z + d * (1.0 - wide_v + math.log(wide_v))


@jit
def _draw_beta(frame: int, lane: int, step: int, arm: int, alpha: float, beta: float) -> Any:
    """Return X / (X + Y), X ~ Gamma(α), Y ~ Gamma(β), drawn until both are accepted."""
    # For a shape below 1 it draws Gamma(shape + 1) · U^(1/shape), in logarithms.
    small_alpha, small_beta = alpha < f32(1.0), beta < f32(1.0)
    shape_x = alpha + f32(1.0) if small_alpha else alpha
    shape_y = beta + f32(1.0) if small_beta else beta
    attempt = 0
    while True:
        a, b, c, d = lane_words(frame, lane, step, BETA_STREAM, (arm << 16) | attempt)
        z, w = normal_pair(a, b)
        x, v_x = _gamma_attempt(shape_x, z)
        y, v_y = _gamma_attempt(shape_y, w)
        half = f32(0.5 * 2.0**-24)
        if _accepts(shape_x, v_x, z, unit(c) + half) and _accepts(shape_y, v_y, w, unit(d) + half):
            break
        attempt += 1
    if not (small_alpha or small_beta):
        return x / (x + y)
    a, b, c, d = lane_words(frame, lane, step, BETA_STREAM, (arm << 16) | 0xFFFF)
    log_x, log_y = math.log(f64(x)), math.log(f64(y))
    if small_alpha:
        log_x += math.log((f64(a) + 0.5) * 2.0**-32) / f64(alpha)
    if small_beta:
        log_y += math.log((f64(b) + 0.5) * 2.0**-32) / f64(beta)
    return f32(1.0 / (1.0 + math.exp(log_y - log_x)))


@jit
def _draw_lanes(agent: int, arm: int, step: int) -> None:
    """Make one attempt in all lanes, then redraw the lanes that the quick test rejects."""
    frame, _, _, alphas, betas, scores = _addresses(agent)
    offset = arm * 4 * LANES
    first, second, target = alphas + offset, betas + offset, scores + offset
    fill_words(frame, frame + layout.WORK, step, BETA_STREAM, arm << 16)
    has_rejected = i32(0)
    for i in range(LANES):
        z, w = normal_pair(
            load_u32(frame + layout.WORK, i), load_u32(frame + layout.WORK, LANES + i)
        )
        half = f32(0.5 * 2.0**-24)
        u = unit(load_u32(frame + layout.WORK, 2 * LANES + i)) + half
        t = unit(load_u32(frame + layout.WORK, 3 * LANES + i)) + half
        alpha, beta = load_f32(first, i), load_f32(second, i)
        x, v_x = _gamma_attempt(alpha, z)
        y, v_y = _gamma_attempt(beta, w)
        is_large = (alpha >= f32(1.0)) & (beta >= f32(1.0))
        is_accepted = is_large & _passes_quick_test(v_x, z, u) & _passes_quick_test(v_y, w, t)
        store_f32(target, i, x / (x + y))
        store_i32(frame + layout.NORMALS, i, i32(is_accepted))
        has_rejected |= i32(1) - i32(is_accepted)
    if has_rejected != i32(0):
        for i in range(LANES):
            if load_i32(frame + layout.NORMALS, i) == i32(0):
                alpha, beta = load_f32(first, i), load_f32(second, i)
                store_f32(target, i, _draw_beta(frame, i, step, arm, alpha, beta))


@CompiledFunction
def choose_beta(agent: int, step: int) -> None:
    """Choose the arm with the largest of one draw from each posterior."""
    frame, _, _, _, _, scores = _addresses(agent)
    for arm in range(load_i64(frame, layout.NUM_ARMS)):
        _draw_lanes(agent, arm, step)
    take_best(frame, scores, step, 0)
