"""Evaluation of a policy, without learning."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import numpy as np

from hotloop.base.memory import require_memory
from hotloop.envs import VectorEnv
from hotloop.errors import EnvironmentFailure
from hotloop.policies import ActingPolicy
from hotloop.types import Array, Episode

EPISODE_BYTES = 128  # minimum size of an `Episode` with its fields
MAX_STEPS = 27_000
"""Default maximum length of an episode, the usual limit for Atari games."""
_MAX_ABSENCES = 10
"""Games in a row without an agent, after which an evaluation does not wait for it."""
_NOTE_S = 5.0  # time between two notes on a lengthy evaluation


def evaluate(
    envs: VectorEnv,
    policy: ActingPolicy,
    *,
    num_episodes: int,
    max_steps: int = MAX_STEPS,
    timeout_s: float | None = None,
    usual_steps: int = 0,
    on_step: Callable[[], None] = lambda: None,
    on_note: Callable[[str], None] = lambda _: None,
) -> list[Episode]:
    """Play episodes with the most probable actions.

    Each environment plays a fixed share of them. Taking the first `num_episodes` to end would favor
    short episodes. The share of an agent that takes part in no game goes to another agent. If the
    environments accept seeds, every call starts with each environment's first episode and plays the
    same episodes.

    Args:
        envs: Environments, stepped together until each has played its share.
        policy: Acting policy.
        num_episodes: Number of episodes.
        max_steps: Maximum length of an episode. A longer one is cut.
        timeout_s: Seconds without the end of an episode, after which the evaluation ends. Running
            episodes are cut, and the remaining ones are left out. A step counts as a twentieth at
            most, so a machine that was suspended cuts no episode. None: no limit.
        usual_steps: Steps that an episode may take. `timeout_s` does not cut shorter ones.
        on_step: Called after each step of the environments.
        on_note: Called with the state of a lengthy evaluation every 5 s.

    Returns:
        The episodes, sorted by environment and episode. `is_cut` marks cut episodes, whose returns
        include only the steps before the cut.

    Raises:
        ConfigError: The episodes do not fit into memory.
        EnvironmentFailure: A return is not finite.
    """
    # Assign the episodes to the environments.
    require_memory(EPISODE_BYTES * num_episodes, f"{num_episodes:,} episodes", "play fewer")
    share, remainder = divmod(num_episodes, envs.num_envs)
    envs.pop_episodes()
    obs = envs.reset(first_episode=0)
    playing = _Shares(
        [share + (env < remainder) for env in range(envs.num_envs)],
        [index for index, _ in envs.running_episodes()],
    )
    memory = policy.new_memory(envs.num_envs)
    returns = np.zeros(envs.num_envs)  # of the running episodes
    last_step_s = last_note_s = time.monotonic()
    waited_s = 0.0  # since the last end of an episode
    max_step_s = math.inf if timeout_s is None else timeout_s / 20
    num_steps = 0
    while playing.num_missing:
        # Step all environments, and record the episodes that ended.
        step = envs.step(policy.greedy(obs, memory, envs.mask))
        on_step()
        obs = step.obs
        returns += step.reward
        if memory is not None:
            memory[step.terminated | step.truncated | ~step.valid] = 0.0
        ended = envs.pop_episodes()
        for episode in ended:
            returns[episode.env] = 0.0
            if playing.add(episode):
                waited_s = 0.0
        if ended:
            playing.replace_absent(envs.running_episodes(), ended[0].env)
        # Cut long episodes, and restart the environments if only cut episodes are left.
        num_steps += 1
        if num_steps >= max_steps:
            lengths = envs.running_episodes()
            playing.cut(lengths, returns, at_least=max_steps)
            if playing.num_missing and playing.is_waiting(lengths, max_steps):
                obs = envs.reset(first_episode=playing.first_missing)
                returns[:] = num_steps = 0
                memory = policy.new_memory(envs.num_envs)
        # Give up on episodes that do not end, and report on lengthy evaluations.
        now = time.monotonic()
        waited_s, last_step_s = waited_s + min(now - last_step_s, max_step_s), now
        is_over = timeout_s is not None and waited_s > timeout_s
        is_note_due = now - last_note_s > _NOTE_S
        if is_over or is_note_due:
            lengths = envs.running_episodes()
            longest = playing.longest(lengths)
            if is_over and longest > usual_steps:
                # Leave out episodes that began after a cut: they are too short for a fair
                # comparison.
                if not any(episode.is_cut for episode in playing.episodes):
                    playing.cut(lengths, returns, at_least=usual_steps + 1)
                break
            if is_note_due:
                last_note_s = now
                on_note(
                    f"evaluating: {len(playing.episodes):,} of {num_episodes:,} episodes, and "
                    f"{longest:,} steps in the longest of the others"
                )
    # Check the returns.
    episodes = sorted(playing.episodes)
    for episode in episodes:
        if not math.isfinite(episode.undiscounted_return):
            raise EnvironmentFailure(
                f"rewards must be finite, but in the evaluation episode {episode.episode} of "
                f"environment {episode.env} returned {episode.undiscounted_return}: look for a "
                "division by zero or a missing reset in the environment"
            )
    return episodes


class _Shares:
    """The evaluation episodes of each environment, until it has played its share.

    Args:
        shares: Number of episodes of each environment.
        first_indices: Index of the first episode of each environment.

    Attributes:
        episodes: The played episodes.
    """

    def __init__(self, shares: list[int], first_indices: list[int]) -> None:
        self._num_missing = shares
        self._next_index = first_indices
        self.episodes: list[Episode] = []

    @property
    def num_missing(self) -> int:
        """Return the number of missing episodes."""
        return sum(self._num_missing)

    @property
    def first_missing(self) -> int:
        """Return the smallest index of a missing episode."""
        return min(self._next_index[env] for env in self._missing())

    def add(self, episode: Episode) -> bool:
        """Add an episode if its environment's share lacks it, and return whether it does.

        An episode with an earlier index than the next one is omitted: it was cut before its end.
        """
        env = episode.env
        if episode.episode < self._next_index[env] or not self._num_missing[env]:
            return False
        self._num_missing[env] -= 1
        self._next_index[env] = episode.episode + 1
        self.episodes.append(episode)
        return True

    def cut(self, running: list[tuple[int, int]], returns: Array, *, at_least: int) -> None:
        """Add running episodes with at least this many steps, marked as cut."""
        for env in self._missing():
            index, length = running[env]
            if length >= at_least:
                self.add(Episode(env, index, float(returns[env]), length, is_cut=True))

    def replace_absent(self, running: list[tuple[int, int]], substitute: int) -> None:
        """Give the shares of agents that were absent for many games to a row that plays."""
        for env in self._missing():
            if running[env][0] - self._next_index[env] >= _MAX_ABSENCES:
                count, self._num_missing[env] = self._num_missing[env], 0
                self._num_missing[substitute] += count
                self._next_index[substitute] = running[substitute][0]

    def is_waiting(self, running: list[tuple[int, int]], max_steps: int) -> bool:
        """Return whether every missing episode must wait until an episode that was cut ends."""
        return all(
            running[env][0] < self._next_index[env] and running[env][1] >= max_steps
            for env in self._missing()
        )

    def longest(self, running: list[tuple[int, int]]) -> int:
        """Return the length of the longest running episode of the environments with a share."""
        return max((running[env][1] for env in self._missing()), default=0)

    def _missing(self) -> list[int]:
        return [env for env, number in enumerate(self._num_missing) if number]
