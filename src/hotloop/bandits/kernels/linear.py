"""LinUCB and LinTS: a ridge regression for each arm, kept as its inverse by Sherman and Morrison's
formula, in float64.

State: A⁻¹ (k, d, d, LANES), θ (k, d, LANES), float32 scores (ROWS, LANES), and
3 + 2 d float64 rows of work before them.
"""

from __future__ import annotations

import math

from hotloop.bandits.kernels.choosing import take_best
from hotloop.bandits.kernels.layout import (
    ARM,
    CONTEXT,
    DIMENSION,
    FRAME,
    LANES,
    NORMALS,
    NUM_ARMS,
    PARAMETERS,
    REWARD,
    ROWS,
    STATE,
    TOGETHER,
    WORK,
)
from hotloop.bandits.kernels.randomness import (
    SAMPLE_STREAM,
    f32,
    f64,
    fill_normals,
    fill_words,
    i64,
)
from hotloop.bandits.kernels.values import NO_ARM
from hotloop.numba_tools import (
    Part,
    inline,
    jit,
    load_f32,
    load_f64,
    load_i32,
    load_i64,
    store_f32,
    store_f64,
)

WIDTH, RIDGE = PARAMETERS, PARAMETERS + 1


def state_bytes(num_arms: int, dimension: int) -> int:
    """What the state takes."""
    doubles = num_arms * dimension * (dimension + 1) + 3 + 2 * dimension
    return (8 * doubles + 4 * (num_arms + TOGETHER)) * LANES


@inline
def _places(agent):  # type: ignore[no-untyped-def]
    frame, inverse = load_i64(agent, FRAME), load_i64(agent, STATE)
    num_arms, dimension = load_i64(frame, NUM_ARMS), load_i64(frame, DIMENSION)
    theta = inverse + 8 * num_arms * dimension * dimension * LANES
    work = theta + 8 * num_arms * dimension * LANES
    return frame, inverse, theta, work, work + 8 * (3 + 2 * dimension) * LANES


@Part
def start_linear(agent: int, step: int) -> None:
    """A = ridge · I, θ = 0."""
    frame, inverse, theta, _, scores = _places(agent)
    for cell in range(load_i64(frame, ROWS) * LANES):
        store_f32(scores, cell, NO_ARM)
    num_arms, dimension = load_i64(frame, NUM_ARMS), load_i64(frame, DIMENSION)
    diagonal = 1.0 / load_f64(agent, RIDGE)
    for arm in range(num_arms):
        for row in range(dimension):
            for column in range(dimension):
                value = diagonal if row == column else 0.0
                place = inverse + 8 * ((arm * dimension + row) * dimension + column) * LANES
                for i in range(LANES):
                    store_f64(place, i, value)
            for i in range(LANES):
                store_f64(theta + 8 * (arm * dimension + row) * LANES, i, 0.0)


@jit
def _measure(agent: int, arm: int) -> None:
    """x·θ into the first row of work, xᵀ A⁻¹ x into the second."""
    frame, inverse, theta, work, _ = _places(agent)
    dimension, context = load_i64(frame, DIMENSION), load_i64(frame, CONTEXT)
    expected, spread, product = work, work + 8 * LANES, work + 16 * LANES
    for i in range(LANES):
        store_f64(expected, i, 0.0)
        store_f64(spread, i, 0.0)
    for row in range(dimension):
        for i in range(LANES):
            store_f64(product, i, 0.0)
        for column in range(dimension):
            place = inverse + 8 * ((arm * dimension + row) * dimension + column) * LANES
            for i in range(LANES):
                x = f64(load_f32(context, column * LANES + i))
                store_f64(product, i, load_f64(product, i) + load_f64(place, i) * x)
        weights = theta + 8 * (arm * dimension + row) * LANES
        for i in range(LANES):
            x = f64(load_f32(context, row * LANES + i))
            store_f64(expected, i, load_f64(expected, i) + load_f64(weights, i) * x)
            store_f64(spread, i, load_f64(spread, i) + load_f64(product, i) * x)


@Part
def choose_lin_ucb(agent: int, step: int) -> None:
    """The largest x·θ + α √(xᵀ A⁻¹ x)."""
    frame, _, _, work, scores = _places(agent)
    width = load_f64(agent, WIDTH)
    for arm in range(load_i64(frame, NUM_ARMS)):
        _measure(agent, arm)
        for i in range(LANES):
            radius = width * math.sqrt(load_f64(work + 8 * LANES, i))
            store_f32(scores, arm * LANES + i, f32(load_f64(work, i) + radius))
    take_best(frame, scores, step, 0)


@Part
def choose_lin_ts(agent: int, step: int) -> None:
    """The largest draw from N(x·θ, v² xᵀ A⁻¹ x)."""
    frame, _, _, work, scores = _places(agent)
    width = load_f64(agent, WIDTH)
    for arm in range(load_i64(frame, NUM_ARMS)):
        if arm % 4 == 0:
            fill_words(frame, frame + WORK, step, SAMPLE_STREAM, arm // 4)
            fill_normals(frame + NORMALS, frame + WORK, 1.0, 0.0)
        _measure(agent, arm)
        for i in range(LANES):
            deviation = width * math.sqrt(load_f64(work + 8 * LANES, i))
            z = f64(load_f32(frame + NORMALS, (arm % 4) * LANES + i))
            store_f32(scores, arm * LANES + i, f32(load_f64(work, i) + deviation * z))
    take_best(frame, scores, step, 0)


@jit
def _update_lane(agent: int, lane: int) -> None:
    frame, inverse, theta, work, _ = _places(agent)
    dimension, context = load_i64(frame, DIMENSION), load_i64(frame, CONTEXT)
    arm = i64(load_i32(frame + ARM, lane))
    product, first = work + 24 * LANES, inverse + 8 * arm * dimension * dimension * LANES
    weights = theta + 8 * arm * dimension * LANES
    spread, expected = 0.0, 0.0
    for row in range(dimension):
        total = 0.0
        for column in range(dimension):
            x = f64(load_f32(context, column * LANES + lane))
            total += load_f64(first, (row * dimension + column) * LANES + lane) * x
        store_f64(product, row, total)
        x = f64(load_f32(context, row * LANES + lane))
        spread += total * x
        expected += load_f64(weights, row * LANES + lane) * x
    gain = 1.0 / (1.0 + spread)
    error = f64(load_f32(frame + REWARD, lane)) - expected
    for row in range(dimension):
        left = load_f64(product, row) * gain
        place = row * LANES + lane
        store_f64(weights, place, load_f64(weights, place) + left * error)
        for column in range(dimension):
            place = (row * dimension + column) * LANES + lane
            change = left * load_f64(product, column)
            store_f64(first, place, load_f64(first, place) - change)


@Part
def update_linear(agent: int, step: int) -> None:
    """A ← A + x xᵀ of the taken arm, and its θ: recursive least squares."""
    for i in range(LANES):
        _update_lane(agent, i)
