"""Agents that take the arm with the best score: ε-greedy, optimistic, UCB, UCB1, MOSS.

State, (ROWS, LANES) each: float64 sums of rewards; float32 counts; float32 estimates Q; float32
scores' second part. A sample average is the sum over the count, rounded once, so that arms whose
averages are equal tie.
"""

from __future__ import annotations

import math

import numpy as np

from hotloop.bandits.kernels.choosing import explore, take_best
from hotloop.bandits.kernels.layout import (
    ARM,
    FRAME,
    LANES,
    NUM_ARMS,
    PARAMETERS,
    REWARD,
    ROWS,
    STATE,
)
from hotloop.bandits.kernels.randomness import f32, f64, i64
from hotloop.compiled import (
    Part,
    inline,
    jit,
    load_f32,
    load_f64,
    load_i32,
    load_i64,
    sqrt_f32,
    store_f32,
    store_f64,
)

# Parameters: the step size, 0 for sample averages; Q at the start; then the agent's own.
STEP_SIZE, INITIAL_VALUE, OWN = PARAMETERS, PARAMETERS + 1, PARAMETERS + 2
EPSILON, EPSILON_DECAY = OWN, OWN + 1
EXPLORATION, COUNTS_PULLS = OWN, OWN + 1
RADII = OWN  # MOSS: the address of √(max(ln(T / (k N)), 0) / N), float32, by N
UNTRIED = np.float32(3e38)
NO_ARM = np.float32(-np.inf)
STATE_BYTES = 20  # for each arm and lane; a second score comes last
SCORES = 16


@inline
def _places(agent):  # type: ignore[no-untyped-def]
    frame, state = load_i64(agent, FRAME), load_i64(agent, STATE)
    cells = load_i64(frame, ROWS) * LANES
    return frame, state, state + 8 * cells, state + 12 * cells, state + SCORES * cells


@jit
def _reset(agent: int, value: float, score: float) -> None:
    frame, sums, counts, estimates, scores = _places(agent)
    arms = load_i64(frame, NUM_ARMS) * LANES
    for cell in range(load_i64(frame, ROWS) * LANES):
        is_arm = cell < arms
        store_f64(sums, cell, 0.0)
        store_f32(counts, cell, f32(0.0))
        store_f32(estimates, cell, f32(value) if is_arm else NO_ARM)
        store_f32(scores, cell, f32(score) if is_arm else NO_ARM)


@jit
def _average(agent: int) -> None:
    frame, sums, counts, estimates, _ = _places(agent)
    for i in range(LANES):
        cell = i64(load_i32(frame + ARM, i)) * LANES + i
        total = load_f64(sums, cell) + f64(load_f32(frame + REWARD, i))
        count = load_f32(counts, cell) + f32(1.0)
        store_f64(sums, cell, total)
        store_f32(counts, cell, count)
        store_f32(estimates, cell, f32(total / f64(count)))


@jit
def _follow(agent: int, step_size: float) -> None:
    frame, _, counts, estimates, _ = _places(agent)
    rate = f32(step_size)
    for i in range(LANES):
        cell = i64(load_i32(frame + ARM, i)) * LANES + i
        estimate = load_f32(estimates, cell)
        store_f32(counts, cell, load_f32(counts, cell) + f32(1.0))
        store_f32(estimates, cell, estimate + rate * (load_f32(frame + REWARD, i) - estimate))


@jit
def _learn(agent: int) -> None:
    step_size = load_f64(agent, STEP_SIZE)
    if step_size == 0.0:
        _average(agent)
    else:
        _follow(agent, step_size)


@Part
def start_greedy(agent: int, step: int) -> None:
    """Estimates at their initial value."""
    _reset(agent, load_f64(agent, INITIAL_VALUE), 0.0)


@Part
def choose_greedy(agent: int, step: int) -> None:
    """The best estimate; with probability ε / (1 + decay · step) any arm."""
    frame, _, _, estimates, _ = _places(agent)
    take_best(frame, estimates, step)
    epsilon = load_f64(agent, EPSILON)
    if epsilon > 0.0:
        explore(frame, epsilon / (1.0 + load_f64(agent, EPSILON_DECAY) * f64(step)))


@Part
def update_greedy(agent: int, step: int) -> None:
    """The taken arm's estimate."""
    _learn(agent)


@Part
def start_ucb(agent: int, step: int) -> None:
    """1/√N begins so large that untried arms come first, whatever it is multiplied by."""
    _reset(agent, load_f64(agent, INITIAL_VALUE), f64(UNTRIED))


@jit
def _bounds(frame: int, estimates: int, roots: int, radius: float, scores: int) -> None:
    factor = f32(max(radius, 1e-30))
    for cell in range(load_i64(frame, ROWS) * LANES):
        bound = load_f32(estimates, cell) + factor * load_f32(roots, cell)
        store_f32(scores, cell, bound)


@Part
def choose_ucb(agent: int, step: int) -> None:
    """The largest Q + c √(ln t / N); t the current step, or the pulls so far."""
    frame, _, _, estimates, roots = _places(agent)
    t = f64(step) if load_i64(agent, COUNTS_PULLS) != 0 else f64(step + 1)
    radius = load_f64(agent, EXPLORATION) * math.sqrt(math.log(max(t, 1.0)))
    scores = roots + 4 * load_i64(frame, ROWS) * LANES
    _bounds(frame, estimates, roots, radius, scores)
    take_best(frame, scores, step)


@Part
def update_ucb(agent: int, step: int) -> None:
    """The taken arm's estimate, and its 1/√N."""
    _learn(agent)
    frame, _, counts, _, roots = _places(agent)
    for i in range(LANES):
        cell = i64(load_i32(frame + ARM, i)) * LANES + i
        store_f32(roots, cell, f32(1.0) / sqrt_f32(load_f32(counts, cell)))


@Part
def start_moss(agent: int, step: int) -> None:
    """All arms untried."""
    _reset(agent, 0.0, f64(UNTRIED))


@Part
def choose_moss(agent: int, step: int) -> None:
    """The largest index; only a taken arm's changes."""
    frame, _, _, _, scores = _places(agent)
    take_best(frame, scores, step)


@Part
def update_moss(agent: int, step: int) -> None:
    """The taken arm's index."""
    _average(agent)
    frame, _, counts, estimates, scores = _places(agent)
    radii = load_i64(agent, RADII)
    for i in range(LANES):
        cell = i64(load_i32(frame + ARM, i)) * LANES + i
        radius = load_f32(radii, i64(load_f32(counts, cell)))
        store_f32(scores, cell, load_f32(estimates, cell) + radius)
