"""Plans: agents and environments as the kernels see them, in parts, parameters and memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from hotloop.bandits.agents import (
    AGENTS,
    EXP3,
    KLUCB,
    MOSS,
    UCB,
    UCB1,
    Agent,
    BetaThompson,
    EpsilonGreedy,
    GaussianThompson,
    Gradient,
    LinTS,
    LinUCB,
    Optimistic,
)
from hotloop.bandits.environments import (
    ENVIRONMENTS,
    AbruptChange,
    Adversarial,
    Bernoulli,
    Environment,
    Gaussian,
    LinearContextual,
    RandomWalk,
)
from hotloop.bandits.jitted import JittedAgent, JittedEnvironment
from hotloop.bandits.kernels import divergence, linear, posteriors, softmax, values
from hotloop.bandits.kernels import environments as parts
from hotloop.bandits.kernels.layout import LANES, TOGETHER
from hotloop.errors import BanditError, ConfigError
from hotloop.numba_tools import Part
from hotloop.system.memory import need_memory
from hotloop.types import Array


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What an agent or an environment is to the kernels.

    Attributes:
        parts: an agent's start, choose, update; an environment's start, advance, give_reward.
        parameters: words from `layout.PARAMETERS` on: whole numbers as int64, others as float64.
        state_bytes: memory of its own.
        needs_unit: whether rewards must lie in 0 … 1.
        needs_policy: whether the policy's words are to be prepared for all lanes.
        arrays: what parameters are addresses of; kept alive with the block.
        has_walk: an environment whose true values differ from step to step; its windows hold
            them for each step.
    """

    parts: tuple[Part, Part, Part]
    parameters: tuple[float | int, ...] = ()
    state_bytes: int = 0
    needs_policy: bool = False
    needs_unit: bool = False
    arrays: tuple[Array, ...] = ()
    has_walk: bool = False


_PIECE = 2**20
_MOST_STATE = 1_000_000_000  # bytes, of one thread


def _table(size: int, function: Callable[[Array], Any], *, at_zero: float = 0.0) -> Array:
    """A function of 0 … `size`, float32, made in pieces: all at once takes five times as much.

    Raises:
        ConfigError: it does not fit into memory.
    """
    need_memory(4 * size, f"tables for {size:,} steps", "lower `num_steps`")
    table = np.full(size + 1, at_zero, np.float32)
    for start in range(1, size + 1, _PIECE):
        stop = min(start + _PIECE, size + 1)
        table[start:stop] = function(np.arange(start, stop))
    return table


