"""Thompson sampling: a score for each arm, drawn from what is believed of it."""

from __future__ import annotations

import math
from typing import Any

from hotloop.bandits.kernels.choosing import take_best
from hotloop.bandits.kernels.layout import (
    ARM,
    FRAME,
    LANES,
    NORMALS,
    NUM_ARMS,
    PARAMETERS,
    REWARD,
    ROWS,
    STATE,
    WORK,
)
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
from hotloop.bandits.kernels.values import NO_ARM
from hotloop.numba_tools import (
    Part,
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

PRIOR_MEAN, PRIOR_PRECISION, NOISE_PRECISION = PARAMETERS, PARAMETERS + 1, PARAMETERS + 2
PRIOR_ALPHA, PRIOR_BETA = PARAMETERS, PARAMETERS + 1
STATE_BYTES = 24  # for each row, of ROWS rounded up to fours, and lane


@inline
def _places(agent):  # type: ignore[no-untyped-def]
    """float64 sums; float32 the posterior's two settings, scores, counts: rows of LANES."""
    frame, state = load_i64(agent, FRAME), load_i64(agent, STATE)
    cells = (load_i64(frame, ROWS) + 3) // 4 * 4 * LANES
    return frame, cells, state, state + 8 * cells, state + 12 * cells, state + 16 * cells


@Part
def start_gaussian(agent: int, step: int) -> None:
    """The prior: mean and standard deviation; sums of rewards."""
    frame, cells, sums, means, deviations, scores = _places(agent)
    for cell in range(cells):
        store_f64(sums, cell, 0.0)
        store_f32(scores + 4 * cells, cell, f32(0.0))
        is_arm = cell < load_i64(frame, NUM_ARMS) * LANES
        store_f32(scores, cell, NO_ARM)
        store_f32(means, cell, f32(load_f64(agent, PRIOR_MEAN)) if is_arm else NO_ARM)
        store_f32(deviations, cell, f32(1.0 / math.sqrt(load_f64(agent, PRIOR_PRECISION))))


@Part
def choose_gaussian(agent: int, step: int) -> None:
    """The largest of one draw from each posterior."""
    frame, _, _, means, deviations, scores = _places(agent)
    for group in range((load_i64(frame, NUM_ARMS) + 3) // 4):
        fill_words(frame, frame + WORK, step, SAMPLE_STREAM, group)
        fill_normals(frame + NORMALS, frame + WORK, 1.0, 0.0)
        at = group * 16 * LANES
        for i in range(4 * LANES):
            z = load_f32(frame + NORMALS, i)
            score = fma_f32(z, load_f32(deviations + at, i), load_f32(means + at, i))
            store_f32(scores + at, i, score)
    take_best(frame, scores, step, 0)


@Part
def update_gaussian(agent: int, step: int) -> None:
    """Precisions, 1/σ², add up; the mean is the mean of what is known, weighted by them."""
    frame, cells, sums, means, deviations, scores = _places(agent)
    counts = scores + 4 * cells
    prior, noise = load_f64(agent, PRIOR_PRECISION), load_f64(agent, NOISE_PRECISION)
    prior_mean = load_f64(agent, PRIOR_MEAN)
    for i in range(LANES):
        cell = i64(load_i32(frame + ARM, i)) * LANES + i
        total = load_f64(sums, cell) + f64(load_f32(frame + REWARD, i))
        store_f64(sums, cell, total)
        count = load_f32(counts, cell) + f32(1.0)
        store_f32(counts, cell, count)
        precision = prior + f64(count) * noise
        store_f32(means, cell, f32((prior * prior_mean + noise * total) / precision))
        store_f32(deviations, cell, f32(1.0 / math.sqrt(precision)))


@Part
def start_beta(agent: int, step: int) -> None:
    """The prior's α and β."""
    _, cells, _, alphas, betas, scores = _places(agent)
    for cell in range(cells):
        store_f32(scores, cell, NO_ARM)
        store_f32(alphas, cell, f32(load_f64(agent, PRIOR_ALPHA)))
        store_f32(betas, cell, f32(load_f64(agent, PRIOR_BETA)))


@Part
def update_beta(agent: int, step: int) -> None:
    """A reward adds to α, its lack to β."""
    frame, _, _, alphas, betas, _ = _places(agent)
    for i in range(LANES):
        cell = i64(load_i32(frame + ARM, i)) * LANES + i
        reward = load_f32(frame + REWARD, i)
        store_f32(alphas, cell, load_f32(alphas, cell) + reward)
        store_f32(betas, cell, load_f32(betas, cell) + (f32(1.0) - reward))


@inline
def _gamma_attempt(shape, z):  # type: ignore[no-untyped-def]
    """d v, and v: Marsaglia and Tsang 2000, "A simple method for generating gamma variables"."""
    d = shape - f32(1.0 / 3.0)
    root = f32(1.0) + z / (f32(3.0) * sqrt_f32(d))
    v = root * root * root
    return d * v, v


@inline
def _is_surely_good(v, z, u):  # type: ignore[no-untyped-def]
    squared = z * z
    return (v > f32(0.0)) & (u < f32(1.0) - f32(0.0331) * squared * squared)


@inline
def _is_good(shape, v, z, u):  # type: ignore[no-untyped-def]
    if v <= f32(0.0):
        return False
    if _is_surely_good(v, z, u):
        return True
    d, wide_v, wide_z = f64(shape) - 1.0 / 3.0, f64(v), f64(z)
    return math.log(f64(u)) < 0.5 * wide_z * wide_z + d * (1.0 - wide_v + math.log(wide_v))


@jit
def _draw_beta(frame: int, lane: int, step: int, arm: int, alpha: float, beta: float) -> Any:
    """X / (X + Y), X ~ Gamma(α), Y ~ Gamma(β), both drawn until both are accepted.

    A shape below 1 is drawn as that of shape + 1 times U^(1/shape), in logarithms.
    """
    small_alpha, small_beta = alpha < f32(1.0), beta < f32(1.0)
    one = alpha + f32(1.0) if small_alpha else alpha
    other = beta + f32(1.0) if small_beta else beta
    attempt = 0
    while True:
        a, b, c, d = lane_words(frame, lane, step, BETA_STREAM, (arm << 16) | attempt)
        z, w = normal_pair(a, b)
        x, v_x = _gamma_attempt(one, z)
        y, v_y = _gamma_attempt(other, w)
        half = f32(0.5 * 2.0**-24)
        if _is_good(one, v_x, z, unit(c) + half) and _is_good(other, v_y, w, unit(d) + half):
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
def _draw_all(agent: int, arm: int, step: int) -> None:
    """One attempt in all lanes, then each that was not surely accepted by itself."""
    frame, _, _, alphas, betas, scores = _places(agent)
    at = arm * 4 * LANES
    first, second, target = alphas + at, betas + at, scores + at
    fill_words(frame, frame + WORK, step, BETA_STREAM, arm << 16)
    several = i32(0)
    for i in range(LANES):
        z, w = normal_pair(load_u32(frame + WORK, i), load_u32(frame + WORK, LANES + i))
        half = f32(0.5 * 2.0**-24)
        u = unit(load_u32(frame + WORK, 2 * LANES + i)) + half
        t = unit(load_u32(frame + WORK, 3 * LANES + i)) + half
        alpha, beta = load_f32(first, i), load_f32(second, i)
        x, v_x = _gamma_attempt(alpha, z)
        y, v_y = _gamma_attempt(beta, w)
        is_large = (alpha >= f32(1.0)) & (beta >= f32(1.0))
        is_good = is_large & _is_surely_good(v_x, z, u) & _is_surely_good(v_y, w, t)
        store_f32(target, i, x / (x + y))
        store_i32(frame + NORMALS, i, i32(is_good))
        several |= i32(1) - i32(is_good)
    if several != i32(0):
        for i in range(LANES):
            if load_i32(frame + NORMALS, i) == i32(0):
                alpha, beta = load_f32(first, i), load_f32(second, i)
                store_f32(target, i, _draw_beta(frame, i, step, arm, alpha, beta))


@Part
def choose_beta(agent: int, step: int) -> None:
    """The largest of one draw from each posterior."""
    frame, _, _, _, _, scores = _places(agent)
    for arm in range(load_i64(frame, NUM_ARMS)):
        _draw_all(agent, arm, step)
    take_best(frame, scores, step, 0)
