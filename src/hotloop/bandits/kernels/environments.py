"""Environments: true values, the best of them, noise, rewards.

An environment prepares WINDOW steps at once: values float32 (k, LANES), either one array for all
steps or one per step; the best value float32 (LANES,); noise float32 (WINDOW, LANES).
"""

from __future__ import annotations

from hotloop.bandits.kernels import layout
from hotloop.bandits.kernels.layout import LANES, WINDOW
from hotloop.bandits.kernels.randomness import (
    CONTEXT_STREAM,
    MEANS_STREAM,
    REWARD_STREAM,
    THETA_STREAM,
    WALK_STREAM,
    f32,
    fill_normals,
    fill_words,
    i32,
    i64,
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
    max_f32,
    store_f32,
    store_i32,
)

NOISE_SCALE, MEAN, SPREAD, EXTRA = (layout.PARAMETERS + word for word in range(4))
SHARED_VALUES = EXTRA  # address of true values, float32 (k,), shared by all runs; 0: drawn per run
CHANGE_INTERVAL = EXTRA  # abrupt change: number of steps between changes
MATRIX, MATRIX_BEST = EXTRA, EXTRA + 1  # adversarial: float32 (T, k); the best arm in hindsight


@jit
def _fill_noise(environment: int, step: int) -> None:
    frame, noise = load_i64(environment, layout.FRAME), load_i64(environment, layout.NOISE_AT)
    scale = load_f64(environment, NOISE_SCALE)
    for group in range(WINDOW // 4):
        fill_words(frame, frame + layout.WORK, (step >> 2) + group, REWARD_STREAM, 0)
        fill_normals(noise + group * 16 * LANES, frame + layout.WORK, scale, 0.0)


@jit
def _fill_values(environment: int, values: int, epoch: int) -> None:
    frame = load_i64(environment, layout.FRAME)
    mean, spread = load_f64(environment, MEAN), load_f64(environment, SPREAD)
    for group in range((load_i64(frame, layout.NUM_ARMS) + 3) // 4):
        fill_words(frame, frame + layout.WORK, epoch, MEANS_STREAM, group)
        fill_normals(values + group * 16 * LANES, frame + layout.WORK, spread, mean)


@jit
def _find_best(values: int, best: int, num_arms: int) -> None:
    for i in range(LANES):
        store_f32(best, i, load_f32(values, i))
    arm = 1
    while arm + 3 <= num_arms:
        row = values + arm * 4 * LANES
        for i in range(LANES):
            top = max_f32(load_f32(row, i), load_f32(row, LANES + i))
            top = max_f32(top, load_f32(row, 2 * LANES + i))
            store_f32(best, i, max_f32(load_f32(best, i), top))
        arm += 3
    while arm < num_arms:
        row = values + arm * 4 * LANES
        for i in range(LANES):
            store_f32(best, i, max_f32(load_f32(best, i), load_f32(row, i)))
        arm += 1


@jit
def _copy_shared_values(environment: int) -> None:
    frame, values = load_i64(environment, layout.FRAME), load_i64(environment, layout.VALUES_AT)
    shared = load_i64(environment, SHARED_VALUES)
    for arm in range(load_i64(frame, layout.NUM_ARMS)):
        value = load_f32(shared, arm)
        for i in range(LANES):
            store_f32(values, arm * LANES + i, value)


@CompiledFunction
def start_stationary(environment: int, step: int) -> None:
    """Prepare the true values, drawn or shared, and the best of them."""
    if load_i64(environment, SHARED_VALUES) == 0:
        _fill_values(environment, load_i64(environment, layout.VALUES_AT), 0)
    else:
        _copy_shared_values(environment)
    values, best = load_i64(environment, layout.VALUES_AT), load_i64(environment, layout.BEST_AT)
    _find_best(values, best, load_i64(load_i64(environment, layout.FRAME), layout.NUM_ARMS))


@CompiledFunction
def advance_gaussian(environment: int, step: int) -> None:
    """Prepare normal noise."""
    _fill_noise(environment, step)


@CompiledFunction
def advance_bernoulli(environment: int, step: int) -> None:
    """Prepare uniform numbers, which `give_bernoulli_reward` compares with probabilities."""
    frame, noise = load_i64(environment, layout.FRAME), load_i64(environment, layout.NOISE_AT)
    for group in range(WINDOW // 4):
        fill_words(frame, frame + layout.WORK, (step >> 2) + group, REWARD_STREAM, 0)
        for i in range(4 * LANES):
            store_f32(noise, group * 4 * LANES + i, unit(load_u32(frame + layout.WORK, i)))


@jit
def _walk_pair(values: int, words: int, number: int, num_arms: int, walk: float) -> None:
    """Store values `number` and `number + 1` of the window: the previous step's plus noise."""
    factor = f32(walk)
    end = WINDOW * num_arms
    target, next_target = values + number * 4 * LANES, values + (number + 1) * 4 * LANES
    previous = number - num_arms if number >= num_arms else number - num_arms + end
    source = values + previous * 4 * LANES
    # Rows are in the order of steps and arms. The row before the first is the last window's last.
    previous = previous + 1 if previous + 1 < end else 0
    next_source = values + previous * 4 * LANES
    for i in range(LANES):
        p, q = normal_pair(load_u32(words, i), load_u32(words, LANES + i))
        store_f32(target, i, load_f32(source, i) + factor * p)
        store_f32(next_target, i, load_f32(next_source, i) + factor * q)


@CompiledFunction
def advance_walk(environment: int, step: int) -> None:
    """Prepare values that each step changes by a normal number per arm.

    These numbers are indexed by step · k + arm, and four share a counter.
    """
    frame, values = load_i64(environment, layout.FRAME), load_i64(environment, layout.VALUES_AT)
    best, num_arms = load_i64(environment, layout.BEST_AT), load_i64(frame, layout.NUM_ARMS)
    walk = load_f64(environment, SPREAD)
    start = f32(load_f64(environment, MEAN))
    for number in range(0, WINDOW * num_arms, 2):
        if number % 4 == 0:
            group = (step * num_arms + number) // 4
            fill_words(frame, frame + layout.WORK, group, WALK_STREAM, group >> 32)
        words = frame + layout.WORK + number % 4 * 4 * LANES
        _walk_pair(values, words, number, num_arms, walk)
        if step == 0 and number < num_arms:  # values start to move after the first step
            for i in range(min(num_arms - number, 2) * LANES):
                store_f32(values, number * LANES + i, start)
    for offset in range(WINDOW):
        first = values + offset * num_arms * 4 * LANES
        _find_best(first, best + offset * 4 * LANES, num_arms)
    _fill_noise(environment, step)


@CompiledFunction
def advance_abrupt(environment: int, step: int) -> None:
    """Prepare values that are drawn again every `CHANGE_INTERVAL` steps."""
    frame, values = load_i64(environment, layout.FRAME), load_i64(environment, layout.VALUES_AT)
    best, interval = load_i64(environment, layout.BEST_AT), load_i64(environment, CHANGE_INTERVAL)
    num_arms = load_i64(frame, layout.NUM_ARMS)
    stride = (num_arms + 3) // 4 * 16 * LANES
    for offset in range(WINDOW):
        target = values + offset * stride
        source = values + (offset - 1) * stride if offset > 0 else values + (WINDOW - 1) * stride
        if (step + offset) % interval == 0:
            _fill_values(environment, target, (step + offset) // interval)
        else:
            for i in range(num_arms * LANES):
                store_f32(target, i, load_f32(source, i))
        _find_best(target, best + offset * 4 * LANES, num_arms)
    _fill_noise(environment, step)


@CompiledFunction
def start_adversarial(environment: int, step: int) -> None:
    """Store the best arm in hindsight for all lanes."""
    arms, best = load_i64(environment, layout.BEST_ARM_AT), load_i64(environment, MATRIX_BEST)
    noise = load_i64(environment, layout.NOISE_AT)
    for i in range(LANES):
        store_i32(arms, i, i32(best))
    for i in range(WINDOW * LANES):
        store_f32(noise, i, f32(0.0))


@CompiledFunction
def advance_adversarial(environment: int, step: int) -> None:
    """Copy rows of the matrix to all lanes."""
    frame, values = load_i64(environment, layout.FRAME), load_i64(environment, layout.VALUES_AT)
    best, matrix = load_i64(environment, layout.BEST_AT), load_i64(environment, MATRIX)
    best_arm, num_arms = load_i64(environment, MATRIX_BEST), load_i64(frame, layout.NUM_ARMS)
    num_rows = min(WINDOW, load_i64(frame, layout.NUM_STEPS) - step)
    for offset in range(num_rows):
        row = (step + offset) * num_arms
        for arm in range(num_arms):
            value = load_f32(matrix, row + arm)
            for i in range(LANES):
                store_f32(values, (offset * num_arms + arm) * LANES + i, value)
        for i in range(LANES):
            store_f32(best, offset * LANES + i, load_f32(matrix, row + best_arm))


@CompiledFunction
def start_contextual(environment: int, step: int) -> None:
    """Draw θ of every arm: float32, (k, d rounded up to a multiple of 4, LANES)."""
    frame, theta = load_i64(environment, layout.FRAME), load_i64(environment, layout.STATE)
    groups = (load_i64(frame, layout.DIMENSION) + 3) // 4
    for arm in range(load_i64(frame, layout.NUM_ARMS)):
        for group in range(groups):
            fill_words(frame, frame + layout.WORK, group, THETA_STREAM, arm)
            target = theta + (arm * groups + group) * 16 * LANES
            fill_normals(target, frame + layout.WORK, load_f64(environment, SPREAD), 0.0)


@CompiledFunction
def advance_contextual(environment: int, step: int) -> None:
    """Prepare contexts and each arm's value x·θ."""
    frame, theta = load_i64(environment, layout.FRAME), load_i64(environment, layout.STATE)
    values, best = load_i64(environment, layout.VALUES_AT), load_i64(environment, layout.BEST_AT)
    contexts = load_i64(environment, layout.CONTEXT_AT)
    num_arms, dimension = load_i64(frame, layout.NUM_ARMS), load_i64(frame, layout.DIMENSION)
    groups = (dimension + 3) // 4
    for offset in range(WINDOW):
        context = contexts + offset * groups * 16 * LANES
        for group in range(groups):
            fill_words(frame, frame + layout.WORK, step + offset, CONTEXT_STREAM, group)
            fill_normals(context + group * 16 * LANES, frame + layout.WORK, 1.0, 0.0)
        for arm in range(num_arms):
            row = values + (offset * num_arms + arm) * 4 * LANES
            for i in range(LANES):
                store_f32(row, i, f32(0.0))
            for j in range(dimension):
                weights = theta + (arm * groups * 4 + j) * 4 * LANES
                for i in range(LANES):
                    x = load_f32(context, j * LANES + i)
                    store_f32(row, i, fma_f32(x, load_f32(weights, i), load_f32(row, i)))
        first = values + offset * num_arms * 4 * LANES
        _find_best(first, best + offset * 4 * LANES, num_arms)
    _fill_noise(environment, step)


@inline
def _store_arm_values(frame):  # type: ignore[no-untyped-def]
    values = load_i64(frame, layout.VALUES)
    for i in range(LANES):
        arm = i64(load_i32(frame + layout.ARM, i))
        store_f32(frame + layout.VALUE, i, load_f32(values, arm * LANES + i))


@CompiledFunction
def give_noisy_reward(environment: int, step: int) -> None:
    """Store the chosen arm's value plus the step's noise as the reward."""
    frame = load_i64(environment, layout.FRAME)
    _store_arm_values(frame)
    noise = load_i64(frame, layout.NOISE)
    for i in range(LANES):
        store_f32(frame + layout.REWARD, i, load_f32(frame + layout.VALUE, i) + load_f32(noise, i))


@CompiledFunction
def give_bernoulli_reward(environment: int, step: int) -> None:
    """Store reward 1 with the chosen arm's probability, else 0."""
    frame = load_i64(environment, layout.FRAME)
    _store_arm_values(frame)
    noise = load_i64(frame, layout.NOISE)
    for i in range(LANES):
        is_success = load_f32(noise, i) < load_f32(frame + layout.VALUE, i)
        store_f32(frame + layout.REWARD, i, f32(1.0) if is_success else f32(0.0))


@CompiledFunction
def start_nothing(environment: int, step: int) -> None:
    """Prepare nothing: `advance` computes everything."""
