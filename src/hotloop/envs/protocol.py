"""The common interface of vector environments."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from hotloop.envs.spaces import ObsSpec, Spaces
from hotloop.types import Array, Episode, RunningEpisode, StepArrays


class VectorEnv(Spaces, Protocol):
    """N environments, stepped together. `make_vec` creates them."""

    @property
    def num_envs(self) -> int:
        """N."""
        ...

    @property
    def can_replay(self) -> bool:
        """Whether `resume` can restore the middle of an episode."""
        ...

    @property
    def mask(self) -> Array:
        """Actions that the last observations allow, bool, (N, M), until the next call of `step`."""
        ...

    def reset(self, first_episode: int | None = None) -> Array:
        """Start a new episode in every environment.

        Args:
            first_episode: index of the new episodes, the next one by default. It determines their
                seeds in environments that accept seeds.

        Returns:
            First observations, (N, *obs_shape), a fresh array.

        Raises:
            EnvironmentFailure: an environment raised, or returned a value outside its spaces.
        """
        ...

    def step(self, action: Array, out: StepArrays | None = None) -> StepArrays:
        """Step every environment, and reset those whose episode ends.

        Args:
            action: (N, *action_shape), as sampled by the policy. Box actions are clipped here.
            out: arrays for the results, internal arrays that the next step overwrites by default.

        Returns:
            `out`, or the internal arrays.

        Raises:
            EnvironmentFailure: an environment raised, or returned a value outside its spaces.
            ShapeError: `action` has the wrong shape.
        """
        ...

    def running_episodes(self) -> list[tuple[int, int]]:
        """Return the index and the current length of each environment's running episode."""
        ...

    def resume(
        self,
        episodes: Sequence[RunningEpisode],
        on_step: Callable[[], None] = lambda: None,
    ) -> tuple[Array, list[int]]:
        """Restore running episodes in fresh environments.

        Each episode restarts from its own seed, and its actions are replayed. If replay is
        impossible or leads to another observation, the environment begins its next episode instead.

        Args:
            episodes: one running episode per environment.
            on_step: callback before each repeated reset and step.

        Returns:
            Next observations, (N, *obs_shape), and the environments that began a new episode.

        Raises:
            EnvironmentFailure: an environment's `reset` failed.
        """
        ...

    def pop_episodes(self) -> list[Episode]:
        """Return the episodes that ended since the last call, in the order of their ends."""
        ...

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Return each environment's result of a method, or its attribute, as Gymnasium does.

        Raises:
            ConfigError: an environment lacks the attribute, or attributes can't be reached.
        """
        ...

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Return an attribute of each environment, see `call`."""
        ...

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute of each environment: one value, or a list or tuple with N of them."""
        ...

    def close(self) -> None:
        """Close the environments. Further calls do nothing."""
        ...


def allocate_step(num_envs: int, obs_spec: ObsSpec, mask_size: int = 0) -> StepArrays:
    """Return zeroed arrays for one step of N environments."""
    obs_shape = (num_envs, *obs_spec.shape)
    return StepArrays(
        next_obs=np.zeros(obs_shape, obs_spec.dtype),
        reward=np.zeros(num_envs, np.float32),
        terminated=np.zeros(num_envs, np.bool_),
        truncated=np.zeros(num_envs, np.bool_),
        valid=np.ones(num_envs, np.bool_),
        obs=np.zeros(obs_shape, obs_spec.dtype),
        next_mask=np.ones((num_envs, mask_size), np.bool_),
        mask=np.ones((num_envs, mask_size), np.bool_),
    )


def obs_hash(obs: Array) -> str:
    """Return a hash of all bytes of one observation."""
    return hashlib.blake2b(obs.tobytes(), digest_size=8).hexdigest()
