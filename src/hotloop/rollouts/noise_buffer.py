"""The action noise of a group of environments, drawn for many steps at once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from hotloop.policies import ActingPolicy, EpisodeNoise
from hotloop.policies.heads.base import num_action_values
from hotloop.timing import span
from hotloop.types import Array

# Minimum number of steps for which noise is drawn. It depends on the step alone, so it can be drawn
# in advance: NumPy takes 150 µs for a call, even for a few numbers.
NOISE_STEPS = 256


class NoiseBuffer:
    """Noise that depends on the step and the environment.

    Args:
        policy: Policy that draws the noise.
        seed: Seed of the noise.
        first_env: Index of the group's first environment, counted over all workers.
        episode_starts: First step of each environment's episode, int64, (N,). The caller changes it
            in place when an episode begins, if the exploration is an `EpisodeNoise`.
    """

    def __init__(
        self, policy: ActingPolicy, seed: int, first_env: int, episode_starts: Array
    ) -> None:
        self._policy, self._seed, self._first_env = policy, seed, first_env
        self._starts, self._num_envs = episode_starts, len(episode_starts)
        self._noise = np.empty((0, 0, 0), np.float32)
        self._start = 0

    def steps(self, first_step: int, num_steps: int) -> Any:
        """Return the noise of steps, counted from the start of the run, (T, N, K)."""
        start = first_step - self._start
        if not 0 <= start <= len(self._noise) - num_steps:
            with span("draw_noise"):
                self._noise = self._policy.draw_noise(
                    self._seed,
                    first_step=first_step,
                    num_steps=max(num_steps, NOISE_STEPS // num_steps * num_steps),
                    num_envs=self._num_envs,
                    first_env=self._first_env,
                )
            self._start, start = first_step, 0
        return self._noise[start : start + num_steps]

    def row(self, step: int, envs: slice) -> Array:
        """Return the noise of one step of some environments, (B, K)."""
        return self.steps(step, 1)[0, envs]


class EpisodeNoiseBuffer(NoiseBuffer):
    """Noise that depends on the first step of an environment's episode too; see `NoiseBuffer`."""

    def __init__(
        self, policy: ActingPolicy, seed: int, first_env: int, episode_starts: Array
    ) -> None:
        super().__init__(policy, seed, first_env, episode_starts)
        num_envs = len(episode_starts)
        assert isinstance(policy.exploration, EpisodeNoise)
        self._exploration = policy.exploration
        self._num_numbers = num_action_values(policy.network.action_spec)
        # The current chunk of each environment. Its flag is 0: the actions are not drawn uniformly.
        shape = (num_envs, self._exploration.num_chunk_steps(), self._num_numbers + 1)
        self._chunks = np.zeros(shape, np.float32)
        self._chunk_starts = np.full(num_envs, -1)
        self._chunk_episodes = np.full(num_envs, -1)
        self._states: list[Any] = [None] * num_envs
        self._envs = np.arange(num_envs)

    def steps(self, first_step: int, num_steps: int) -> Iterable[Array]:
        """Yield the noise of each step, (N, K), for the episodes that run at this moment."""
        return (self.row(first_step + t, slice(None)) for t in range(num_steps))

    def row(self, step: int, envs: slice) -> Array:
        if step < self._exploration.random_steps:
            return super().steps(step, 1)[0, envs]
        episodes, rows = self._starts[envs], self._envs[envs]
        position = (step - episodes) % self._exploration.chunk_steps
        is_new = self._chunk_starts[envs] != step - position
        is_new |= self._chunk_episodes[envs] != episodes
        if is_new.any():
            with span("draw_noise"):
                for env in rows[is_new].tolist():
                    self._draw(env, step)
        return self._chunks[rows, position]

    def _draw(self, env: int, step: int) -> None:
        """Draw the chunk of an environment that contains a step."""
        size, episode = self._exploration.chunk_steps, int(self._starts[env])
        start = step - (step - episode) % size
        # Continue from the current chunk, or else, as for an episode that another process began,
        # draw all chunks since the episode's start.
        first, state = episode, None
        if self._chunk_episodes[env] == episode and self._chunk_starts[env] == start - size:
            first, state = start, self._states[env]
        for first_step in range(first, start + 1, size):
            self._chunks[env, :, :-1], state = self._exploration.draw_chunk(
                self._seed,
                env=self._first_env + env,
                first_step=first_step,
                size=self._num_numbers,
                state=state,
            )
        self._chunk_starts[env], self._chunk_episodes[env] = start, episode
        self._states[env] = state


def make_noise_buffer(
    policy: ActingPolicy, seed: int, first_env: int, episode_starts: Array
) -> NoiseBuffer:
    """Return the buffer for the policy's exploration; see `NoiseBuffer`."""
    has_episode_noise = isinstance(policy.exploration, EpisodeNoise)
    kind = EpisodeNoiseBuffer if has_episode_noise else NoiseBuffer
    return kind(policy, seed, first_env, episode_starts)
