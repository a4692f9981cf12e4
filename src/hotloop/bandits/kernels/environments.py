"""Environments: true values, the best of them, noise, rewards.

An environment prepares WINDOW steps at once: values float32 (k, LANES), for all steps the same or
one after another; the best value float32 (LANES,); noise float32 (WINDOW, LANES).
"""

from __future__ import annotations

from hotloop.bandits.kernels.layout import (
    ARM,
    BEST_ARM_AT,
    BEST_AT,
    CONTEXT_AT,
    DIMENSION,
    FRAME,
    LANES,
    NOISE,
    NOISE_AT,
    NUM_ARMS,
    NUM_STEPS,
    PARAMETERS,
    REWARD,
    STATE,
    VALUE,
    VALUES,
    VALUES_AT,
    WINDOW,
    WORK,
)
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
    max_f32,
    store_f32,
    store_i32,
)

NOISE_SCALE, MEAN, SPREAD, OWN = PARAMETERS, PARAMETERS + 1, PARAMETERS + 2, PARAMETERS + 3
GIVEN = OWN  # address of true values, float32 (k,), that all runs share; 0: drawn
EVERY = OWN  # abrupt change: steps from one to the next
MATRIX, MATRIX_BEST = OWN, OWN + 1  # adversarial: float32 (T, k); the best arm in hindsight


