"""Environments made of functions of tensors: resets made alike, randomness by counter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from hotloop.envs.device.protocol import DeviceStep, TensorEnvironment, Tensors
from hotloop.envs.spaces import ActionSpec, ObsSpec
from hotloop.ops import tensor_noise

# Of the random numbers that first states are made of; acting draws from 0 and 1.
RESETS = 2


class TensorVectorEnv:
    """N environments of one kind; see `DeviceVectorEnv`.

    Who wants to compile or capture many steps calls `begun` and `advanced`, which are functions of
    tensors, and keeps the state. `reset` and `step` keep it here.

    Args:
        kind: the functions.
        num_envs: N.
        device: where the tensors are.
    """

    def __init__(self, kind: TensorEnvironment, num_envs: int, device: torch.device) -> None:
        self._kind, self._num_envs, self._device = kind, num_envs, device
        self._bounds: tuple[Tensor, Tensor] | None = None
        spec = kind.action_spec
        if spec.kind == "box":
            low, high = (
                torch.tensor(bound, dtype=torch.float32, device=device).reshape(spec.shape)
                for bound in (spec.low, spec.high)
            )
            self._bounds = low, high
        self._key = tensor_noise.key_of(0, device)
        self._clock = torch.zeros((), dtype=torch.int64, device=device)
        self._state: Tensors = {}

    @property
    def num_envs(self) -> int:
        """N."""
        return self._num_envs

    @property
    def obs_spec(self) -> ObsSpec:
        """Shape, dtype and layout of one observation."""
        return self._kind.obs_spec

    @property
    def action_spec(self) -> ActionSpec:
        """Kind, shape and bounds of one action."""
        return self._kind.action_spec

    @property
    def device(self) -> torch.device:
        """Where all tensors are."""
        return self._device

    # --- functions of tensors -------------------------------------------------------------------

    def drawn(self, key: Tensor, clock: Tensor, num_steps: int) -> Tensor:
        """Return the random numbers of T calls: `begun` takes the first, each `advanced` one more.

        Args:
            key: of the run, see `tensor_noise.key_of`.
            clock: int64, 0-d, calls before these.
            num_steps: T.

        Returns:
            float32, (T, N, U).
        """
        return tensor_noise.uniform(
            key,
            clock,
            num_steps=num_steps,
            num_envs=self._num_envs,
            size=self._kind.num_uniform,
            stream=RESETS,
        )

    def begun(self, uniform: Tensor) -> tuple[Tensors, Tensor]:
        """Return first states and observations, from random numbers, (N, U)."""
        kind = self._kind.initial(uniform)
        length = torch.zeros(self._num_envs, dtype=torch.int64, device=self._device)
        return {**kind, "length": length}, self._kind.observation(kind)

    def advanced(
        self, state: Tensors, action: Tensor, uniform: Tensor
    ) -> tuple[Tensors, DeviceStep]:
        """Return what a step leads to, from random numbers, (N, U); nothing is changed in place."""
        before = {name: x for name, x in state.items() if name != "length"}
        if self._bounds is not None:
            action = torch.clamp(action, *self._bounds)
        after, reward, terminated = self._kind.step(before, action)
        length = state["length"] + 1
        limit = self._kind.max_episode_steps
        truncated = torch.zeros_like(terminated) if limit is None else length >= limit
        ended = terminated | truncated
        first = self._kind.initial(uniform)
        next_obs = self._kind.observation(after)
        step = DeviceStep(
            next_obs=next_obs,
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            obs=where_ended(ended, self._kind.observation(first), next_obs),
        )
        following = {name: where_ended(ended, first[name], x) for name, x in after.items()}
        return {**following, "length": length.masked_fill(ended, 0)}, step

    # --- the state kept here --------------------------------------------------------------------

    def reset(self, seed: int) -> Tensor:
        """See `DeviceVectorEnv`."""
        self._key.copy_(tensor_noise.key_of(seed, self._device))
        self._clock.zero_()
        self._state, obs = self.begun(self._next_uniform())
        return obs.clone()

    def step(self, action: Tensor) -> DeviceStep:
        """See `DeviceVectorEnv`."""
        self._state, step = self.advanced(self._state, action, self._next_uniform())
        return step

    def state(self) -> Tensors:
        """See `DeviceVectorEnv`."""
        kept = {**self._state, "key": self._key, "clock": self._clock}
        return {name: x.clone() for name, x in kept.items()}

    def load(self, state: Mapping[str, Any]) -> None:
        """See `DeviceVectorEnv`."""
        moved = {name: x.to(self._device).clone() for name, x in state.items()}
        self._key, self._clock = moved.pop("key"), moved.pop("clock")
        self._state = moved

    def close(self) -> None:
        """See `DeviceVectorEnv`."""

    def _next_uniform(self) -> Tensor:
        uniform = self.drawn(self._key, self._clock, 1)[0]
        self._clock.add_(1)
        return uniform


def where_ended(ended: Tensor, first: Tensor, following: Tensor) -> Tensor:
    """Return rows of the next episode where one ended, bool, (N,), and of this one elsewhere."""
    return torch.where(ended.view(-1, *[1] * (following.ndim - 1)), first, following)