def num_rows(num_arms: int) -> int:
    """Rows of an array of scores: arms, and what makes them whole fives."""
    return -(-num_arms // TOGETHER) * TOGETHER


def plan_agent(agent: Agent, environment: Environment, num_steps: int) -> Plan:
    """How an agent plays.

    Raises:
        ConfigError: it can't play in this environment.
        BanditError: it is no agent.
    """
    k = environment.num_arms
    _check_fit(agent, environment)
    arms = k * LANES
    rows = num_rows(k) * LANES
    if isinstance(agent, (EpsilonGreedy, Optimistic)):
        epsilon = agent.epsilon if isinstance(agent, EpsilonGreedy) else 0.0
        decay = agent.epsilon_decay if isinstance(agent, EpsilonGreedy) else 0.0
        return Plan(
            parts=(values.start_greedy, values.choose_greedy, values.update_greedy),
            parameters=(
                float(agent.step_size or 0.0),
                float(agent.initial_value),
                float(epsilon),
                float(decay),
            ),
            state_bytes=values.STATE_BYTES * rows,
            needs_policy=epsilon > 0,
        )
    if isinstance(agent, (UCB, UCB1)):
        is_books = isinstance(agent, UCB)
        step_size = (agent.step_size or 0.0) if isinstance(agent, UCB) else 0.0
        scale = agent.c if isinstance(agent, UCB) else agent.scale
        roots = _table(num_steps, lambda pulls: pulls**-0.5 if scale else 0.0, at_zero=1.0)
        return Plan(
            parts=(values.start_ucb, values.choose_ucb, values.update_ucb),
            parameters=(float(step_size), 0.0, float(scale), int(not is_books), roots.ctypes.data),
            arrays=(roots,),
            state_bytes=(values.STATE_BYTES + 4) * rows,
        )
    if isinstance(agent, MOSS):
        table = _table(
            num_steps + 1,
            lambda pulls: np.sqrt(np.maximum(np.log(num_steps / (k * pulls)), 0.0) / pulls),
        )
        return Plan(
            parts=(values.start_moss, values.choose_moss, values.update_moss),
            parameters=(0.0, 0.0, 0.0, 0, table.ctypes.data),
            state_bytes=values.STATE_BYTES * rows,
            arrays=(table,),
        )
    if isinstance(agent, (Gradient, EXP3)):
        size = softmax.STATE_BYTES_ARM * rows + softmax.STATE_BYTES_LANE * LANES
        if isinstance(agent, Gradient):
            return Plan(
                parts=(softmax.start_softmax, softmax.choose_gradient, softmax.update_gradient),
                parameters=(float(agent.step_size), int(agent.baseline)),
                state_bytes=size,
                needs_policy=True,
            )
        return Plan(
            parts=(softmax.start_softmax, softmax.choose_exp3, softmax.update_exp3),
            parameters=(float(agent.gamma),),
            needs_unit=True,
            state_bytes=size,
            needs_policy=True,
        )
    padded = (num_rows(k) + 3) // 4 * 4 * LANES
    if isinstance(agent, GaussianThompson):
        return Plan(
            parts=(
                posteriors.start_gaussian,
                posteriors.choose_gaussian,
                posteriors.update_gaussian,
            ),
            parameters=(float(agent.prior_mean), agent.prior_std**-2.0, agent.noise**-2.0),
            state_bytes=posteriors.STATE_BYTES * padded,
        )
    if isinstance(agent, BetaThompson):
        return Plan(
            parts=(posteriors.start_beta, posteriors.choose_beta, posteriors.update_beta),
            parameters=(float(agent.prior_alpha), float(agent.prior_beta)),
            state_bytes=posteriors.STATE_BYTES * padded,
            needs_unit=True,
        )
    if isinstance(agent, KLUCB):
        return Plan(
            parts=(divergence.start_kl, divergence.choose_kl, divergence.update_kl),
            parameters=(float(agent.c),),
            needs_unit=True,
            state_bytes=divergence.STATE_BYTES_ARM * arms + divergence.STATE_BYTES_LANE * LANES,
        )
    if isinstance(agent, (LinUCB, LinTS)):
        is_ucb = isinstance(agent, LinUCB)
        state_bytes = linear.state_bytes(k, environment.dimension)
        if state_bytes > _MOST_STATE:
            raise ConfigError(
                f"{agent.name} with {k} arms in {environment.dimension} dimensions needs "
                f"{state_bytes / 1e9:.0f} GB for {LANES} runs: use fewer arms or dimensions"
            )
        return Plan(
            parts=(
                linear.start_linear,
                linear.choose_lin_ucb if is_ucb else linear.choose_lin_ts,
                linear.update_linear,
            ),
            parameters=(float(agent.alpha if is_ucb else agent.scale), float(agent.ridge)),
            state_bytes=state_bytes,
        )
    if isinstance(agent, JittedAgent):
        return _plan_jitted(agent, agent.num_state(k))
    raise BanditError(
        f"an agent must be one of {', '.join(AGENTS)}, a JittedAgent, or an object with start, "
        f"choose and update; got {agent!r:.80}"
    )


def _plan_jitted(owner: JittedAgent | JittedEnvironment, size: int) -> Plan:
    parameters = np.array(owner.params, np.float64)
    return Plan(
        parts=owner.parts,
        parameters=(size, parameters.ctypes.data, len(parameters)),
        state_bytes=8 * LANES * max(size, 1),
        arrays=(parameters,),
    )


def _check_fit(agent: Agent, environment: Environment) -> None:
    is_linear = isinstance(agent, (LinUCB, LinTS))
    if is_linear and not isinstance(environment, LinearContextual):
        raise ConfigError(
            f"{agent.name} needs contexts: play it in linear-contextual, not in {environment.name}"
        )
    if isinstance(agent, (BetaThompson, KLUCB, EXP3)):
        rewards = getattr(environment, "rewards", None)
        is_unit = isinstance(environment, (Bernoulli, JittedEnvironment)) or (
            rewards is not None and rewards.min() >= 0 and rewards.max() <= 1
        )
        if not is_unit:
            raise ConfigError(
                f"{agent.name} needs rewards from 0 to 1: play it in bernoulli or in adversarial "
                f"with such rewards, not in {environment.name}"
            )


def plan_environment(environment: Environment, num_steps: int) -> Plan:
    """What an environment does.

    Raises:
        ConfigError: it has fewer steps than are asked for.
        BanditError: it is no environment.
    """
    if isinstance(environment, (Gaussian, Bernoulli)):
        is_gaussian = isinstance(environment, Gaussian)
        given = np.array(environment.means if environment.means else [], np.float32)
        scales = (0.0, 0.0, 0.0)
        if isinstance(environment, Gaussian):
            scales = tuple(map(float, (environment.noise, environment.mean, environment.spread)))
        return Plan(
            parts=(
                parts.start_stationary,
                parts.advance_gaussian if is_gaussian else parts.advance_bernoulli,
                parts.give_noisy if is_gaussian else parts.give_bernoulli,
            ),
            parameters=(*scales, given.ctypes.data if len(given) else 0),
            arrays=(given,),
        )
    if isinstance(environment, RandomWalk):
        return Plan(
            parts=(parts.start_nothing, parts.advance_walk, parts.give_noisy),
            parameters=tuple(map(float, (environment.noise, environment.start, environment.walk))),
            has_walk=True,
        )
    if isinstance(environment, AbruptChange):
        scales = (environment.noise, environment.mean, environment.spread)
        return Plan(
            parts=(parts.start_nothing, parts.advance_abrupt, parts.give_noisy),
            parameters=(*map(float, scales), environment.every),
            has_walk=True,
        )
    if isinstance(environment, Adversarial):
        matrix = environment.rewards
        if len(matrix) < num_steps:
            raise ConfigError(
                f"`rewards` has {len(matrix):,} steps, fewer than the {num_steps:,} asked for: "
                "give more, or play fewer"
            )
        best = int(matrix[:num_steps].sum(axis=0, dtype=np.float64).argmax())
        return Plan(
            parts=(parts.start_adversarial, parts.advance_adversarial, parts.give_noisy),
            parameters=(0.0, 0.0, 0.0, matrix.ctypes.data, best),
            arrays=(matrix,),
            has_walk=True,
        )
    if isinstance(environment, LinearContextual):
        groups = (environment.dimension + 3) // 4
        return Plan(
            parts=(parts.start_contextual, parts.advance_contextual, parts.give_noisy),
            parameters=(float(environment.noise), 0.0, environment.dimension**-0.5),
            state_bytes=16 * LANES * groups * environment.num_arms,
            has_walk=True,
        )
    if isinstance(environment, JittedEnvironment):
        return _plan_jitted(environment, environment.state_size)
    raise BanditError(
        f"an environment must be one of {', '.join(ENVIRONMENTS)}, a JittedEnvironment, or an "
        f"object with num_arms, start and reward; got {environment!r:.80}"
    )
