"""The slow, obvious twin of every set of environments: one environment, one step at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from hotloop.envs import VectorEnv
from hotloop.types import Episode


class Transition(NamedTuple):
    """A transition in plain Python values, for comparisons."""

    obs: list[float]
    action: int
    reward: float
    terminated: bool
    truncated: bool
    next_obs: list[float]


def reference_rollout(
    env: Any, number: int, choose: Callable[[np.ndarray], np.ndarray], num_transitions: int
) -> tuple[list[Transition], list[Episode]]:
    """Return the transitions and finished episodes of a single environment."""
    transitions: list[Transition] = []
    episodes: list[Episode] = []
    rewards: list[float] = []
    obs, _ = env.reset()
    while len(transitions) < num_transitions:
        action = int(choose(obs[None])[0])
        next_obs, reward, terminated, truncated, _ = env.step(action)
        rewards.append(reward)
        transitions.append(
            Transition(
                obs.tolist(), action, float(np.float32(reward)), terminated, truncated,
                next_obs.tolist(),
            )
        )  # fmt: skip
        obs = next_obs
        if terminated or truncated:
            episodes.append(Episode(number, len(episodes), sum(rewards), len(rewards)))
            rewards = []
            obs, _ = env.reset()
    return transitions, episodes


def vector_rollout(
    envs: VectorEnv, choose: Callable[[np.ndarray], np.ndarray], num_steps: int
) -> tuple[list[list[Transition]], list[Episode]]:
    """Return the valid transitions of each environment, and the finished episodes of all."""
    transitions: list[list[Transition]] = [[] for _ in range(envs.num_envs)]
    obs = envs.reset()
    for _ in range(num_steps):
        action = choose(obs)
        acted_on = obs.copy()
        result = envs.step(action)
        for i in np.flatnonzero(result.valid):
            transitions[i].append(
                Transition(
                    acted_on[i].tolist(),
                    int(action[i]),
                    float(result.reward[i]),
                    bool(result.terminated[i]),
                    bool(result.truncated[i]),
                    result.next_obs[i].tolist(),
                )
            )
        obs = result.obs
    return transitions, envs.pop_episodes()
