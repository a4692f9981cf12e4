"""Playing a policy without learning from it."""

from __future__ import annotations

import math

from hotloop.envs import VectorEnv
from hotloop.errors import EnvironmentFailure
from hotloop.policies import ActingPolicy
from hotloop.system.memory import need_memory
from hotloop.types import Episode

EPISODE_BYTES = 128  # of an `Episode` and its numbers, at least


def evaluate(
    envs: VectorEnv,
    policy: ActingPolicy,
    *,
    num_episodes: int,
    max_episode_steps: int = 1_000_000,
) -> list[Episode]:
    """Play episodes with the most probable actions.

    Each environment plays its own share, whatever the others do: the first `num_episodes` to end
    would be the shorter ones. Every call plays the same episodes, from each environment's first on,
    where environments take seeds.

    Args:
        envs: stepped side by side until each has played its share.
        policy: acts.
        num_episodes: how many.
        max_episode_steps: give up on an episode that is longer.

    Returns:
        The episodes, by environment and episode.

    Raises:
        ConfigError: so many episodes don't fit into memory.
        EnvironmentFailure: an episode does not end, or its return is not finite.
    """
    need_memory(EPISODE_BYTES * num_episodes, f"{num_episodes:,} episodes", "play fewer")
    share, rest = divmod(num_episodes, envs.num_envs)
    missing = [share + (env < rest) for env in range(envs.num_envs)]
    wanted = dict(enumerate(missing))
    kept: list[Episode] = []
    envs.pop_episodes()
    obs = envs.reset(first_episode=0)
    memory = policy.new_memory(envs.num_envs)
    num_steps = 0
    while len(kept) < num_episodes:
        step = envs.step(policy.greedy(obs, memory))
        obs = step.obs
        if memory is not None:
            memory[step.terminated | step.truncated | ~step.valid] = 0.0
        num_steps += 1
        if num_steps % 100 == 0:
            _check_ending(envs, missing, max_episode_steps)
        for episode in envs.pop_episodes():
            if episode.episode < wanted[episode.env]:
                kept.append(episode)
                missing[episode.env] -= 1
    for episode in kept:
        if not math.isfinite(episode.undiscounted_return):
            raise EnvironmentFailure(
                f"rewards must be finite, but in the evaluation episode {episode.episode} of "
                f"environment {episode.env} returned {episode.undiscounted_return}: look for a "
                "division by zero or a missing reset in the environment"
            )
    return sorted(kept)


def _check_ending(envs: VectorEnv, missing: list[int], max_episode_steps: int) -> None:
    """Give up on episodes that are waited for and do not end.

    Raises:
        EnvironmentFailure: there is one.
    """
    for (_, length), is_waited_for in zip(envs.running(), missing, strict=True):
        if is_waited_for and length > max_episode_steps:
            raise EnvironmentFailure(
                f"an episode must end, but one did not within {max_episode_steps:,} steps: give "
                "the environment a time limit (`max_episode_steps` where it is registered)"
            )
