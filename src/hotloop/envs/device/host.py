"""Device environments with NumPy arrays, copied once in each direction per step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from hotloop.base.transfer import to_host
from hotloop.envs.device.protocol import DeviceVectorEnv
from hotloop.envs.protocol import allocate_step
from hotloop.envs.spec import EnvSpec
from hotloop.errors import ConfigError, ShapeError
from hotloop.types import Array, Episode, RunningEpisode, StepArrays


class HostVectorEnv:
    """A `VectorEnv` of environments on a device.

    One seed, that of the first environment's episode, seeds all environments.
    """

    can_replay = False

    def __init__(self, envs: DeviceVectorEnv, spec: EnvSpec) -> None:
        self._envs, self._spec, self._first_env = envs, spec, spec.first_env
        self.num_envs = envs.num_envs
        self.obs_spec, self.action_spec = envs.obs_spec, envs.action_spec
        self._step_buffers = allocate_step(self.num_envs, self.obs_spec)
        self.mask = self._step_buffers.mask  # empty: device environments have no masks
        self._episode = np.full(envs.num_envs, -1, np.int64)
        self._return = np.zeros(envs.num_envs, np.float64)
        self._length = np.zeros(envs.num_envs, np.int64)
        self._finished: list[Episode] = []

    def reset(self, first_episode: int | None = None) -> Array:
        """See `VectorEnv`."""
        first = int(self._episode.max()) + 1 if first_episode is None else first_episode
        self._episode[:], self._return[:], self._length[:] = first, 0.0, 0
        return to_host(self._envs.reset(self._spec.episode_seed(0, first))).copy()

    def step(self, action: Array, out: StepArrays | None = None) -> StepArrays:
        """See `VectorEnv`."""
        shape = (self.num_envs, *self.action_spec.shape)
        if action.shape != shape:
            raise ShapeError(
                f"`action` must have shape {shape}, got {action.shape}: pass one action for "
                "each environment"
            )
        step = self._envs.step(torch.from_numpy(action).to(self._envs.device))
        out = out or self._step_buffers
        for name in ("next_obs", "reward", "terminated", "truncated", "obs"):
            getattr(out, name)[...] = to_host(getattr(step, name))
        out.valid.fill(True)
        self._return += out.reward
        self._length += 1
        is_ended = out.terminated | out.truncated
        for env in np.flatnonzero(is_ended).tolist():
            episode, total = int(self._episode[env]), float(self._return[env])
            self._finished.append(
                Episode(self._first_env + env, episode, total, int(self._length[env]))
            )
        self._episode += is_ended
        self._return[is_ended], self._length[is_ended] = 0.0, 0
        return out

    def running_episodes(self) -> list[tuple[int, int]]:
        """See `VectorEnv`."""
        return list(zip(self._episode.tolist(), self._length.tolist(), strict=True))

    def resume(
        self,
        episodes: Sequence[RunningEpisode],
        on_step: Callable[[], None] = lambda: None,
    ) -> tuple[Array, list[int]]:
        """See `VectorEnv`. New episodes begin in all environments."""
        on_step()
        obs = self.reset(1 + max(episode.episode for episode in episodes))
        return obs, list(range(self.num_envs))

    def pop_episodes(self) -> list[Episode]:
        """See `VectorEnv`."""
        finished, self._finished = self._finished, []
        return finished

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Raise ConfigError: there are no single environments."""
        raise ConfigError(
            f"`{name}` can't be read or set: {self._spec.name} steps all environments as tensors, "
            "without single ones. Pass it in `env_kwargs`"
        )

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """See `call`."""
        return self.call(name)

    def set_attr(self, name: str, values: Any) -> None:
        """See `call`."""
        self.call(name)

    def close(self) -> None:
        """Close the environments."""
        self._envs.close()
