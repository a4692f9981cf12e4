"""Agents that choose the arm with the best score: ε-greedy, optimistic, UCB, UCB1, MOSS.

State, (ROWS, LANES) each: float64 pairs of an arm's sum of rewards and its count, side by side so
that both are in one cache line; float32 estimates Q; float32 second terms of the scores. A sample
average is the sum divided by the count, rounded once, so that arms with equal averages tie.
"""

from __future__ import annotations

import math

import numpy as np

from hotloop.bandits.kernels import layout
from hotloop.bandits.kernels.arm_selection import (
    exploration_limit,
    explore,
    take_best,
    take_best_bound,
)
from hotloop.bandits.kernels.layout import LANES
from hotloop.bandits.kernels.randomness import f32, f64, i64
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

# Parameters: the step size, 0 for sample averages; Q at the start; then those of single agents.
STEP_SIZE, INITIAL_VALUE, EXTRA = (layout.PARAMETERS + word for word in range(3))
EPSILON, EPSILON_DECAY = EXTRA, EXTRA + 1
EXPLORATION, COUNTS_PULLS = EXTRA, EXTRA + 1
# Address of a table by N, float32: UCB's 1/√N, MOSS' √(max(ln(T / (k N)), 0) / N).
TABLE = EXTRA + 2
UNTRIED = np.float32(3e38)
MIN_RADIUS = 1e-8  # with it an untried arm has the score 3e30, more than any reward
NO_ARM = np.float32(-np.inf)
STATE_BYTES = 24  # for each row and lane


@inline
def _addresses(agent):  # type: ignore[no-untyped-def]
    """Return the frame, pairs of sums and counts, estimates, and second terms of scores."""
    frame, pairs = load_i64(agent, layout.FRAME), load_i64(agent, layout.STATE)
    cells = load_i64(frame, layout.ROWS) * LANES
    return frame, pairs, pairs + 16 * cells, pairs + 20 * cells


@inline
def _count(pairs, cell):  # type: ignore[no-untyped-def]
    return load_f64(pairs, 2 * cell + 1)


@inline
def _add_reward(frame, pairs, estimates, i):  # type: ignore[no-untyped-def]
    """Add a lane's reward to its arm's average; return the cell, the estimate and the count."""
    cell = i64(load_i32(frame + layout.ARM, i)) * LANES + i
    total = load_f64(pairs, 2 * cell) + f64(load_f32(frame + layout.REWARD, i))
    count = _count(pairs, cell) + 1.0
    estimate = f32(total / count)
    store_f64(pairs, 2 * cell, total)
    store_f64(pairs, 2 * cell + 1, count)
    store_f32(estimates, cell, estimate)
    return cell, estimate, count


@jit
def _reset(agent: int, value: float, score: float) -> None:
    frame, pairs, estimates, scores = _addresses(agent)
    arms = load_i64(frame, layout.NUM_ARMS) * LANES
    for cell in range(load_i64(frame, layout.ROWS) * LANES):
        is_arm = cell < arms
        store_f64(pairs, 2 * cell, 0.0)
        store_f64(pairs, 2 * cell + 1, 0.0)
        store_f32(estimates, cell, f32(value) if is_arm else NO_ARM)
        store_f32(scores, cell, f32(score) if is_arm else NO_ARM)


@jit
def _average(agent: int) -> None:
    frame, pairs, estimates, _ = _addresses(agent)
    for i in range(LANES):
        _add_reward(frame, pairs, estimates, i)


@jit
def _average_with_table(agent: int, table: int, is_index: bool) -> None:
    """Update averages, and store a score's second term, or the whole score, from a table."""
    frame, pairs, estimates, scores = _addresses(agent)
    for i in range(LANES):
        cell, estimate, count = _add_reward(frame, pairs, estimates, i)
        term = load_f32(table, i64(count))
        store_f32(scores, cell, estimate + term if is_index else term)


@jit
def _update_with_step_size(agent: int, step_size: float) -> None:
    frame, pairs, estimates, _ = _addresses(agent)
    rate = f32(step_size)
    for i in range(LANES):
        cell = i64(load_i32(frame + layout.ARM, i)) * LANES + i
        estimate = load_f32(estimates, cell)
        store_f64(pairs, 2 * cell + 1, _count(pairs, cell) + 1.0)
        store_f32(
            estimates, cell, estimate + rate * (load_f32(frame + layout.REWARD, i) - estimate)
        )


@jit
def _update_estimates(agent: int) -> None:
    step_size = load_f64(agent, STEP_SIZE)
    if step_size == 0.0:
        _average(agent)
    else:
        _update_with_step_size(agent, step_size)


@CompiledFunction
def start_greedy(agent: int, step: int) -> None:
    """Set estimates to their initial value."""
    _reset(agent, load_f64(agent, INITIAL_VALUE), 0.0)


@CompiledFunction
def choose_greedy(agent: int, step: int) -> None:
    """Choose the best estimate, or with probability ε / (1 + decay · step) any arm."""
    frame, _, estimates, _ = _addresses(agent)
    decay = 1.0 + load_f64(agent, EPSILON_DECAY) * f64(step)
    limit = exploration_limit(load_f64(agent, EPSILON) / decay)
    take_best(frame, estimates, step, limit)
    explore(frame, limit)


@CompiledFunction
def update_greedy(agent: int, step: int) -> None:
    """Update the chosen arm's estimate."""
    _update_estimates(agent)


@CompiledFunction
def start_ucb(agent: int, step: int) -> None:
    """Set 1/√N so large that untried arms come first for every exploration factor."""
    _reset(agent, load_f64(agent, INITIAL_VALUE), f64(UNTRIED))


@CompiledFunction
def choose_ucb(agent: int, step: int) -> None:
    """Choose the largest Q + c √(ln t / N), where t is the current step or the pulls so far."""
    frame, _, estimates, roots = _addresses(agent)
    t = f64(step) if load_i64(agent, COUNTS_PULLS) != 0 else f64(step + 1)
    radius = load_f64(agent, EXPLORATION) * math.sqrt(math.log(max(t, 1.0)))
    scores = roots + 4 * load_i64(frame, layout.ROWS) * LANES
    take_best_bound(frame, estimates, roots, max(radius, MIN_RADIUS), scores, step)


@CompiledFunction
def update_ucb(agent: int, step: int) -> None:
    """Update the chosen arm's estimate and its 1/√N."""
    step_size, table = load_f64(agent, STEP_SIZE), load_i64(agent, TABLE)
    if step_size == 0.0:
        _average_with_table(agent, table, False)
        return
    _update_with_step_size(agent, step_size)
    frame, pairs, _, roots = _addresses(agent)
    for i in range(LANES):
        cell = i64(load_i32(frame + layout.ARM, i)) * LANES + i
        store_f32(roots, cell, load_f32(table, i64(_count(pairs, cell))))


@CompiledFunction
def start_moss(agent: int, step: int) -> None:
    """Mark all arms as untried."""
    _reset(agent, 0.0, f64(UNTRIED))


@CompiledFunction
def choose_moss(agent: int, step: int) -> None:
    """Choose the largest index, which `update_moss` stores."""
    frame, _, _, scores = _addresses(agent)
    take_best(frame, scores, step, 0)


@CompiledFunction
def update_moss(agent: int, step: int) -> None:
    """Update the chosen arm's index."""
    _average_with_table(agent, load_i64(agent, TABLE), True)
