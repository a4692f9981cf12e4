"""Playing a policy without learning from it."""

from __future__ import annotations

from hotloop.envs import VectorEnv
from hotloop.errors import EnvironmentFailure
from hotloop.policies import ActingPolicy
from hotloop.types import Episode


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
        max_episode_steps: give up when so many steps end no episode.

    Returns:
        The episodes, by environment and episode.

    Raises:
        EnvironmentFailure: episodes do not end.
    """
    share, rest = divmod(num_episodes, envs.num_envs)
    wanted = {env: share + (env < rest) for env in range(envs.num_envs)}
    missing = num_episodes
    kept: list[Episode] = []
    envs.pop_episodes()
    obs = envs.reset(first_episode=0)
    steps_since_end = 0
    while missing:
        obs = envs.step(policy.greedy(obs)).obs
        ended = envs.pop_episodes()
        steps_since_end = 0 if ended else steps_since_end + 1
        if steps_since_end > max_episode_steps:
            raise EnvironmentFailure(
                f"an episode must end, but none did within {max_episode_steps:,} steps: give the "
                "environment a time limit (`max_episode_steps` where it is registered)"
            )
        for episode in ended:
            if episode.episode < wanted[episode.env]:
                kept.append(episode)
                missing -= 1
    return sorted(kept)
