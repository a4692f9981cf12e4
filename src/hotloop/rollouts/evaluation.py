"""Evaluation of a policy, without learning."""

from __future__ import annotations

import math

from hotloop.envs import VectorEnv
from hotloop.errors import EnvironmentFailure
from hotloop.policies import ActingPolicy
from hotloop.system.memory import require_memory
from hotloop.types import Episode

EPISODE_BYTES = 128  # minimum size of an `Episode` and its numbers


def evaluate(
    envs: VectorEnv,
    policy: ActingPolicy,
    *,
    num_episodes: int,
    max_episode_steps: int = 1_000_000,
) -> list[Episode]:
    """Play episodes with the most probable actions.

    Each environment plays a fixed share of them. Taking the first `num_episodes` that end would
    favor short episodes. If the environments accept seeds, every call plays the same episodes, from
    the first one of each environment on.

    Args:
        envs: Environments, stepped together until each has played its share.
        policy: Acting policy.
        num_episodes: Number of episodes.
        max_episode_steps: Maximum length of an episode.

    Returns:
        The episodes, sorted by environment and episode.

    Raises:
        ConfigError: The episodes do not fit into memory.
        EnvironmentFailure: An episode does not end, or its return is not finite.
    """
    require_memory(EPISODE_BYTES * num_episodes, f"{num_episodes:,} episodes", "play fewer")
    share, remainder = divmod(num_episodes, envs.num_envs)
    num_missing = [share + (env < remainder) for env in range(envs.num_envs)]
    episodes: list[Episode] = []
    envs.pop_episodes()
    obs = envs.reset(first_episode=0)
    memory = policy.new_memory(envs.num_envs)
    num_steps = 0
    while len(episodes) < num_episodes:
        step = envs.step(policy.greedy(obs, memory))
        obs = step.obs
        if memory is not None:
            memory[step.terminated | step.truncated | ~step.valid] = 0.0
        num_steps += 1
        if num_steps % 100 == 0:
            _check_lengths(envs, num_missing, max_episode_steps)
        for episode in envs.pop_episodes():
            if num_missing[episode.env]:
                episodes.append(episode)
                num_missing[episode.env] -= 1
    for episode in episodes:
        if not math.isfinite(episode.undiscounted_return):
            raise EnvironmentFailure(
                f"rewards must be finite, but in the evaluation episode {episode.episode} of "
                f"environment {episode.env} returned {episode.undiscounted_return}: look for a "
                "division by zero or a missing reset in the environment"
            )
    return sorted(episodes)


def _check_lengths(envs: VectorEnv, num_missing: list[int], max_episode_steps: int) -> None:
    """Raise EnvironmentFailure if an episode of an environment's share is too long."""
    for (_, length), is_missing in zip(envs.running_episodes(), num_missing, strict=True):
        if is_missing and length > max_episode_steps:
            raise EnvironmentFailure(
                f"an episode must end, but one did not within {max_episode_steps:,} steps: give "
                "the environment a time limit (`max_episode_steps` in its registration)"
            )
