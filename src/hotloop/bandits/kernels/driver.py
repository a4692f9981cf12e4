"""The loop: the environment prepares some steps, then every agent plays them.

Agents that are compared share a block's random numbers and its true values, which are made once for
all of them.
"""

from __future__ import annotations

from hotloop.bandits.kernels.layout import (
    ADVANCE,
    AGENTS,
    BEST,
    BEST_ARM,
    BEST_ARM_AT,
    BEST_AT,
    BEST_STRIDE,
    CHOOSE,
    CONTEXT,
    CONTEXT_AT,
    CONTEXT_STRIDE,
    ENVIRONMENT,
    FAULT,
    GIVE_REWARD,
    LANES,
    NEEDS_POLICY,
    NOISE,
    NOISE_AT,
    NUM_AGENTS,
    POLICY,
    POLICY_WORDS,
    RECORD,
    START,
    UPDATE,
    VALUES,
    VALUES_AT,
    VALUES_STRIDE,
    WINDOW,
)
from hotloop.bandits.kernels.randomness import POLICY_STREAM, fill_words
from hotloop.bandits.kernels.recording import record_step, reset_record
from hotloop.numba_tools import call_part, entry, jit, load_i64, store_i64


@jit
def _prepare(frame: int, step: int) -> None:
    environment = load_i64(frame, ENVIRONMENT)
    call_part(load_i64(environment, ADVANCE), environment, step)
    if load_i64(frame, NEEDS_POLICY) != 0:
        for group in range(WINDOW // 4):
            target = frame + POLICY_WORDS + group * 16 * LANES
            fill_words(frame, target, (step >> 2) + group, POLICY_STREAM, 0)


@jit
def _point_at(frame: int, step: int, ahead: int) -> None:
    environment = load_i64(frame, ENVIRONMENT)
    values = load_i64(environment, VALUES_AT) + ahead * load_i64(environment, VALUES_STRIDE)
    store_i64(frame, VALUES, values)
    best = load_i64(environment, BEST_AT) + ahead * load_i64(environment, BEST_STRIDE)
    store_i64(frame, BEST, best)
    store_i64(frame, BEST_ARM, load_i64(environment, BEST_ARM_AT))
    store_i64(frame, NOISE, load_i64(environment, NOISE_AT) + ahead * 4 * LANES)
    context = load_i64(environment, CONTEXT_AT) + ahead * load_i64(environment, CONTEXT_STRIDE)
    store_i64(frame, CONTEXT, context)
    if load_i64(frame, NEEDS_POLICY) != 0:
        store_i64(frame, POLICY, frame + POLICY_WORDS + ahead * 4 * LANES)
    else:
        store_i64(frame, POLICY, 0)


@jit
def _start(frame: int) -> int:
    """−1, or the agent that met a fault."""
    environment, agents = load_i64(frame, ENVIRONMENT), load_i64(frame, AGENTS)
    call_part(load_i64(environment, START), environment, 0)
    for which in range(load_i64(frame, NUM_AGENTS)):
        agent = load_i64(agents, which)
        reset_record(load_i64(agent, RECORD))
        call_part(load_i64(agent, START), agent, 0)
        if load_i64(frame, FAULT) != 0:
            return which
    return -1


def _play(frame: int, first: int, last: int) -> int:
    environment, agents = load_i64(frame, ENVIRONMENT), load_i64(frame, AGENTS)
    give_reward = load_i64(environment, GIVE_REWARD)
    if first == 0:
        failed = _start(frame)
        if failed >= 0:
            return failed
    for step in range(first, last, WINDOW):
        _prepare(frame, step)
        for which in range(load_i64(frame, NUM_AGENTS)):
            agent = load_i64(agents, which)
            choose, update = load_i64(agent, CHOOSE), load_i64(agent, UPDATE)
            for ahead in range(min(WINDOW, last - step)):
                now = step + ahead
                _point_at(frame, now, ahead)
                call_part(choose, agent, now)
                call_part(give_reward, environment, now)
                if load_i64(frame, FAULT) != 0:
                    return which
                call_part(update, agent, now)
                record_step(agent, now)
            if load_i64(frame, FAULT) != 0:  # met by the last update
                return which
    return -1


# `play(frame, first, last)` plays the steps first … last − 1, first a multiple of WINDOW; it gives
# −1, or the number of the agent that met a fault.
play = entry(_play, releases_lock=True)


def _call(part: int, address: int, step: int) -> int:
    call_part(part, address, step)
    return 0


def _begin(frame: int) -> int:
    _start(frame)
    return 0


def _look_ahead(frame: int, step: int, ahead: int) -> int:
    if ahead == 0:
        _prepare(frame, step)
    _point_at(frame, step + ahead, ahead)
    return 0


def _record(agent: int, step: int) -> int:
    record_step(agent, step)
    return 0


# The same loop in pieces, for what is written in plain Python: see plain_games.py.
call, begin, look_ahead, record = (entry(one) for one in (_call, _begin, _look_ahead, _record))