@jit
def _fill_noise(environment: int, step: int) -> None:
    frame, noise = load_i64(environment, FRAME), load_i64(environment, NOISE_AT)
    scale = load_f64(environment, NOISE_SCALE)
    for group in range(WINDOW // 4):
        fill_words(frame, frame + WORK, (step >> 2) + group, REWARD_STREAM, 0)
        fill_normals(noise + group * 16 * LANES, frame + WORK, scale, 0.0)


@jit
def _fill_values(environment: int, values: int, epoch: int) -> None:
    frame = load_i64(environment, FRAME)
    mean, spread = load_f64(environment, MEAN), load_f64(environment, SPREAD)
    for group in range((load_i64(frame, NUM_ARMS) + 3) // 4):
        fill_words(frame, frame + WORK, epoch, MEANS_STREAM, group)
        fill_normals(values + group * 16 * LANES, frame + WORK, spread, mean)


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
def _share_values(environment: int) -> None:
    frame, values = load_i64(environment, FRAME), load_i64(environment, VALUES_AT)
    given = load_i64(environment, GIVEN)
    for arm in range(load_i64(frame, NUM_ARMS)):
        value = load_f32(given, arm)
        for i in range(LANES):
            store_f32(values, arm * LANES + i, value)


@Part
def start_stationary(environment: int, step: int) -> None:
    """True values, drawn or given, and the best of them."""
    if load_i64(environment, GIVEN) == 0:
        _fill_values(environment, load_i64(environment, VALUES_AT), 0)
    else:
        _share_values(environment)
    values, best = load_i64(environment, VALUES_AT), load_i64(environment, BEST_AT)
    _find_best(values, best, load_i64(load_i64(environment, FRAME), NUM_ARMS))


@Part
def advance_gaussian(environment: int, step: int) -> None:
    """Normal noise."""
    _fill_noise(environment, step)


@Part
def advance_bernoulli(environment: int, step: int) -> None:
    """Uniform numbers, which `give_bernoulli` compares with probabilities."""
    frame, noise = load_i64(environment, FRAME), load_i64(environment, NOISE_AT)
    for group in range(WINDOW // 4):
        fill_words(frame, frame + WORK, (step >> 2) + group, REWARD_STREAM, 0)
        for i in range(4 * LANES):
            store_f32(noise, group * 4 * LANES + i, unit(load_u32(frame + WORK, i)))


@jit
def _walk_pair(values: int, words: int, number: int, num_arms: int, walk: float) -> None:
    """Two normals a lane, number `number` and the next of the window, added to the step before."""
    factor = f32(walk)
    end = WINDOW * num_arms
    one, other = values + number * 4 * LANES, values + (number + 1) * 4 * LANES
    before = number - num_arms if number >= num_arms else number - num_arms + end
    source = values + before * 4 * LANES
    # Rows are in the order of steps and arms; what is before the first is the last window's last.
    before = before + 1 if before + 1 < end else 0
    source_other = values + before * 4 * LANES
    for i in range(LANES):
        p, q = normal_pair(load_u32(words, i), load_u32(words, LANES + i))
        store_f32(one, i, load_f32(source, i) + factor * p)
        store_f32(other, i, load_f32(source_other, i) + factor * q)


@Part
def advance_walk(environment: int, step: int) -> None:
    """The true values of each step are those before it, and every arm's own move.

    Moves are numbered through, step · k + arm, and four share a counter.
    """
    frame, values = load_i64(environment, FRAME), load_i64(environment, VALUES_AT)
    best, num_arms = load_i64(environment, BEST_AT), load_i64(frame, NUM_ARMS)
    walk = load_f64(environment, SPREAD)
    start = f32(load_f64(environment, MEAN))
    for number in range(0, WINDOW * num_arms, 2):
        if number % 4 == 0:
            group = (step * num_arms + number) // 4
            fill_words(frame, frame + WORK, group, WALK_STREAM, group >> 32)
        words = frame + WORK + number % 4 * 4 * LANES
        _walk_pair(values, words, number, num_arms, walk)
        if step == 0 and number < num_arms:  # before the first step nothing moves
            for i in range(min(num_arms - number, 2) * LANES):
                store_f32(values, number * LANES + i, start)
    for ahead in range(WINDOW):
        first = values + ahead * num_arms * 4 * LANES
        _find_best(first, best + ahead * 4 * LANES, num_arms)
    _fill_noise(environment, step)


@Part
def advance_abrupt(environment: int, step: int) -> None:
    """The true values of each step are those before it, or new ones."""
    frame, values = load_i64(environment, FRAME), load_i64(environment, VALUES_AT)
    best, every = load_i64(environment, BEST_AT), load_i64(environment, EVERY)
    num_arms = load_i64(frame, NUM_ARMS)
    stride = (num_arms + 3) // 4 * 16 * LANES
    for ahead in range(WINDOW):
        target = values + ahead * stride
        source = values + (ahead - 1) * stride if ahead > 0 else values + (WINDOW - 1) * stride
        if (step + ahead) % every == 0:
            _fill_values(environment, target, (step + ahead) // every)
        else:
            for i in range(num_arms * LANES):
                store_f32(target, i, load_f32(source, i))
        _find_best(target, best + ahead * 4 * LANES, num_arms)
    _fill_noise(environment, step)


@Part
def start_adversarial(environment: int, step: int) -> None:
    """The best arm in hindsight, for all lanes."""
    arms, best = load_i64(environment, BEST_ARM_AT), load_i64(environment, MATRIX_BEST)
    noise = load_i64(environment, NOISE_AT)
    for i in range(LANES):
        store_i32(arms, i, i32(best))
    for i in range(WINDOW * LANES):
        store_f32(noise, i, f32(0.0))


@Part
def advance_adversarial(environment: int, step: int) -> None:
    """Rows of the matrix, the same in all lanes."""
    frame, values = load_i64(environment, FRAME), load_i64(environment, VALUES_AT)
    best, matrix = load_i64(environment, BEST_AT), load_i64(environment, MATRIX)
    favourite, num_arms = load_i64(environment, MATRIX_BEST), load_i64(frame, NUM_ARMS)
    ahead = min(WINDOW, load_i64(frame, NUM_STEPS) - step)
    for one in range(ahead):
        row = (step + one) * num_arms
        for arm in range(num_arms):
            value = load_f32(matrix, row + arm)
            for i in range(LANES):
                store_f32(values, (one * num_arms + arm) * LANES + i, value)
        for i in range(LANES):
            store_f32(best, one * LANES + i, load_f32(matrix, row + favourite))


@Part
def start_contextual(environment: int, step: int) -> None:
    """θ of every arm: float32, (k, d rounded up to fours, LANES)."""
    frame, theta = load_i64(environment, FRAME), load_i64(environment, STATE)
    groups = (load_i64(frame, DIMENSION) + 3) // 4
    for arm in range(load_i64(frame, NUM_ARMS)):
        for group in range(groups):
            fill_words(frame, frame + WORK, group, THETA_STREAM, arm)
            target = theta + (arm * groups + group) * 16 * LANES
            fill_normals(target, frame + WORK, load_f64(environment, SPREAD), 0.0)


@Part
def advance_contextual(environment: int, step: int) -> None:
    """Contexts, and each arm's x·θ."""
    frame, theta = load_i64(environment, FRAME), load_i64(environment, STATE)
    values, best = load_i64(environment, VALUES_AT), load_i64(environment, BEST_AT)
    contexts = load_i64(environment, CONTEXT_AT)
    num_arms, dimension = load_i64(frame, NUM_ARMS), load_i64(frame, DIMENSION)
    groups = (dimension + 3) // 4
    for ahead in range(WINDOW):
        context = contexts + ahead * groups * 16 * LANES
        for group in range(groups):
            fill_words(frame, frame + WORK, step + ahead, CONTEXT_STREAM, group)
            fill_normals(context + group * 16 * LANES, frame + WORK, 1.0, 0.0)
        for arm in range(num_arms):
            row = values + (ahead * num_arms + arm) * 4 * LANES
            for i in range(LANES):
                store_f32(row, i, f32(0.0))
            for j in range(dimension):
                weights = theta + (arm * groups * 4 + j) * 4 * LANES
                for i in range(LANES):
                    x = load_f32(context, j * LANES + i)
                    store_f32(row, i, fma_f32(x, load_f32(weights, i), load_f32(row, i)))
        first = values + ahead * num_arms * 4 * LANES
        _find_best(first, best + ahead * 4 * LANES, num_arms)
    _fill_noise(environment, step)


@inline
def _look_up(frame):  # type: ignore[no-untyped-def]
    values = load_i64(frame, VALUES)
    for i in range(LANES):
        arm = i64(load_i32(frame + ARM, i))
        store_f32(frame + VALUE, i, load_f32(values, arm * LANES + i))


@Part
def give_noisy(environment: int, step: int) -> None:
    """The taken arm's value and the step's noise."""
    frame = load_i64(environment, FRAME)
    _look_up(frame)
    noise = load_i64(frame, NOISE)
    for i in range(LANES):
        store_f32(frame + REWARD, i, load_f32(frame + VALUE, i) + load_f32(noise, i))


@Part
def give_bernoulli(environment: int, step: int) -> None:
    """1 with the taken arm's probability."""
    frame = load_i64(environment, FRAME)
    _look_up(frame)
    noise = load_i64(frame, NOISE)
    for i in range(LANES):
        won = load_f32(noise, i) < load_f32(frame + VALUE, i)
        store_f32(frame + REWARD, i, f32(1.0) if won else f32(0.0))


@Part
def start_nothing(environment: int, step: int) -> None:
    """Everything is made as the steps come."""
