"""Playing a policy without learning from it."""

from __future__ import annotations

from hotloop.envs import VectorEnv
from hotloop.policies import ActingPolicy
from hotloop.types import Episode


def evaluate(envs: VectorEnv, policy: ActingPolicy, *, num_episodes: int) -> list[Episode]:
    """Play episodes with the most probable actions.

    Each environment plays its own share, whatever the others do: the first `num_episodes` to end
    would be the shorter ones.

    Args:
        envs: stepped side by side until each has played its share.
        policy: acts.
        num_episodes: how many.

    Returns:
        The episodes, by environment and episode.
    """
    share, rest = divmod(num_episodes, envs.num_envs)
    wanted = {env: share + (env < rest) for env in range(envs.num_envs)}
    missing = num_episodes
    kept: list[Episode] = []
    obs = envs.reset()
    while missing:
        obs = envs.step(policy.greedy(obs)).obs
        for episode in envs.pop_episodes():
            if episode.episode < wanted[episode.env]:
                kept.append(episode)
                missing -= 1
    return sorted(kept)
