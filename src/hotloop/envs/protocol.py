"""The interface of a set of environments, however it is stepped."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from hotloop.envs.spaces import ActionSpec, ObsSpec
from hotloop.types import Array, Episode, RunningEpisode, StepArrays


class VectorEnv(Protocol):
    """N environments, stepped side by side. `make_vec` makes them."""

    @property
    def num_envs(self) -> int:
        """N."""
        ...

    @property
    def obs_spec(self) -> ObsSpec:
        """Shape, dtype and layout of one observation."""
        ...

    @property
    def action_spec(self) -> ActionSpec:
        """Kind, shape and bounds of one action."""
        ...

    @property
    def can_replay(self) -> bool:
        """Whether `resume` can bring environments into the middle of an episode."""
        ...

    def reset(self, first_episode: int | None = None) -> Array:
        """Start a new episode everywhere.

        Args:
            first_episode: its number, which its seed is made of where environments take seeds;
                the next one by default.

        Returns:
            First observations, (N, *obs_shape), a fresh array.

        Raises:
            EnvironmentFailure: an environment raised, or gave what its spaces rule out.
        """
        ...

    def step(self, action: Array, out: StepArrays | None = None) -> StepArrays:
        """One step of every environment; those whose episode ends are reset.

        Args:
            action: (N, *action_shape), as the policy drew it: box actions are clipped here.
            out: is written into; without it, arrays of our own are, which the next step overwrites.

        Returns:
            `out`, or our own arrays.

        Raises:
            EnvironmentFailure: an environment raised, or gave what its spaces rule out.
            ShapeError: `action` has the wrong shape.
        """
        ...

    def running(self) -> list[tuple[int, int]]:
        """The number and the length so far of each environment's running episode."""
        ...

    def resume(
        self,
        episodes: Sequence[RunningEpisode],
        on_step: Callable[[], None] = lambda: None,
    ) -> tuple[Array, list[int]]:
        """Bring fresh environments to where others stood: in the middle of their episodes.

        Each episode is begun again with its own seed and its actions are replayed. Where that is
        not possible, or does not lead to the same observation, the environment begins its next
        episode instead.

        Args:
            episodes: one for each environment.
            on_step: is called before each reset and each step that is made again.

        Returns:
            What to act on next, (N, *obs_shape), and the environments that began a new episode.

        Raises:
            EnvironmentFailure: an environment's `reset` failed.
        """
        ...

    def pop_episodes(self) -> list[Episode]:
        """The episodes that ended since the last call, in the order in which they ended."""
        ...

    def close(self) -> None:
        """Close the environments; harmless when repeated."""
        ...


def allocate_step(num_envs: int, obs_spec: ObsSpec) -> StepArrays:
    """Zeroed arrays for one step of N environments."""
    obs_shape = (num_envs, *obs_spec.shape)
    return StepArrays(
        next_obs=np.zeros(obs_shape, obs_spec.dtype),
        reward=np.zeros(num_envs, np.float32),
        terminated=np.zeros(num_envs, np.bool_),
        truncated=np.zeros(num_envs, np.bool_),
        valid=np.ones(num_envs, np.bool_),
        obs=np.zeros(obs_shape, obs_spec.dtype),
    )


def obs_hash(obs: Array) -> str:
    """A fingerprint of one observation, exact to the last bit."""
    return hashlib.blake2b(obs.tobytes(), digest_size=8).hexdigest()
