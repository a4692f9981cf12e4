"""The game loop: the environment prepares some steps, then every agent plays them.

Compared agents share a block's random numbers and true values, computed once for all of them.
"""

from __future__ import annotations

from hotloop.bandits.kernels import layout
from hotloop.bandits.kernels.layout import LANES, WINDOW
from hotloop.bandits.kernels.randomness import POLICY_STREAM, fill_words
from hotloop.bandits.kernels.recording import record_step, reset_record
from hotloop.base.numba_tools import call_function, entry, inline, jit, load_i64, store_i64


@jit
def _prepare(frame: int, step: int) -> None:
    environment = load_i64(frame, layout.ENVIRONMENT)
    call_function(load_i64(environment, layout.ADVANCE), environment, step)
    if load_i64(frame, layout.NEEDS_POLICY_WORDS) != 0:
        for group in range(WINDOW // 4):
            target = frame + layout.POLICY_WORDS + group * 16 * LANES
            fill_words(frame, target, (step >> 2) + group, POLICY_STREAM, 0)


@inline
def _window_row(environment, array, stride, offset):  # type: ignore[no-untyped-def]
    return load_i64(environment, array) + offset * load_i64(environment, stride)


@jit
def _set_addresses(frame: int, offset: int) -> None:
    environment = load_i64(frame, layout.ENVIRONMENT)
    values = _window_row(environment, layout.VALUES_AT, layout.VALUES_STRIDE, offset)
    best = _window_row(environment, layout.BEST_AT, layout.BEST_STRIDE, offset)
    context = _window_row(environment, layout.CONTEXT_AT, layout.CONTEXT_STRIDE, offset)
    store_i64(frame, layout.VALUES, values)
    store_i64(frame, layout.BEST, best)
    store_i64(frame, layout.BEST_ARM, load_i64(environment, layout.BEST_ARM_AT))
    store_i64(frame, layout.NOISE, load_i64(environment, layout.NOISE_AT) + offset * 4 * LANES)
    store_i64(frame, layout.CONTEXT, context)
    has_words = load_i64(frame, layout.NEEDS_POLICY_WORDS) != 0
    words = frame + layout.POLICY_WORDS + offset * 4 * LANES
    store_i64(frame, layout.POLICY, words if has_words else 0)


@jit
def _start(frame: int) -> int:
    """Start the environment and the agents; return −1, or the index of the agent with a fault."""
    environment, agents = load_i64(frame, layout.ENVIRONMENT), load_i64(frame, layout.AGENTS)
    call_function(load_i64(environment, layout.START), environment, 0)
    for index in range(load_i64(frame, layout.NUM_AGENTS)):
        agent = load_i64(agents, index)
        reset_record(load_i64(agent, layout.RECORD))
        call_function(load_i64(agent, layout.START), agent, 0)
        if load_i64(frame, layout.FAULT) != 0:
            return index
    return -1


def _play(frame: int, first: int, last: int) -> int:
    environment, agents = load_i64(frame, layout.ENVIRONMENT), load_i64(frame, layout.AGENTS)
    give_reward = load_i64(environment, layout.GIVE_REWARD)
    if first == 0:
        faulty_agent = _start(frame)
        if faulty_agent >= 0:
            return faulty_agent
    for step in range(first, last, WINDOW):
        _prepare(frame, step)
        for index in range(load_i64(frame, layout.NUM_AGENTS)):
            agent = load_i64(agents, index)
            choose, update = load_i64(agent, layout.CHOOSE), load_i64(agent, layout.UPDATE)
            for offset in range(min(WINDOW, last - step)):
                current = step + offset
                _set_addresses(frame, offset)
                call_function(choose, agent, current)
                call_function(give_reward, environment, current)
                if load_i64(frame, layout.FAULT) != 0:
                    return index
                call_function(update, agent, current)
                record_step(agent, current)
            if load_i64(frame, layout.FAULT) != 0:  # the last update raised it
                return index
    return -1


# `play(frame, first, last)` plays the steps first … last − 1. `first` is a multiple of WINDOW.
# Returns −1, or the index of the agent with a fault.
play = entry(_play, releases_lock=True)


def _call(part: int, address: int, step: int) -> int:
    call_function(part, address, step)
    return 0


def _prepare_step(frame: int, step: int, offset: int) -> int:
    if offset == 0:
        _prepare(frame, step)
    _set_addresses(frame, offset)
    return 0


# The parts of the loop, for agents and environments in plain Python: see python_games.py.
call, prepare_step = entry(_call), entry(_prepare_step)
begin, record = entry(_start.py_func), entry(record_step.py_func)
