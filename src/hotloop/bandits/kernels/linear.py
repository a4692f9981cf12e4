"""LinUCB and LinTS: a ridge regression for each arm, in float64.

Sherman and Morrison's formula updates the inverse matrix. State: A⁻¹ (k, d, d, LANES), θ (k, d,
LANES), 3 + 2 d float64 rows of work space, then float32 scores (ROWS, LANES).
"""

from __future__ import annotations

import math

from hotloop.bandits.kernels import layout
from hotloop.bandits.kernels.arm_selection import take_best
from hotloop.bandits.kernels.layout import LANES, ROW_GROUP
from hotloop.bandits.kernels.q_values import NO_ARM
from hotloop.bandits.kernels.randomness import (
    SAMPLE_STREAM,
    f32,
    f64,
    fill_normals,
    fill_words,
    i64,
)
from hotloop.base.numba_tools import (
    CompiledFunction,
    inline,
    jit,
    load_f32,
    load_f64,
    load_i32,
    load_i64,
    store_f32,
    store_f64,
)

WIDTH, RIDGE = layout.PARAMETERS, layout.PARAMETERS + 1


def state_bytes(num_arms: int, dimension: int) -> int:
    """Return the size of the state in bytes."""
    doubles = num_arms * dimension * (dimension + 1) + 3 + 2 * dimension
    return (8 * doubles + 4 * (num_arms + ROW_GROUP)) * LANES


@inline
def _addresses(agent):  # type: ignore[no-untyped-def]
    frame, inverse = load_i64(agent, layout.FRAME), load_i64(agent, layout.STATE)
    num_arms, dimension = load_i64(frame, layout.NUM_ARMS), load_i64(frame, layout.DIMENSION)
    theta = inverse + 8 * num_arms * dimension * dimension * LANES
    work = theta + 8 * num_arms * dimension * LANES
    return frame, inverse, theta, work, work + 8 * (3 + 2 * dimension) * LANES


@CompiledFunction
def start_linear(agent: int, step: int) -> None:
    """Set A = ridge · I and θ = 0."""
    frame, inverse, theta, _, scores = _addresses(agent)
    for cell in range(load_i64(frame, layout.ROWS) * LANES):
        store_f32(scores, cell, NO_ARM)
    num_arms, dimension = load_i64(frame, layout.NUM_ARMS), load_i64(frame, layout.DIMENSION)
    diagonal = 1.0 / load_f64(agent, RIDGE)
    for arm in range(num_arms):
        for row in range(dimension):
            for column in range(dimension):
                value = diagonal if row == column else 0.0
                target = inverse + 8 * ((arm * dimension + row) * dimension + column) * LANES
                for i in range(LANES):
                    store_f64(target, i, value)
            for i in range(LANES):
                store_f64(theta + 8 * (arm * dimension + row) * LANES, i, 0.0)


@jit
def _predict(agent: int, arm: int) -> None:
    """Store x·θ in the first row of the work space and xᵀ A⁻¹ x in the second."""
    frame, inverse, theta, work, _ = _addresses(agent)
    dimension, context = load_i64(frame, layout.DIMENSION), load_i64(frame, layout.CONTEXT)
    means, variances, products = work, work + 8 * LANES, work + 16 * LANES
    for i in range(LANES):
        store_f64(means, i, 0.0)
        store_f64(variances, i, 0.0)
    for row in range(dimension):
        for i in range(LANES):
            store_f64(products, i, 0.0)
        for column in range(dimension):
            source = inverse + 8 * ((arm * dimension + row) * dimension + column) * LANES
            for i in range(LANES):
                x = f64(load_f32(context, column * LANES + i))
                store_f64(products, i, load_f64(products, i) + load_f64(source, i) * x)
        weights = theta + 8 * (arm * dimension + row) * LANES
        for i in range(LANES):
            x = f64(load_f32(context, row * LANES + i))
            store_f64(means, i, load_f64(means, i) + load_f64(weights, i) * x)
            store_f64(variances, i, load_f64(variances, i) + load_f64(products, i) * x)


@CompiledFunction
def choose_lin_ucb(agent: int, step: int) -> None:
    """Choose the arm with the largest x·θ + α √(xᵀ A⁻¹ x)."""
    frame, _, _, work, scores = _addresses(agent)
    width = load_f64(agent, WIDTH)
    for arm in range(load_i64(frame, layout.NUM_ARMS)):
        _predict(agent, arm)
        for i in range(LANES):
            radius = width * math.sqrt(load_f64(work + 8 * LANES, i))
            store_f32(scores, arm * LANES + i, f32(load_f64(work, i) + radius))
    take_best(frame, scores, step, 0)


@CompiledFunction
def choose_lin_ts(agent: int, step: int) -> None:
    """Choose the arm with the largest draw from N(x·θ, v² xᵀ A⁻¹ x)."""
    frame, _, _, work, scores = _addresses(agent)
    width = load_f64(agent, WIDTH)
    for arm in range(load_i64(frame, layout.NUM_ARMS)):
        if arm % 4 == 0:
            fill_words(frame, frame + layout.WORK, step, SAMPLE_STREAM, arm // 4)
            fill_normals(frame + layout.NORMALS, frame + layout.WORK, 1.0, 0.0)
        _predict(agent, arm)
        for i in range(LANES):
            deviation = width * math.sqrt(load_f64(work + 8 * LANES, i))
            z = f64(load_f32(frame + layout.NORMALS, (arm % 4) * LANES + i))
            store_f32(scores, arm * LANES + i, f32(load_f64(work, i) + deviation * z))
    take_best(frame, scores, step, 0)


@jit
def _update_lane(agent: int, lane: int) -> None:
    frame, inverse, theta, work, _ = _addresses(agent)
    dimension, context = load_i64(frame, layout.DIMENSION), load_i64(frame, layout.CONTEXT)
    arm = i64(load_i32(frame + layout.ARM, lane))
    products, matrix = work + 24 * LANES, inverse + 8 * arm * dimension * dimension * LANES
    weights = theta + 8 * arm * dimension * LANES
    variance, mean = 0.0, 0.0
    for row in range(dimension):
        total = 0.0
        for column in range(dimension):
            x = f64(load_f32(context, column * LANES + lane))
            total += load_f64(matrix, (row * dimension + column) * LANES + lane) * x
        store_f64(products, row, total)
        x = f64(load_f32(context, row * LANES + lane))
        variance += total * x
        mean += load_f64(weights, row * LANES + lane) * x
    gain = 1.0 / (1.0 + variance)
    error = f64(load_f32(frame + layout.REWARD, lane)) - mean
    for row in range(dimension):
        scaled = load_f64(products, row) * gain
        cell = row * LANES + lane
        store_f64(weights, cell, load_f64(weights, cell) + scaled * error)
        for column in range(dimension):
            cell = (row * dimension + column) * LANES + lane
            change = scaled * load_f64(products, column)
            store_f64(matrix, cell, load_f64(matrix, cell) - change)


@CompiledFunction
def update_linear(agent: int, step: int) -> None:
    """Update A ← A + x xᵀ and θ of the chosen arm by recursive least squares."""
    for i in range(LANES):
        _update_lane(agent, i)
