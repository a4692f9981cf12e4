"""Environments made of a simulation that steps many copies at once, in tensors of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from hotloop.envs.device.functional import RESETS, where_ended
from hotloop.envs.device.protocol import DeviceStep, Tensors
from hotloop.envs.spaces import ActionSpec, ObsSpec
from hotloop.ops import tensor_noise


class Simulation(Protocol):
    """N copies of a task, changed in place; MuJoCo Warp's, Isaac's or one of your own.

    None of its methods waits for the host. `SimulatedVectorEnv` makes environments of it.
    """

    @property
    def num_envs(self) -> int:
        """N."""
        ...

    @property
    def device(self) -> torch.device:
        """Where all tensors are."""
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
    def num_uniform(self) -> int:
        """U, how many random numbers the first state of an episode is made of."""
        ...

    @property
    def max_episode_steps(self) -> int | None:
        """Steps after which an episode is truncated; None: it never is."""
        ...

    def begin(self, which: Tensor, uniform: Tensor) -> None:
        """Put some copies into a first state, and leave the others alone.

        Args:
            which: bool, (N,).
            uniform: float32, (N, U), in (0, 1).
        """
        ...

    def advance(self, action: Tensor) -> None:
        """Make a step of every copy, with actions within their bounds, (N, *action_shape)."""
        ...

    def observation(self) -> Tensor:
        """Return what is observed now, (N, *obs_shape), in memory of its own or not."""
        ...

    def outcome(self, action: Tensor) -> tuple[Tensor, Tensor]:
        """Return the reward of the step just made, float32, and `terminated`, bool, (N,)."""
        ...

    def tensors(self) -> Tensors:
        """Return the tensors that all later steps depend on, to be read and written in place."""
        ...


class SimulatedVectorEnv:
    """N environments of a simulation; see `DeviceVectorEnv`.

    Args:
        simulation: itself.
    """

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        device, spec = simulation.device, simulation.action_spec
        self._bounds: tuple[Tensor, Tensor] | None = None
        if spec.kind == "box":
            low, high = (
                torch.tensor(bound, dtype=torch.float32, device=device).reshape(spec.shape)
                for bound in (spec.low, spec.high)
            )
            self._bounds = low, high
        self._own = {
            "key": tensor_noise.key_of(0, device),
            "clock": torch.zeros((), dtype=torch.int64, device=device),
            "length": torch.zeros(simulation.num_envs, dtype=torch.int64, device=device),
        }

    @property
    def num_envs(self) -> int:
        """N."""
        return self._simulation.num_envs

    @property
    def obs_spec(self) -> ObsSpec:
        """Shape, dtype and layout of one observation."""
        return self._simulation.obs_spec

    @property
    def action_spec(self) -> ActionSpec:
        """Kind, shape and bounds of one action."""
        return self._simulation.action_spec

    @property
    def device(self) -> torch.device:
        """Where all tensors are."""
        return self._simulation.device

    def reset(self, seed: int) -> Tensor:
        """See `DeviceVectorEnv`."""
        self._own["key"].copy_(tensor_noise.key_of(seed, self.device))
        self._own["clock"].zero_()
        self._own["length"].zero_()
        all_of_them = torch.ones(self.num_envs, dtype=torch.bool, device=self.device)
        self._simulation.begin(all_of_them, self._uniform())
        return self._simulation.observation().clone()

    def step(self, action: Tensor) -> DeviceStep:
        """See `DeviceVectorEnv`."""
        simulation, length = self._simulation, self._own["length"]
        if self._bounds is not None:
            action = torch.clamp(action, *self._bounds)
        simulation.advance(action)
        reward, terminated = simulation.outcome(action)
        next_obs = simulation.observation().clone()
        length.add_(1)
        limit = simulation.max_episode_steps
        truncated = torch.zeros_like(terminated) if limit is None else length >= limit
        ended = terminated | truncated
        length.masked_fill_(ended, 0)
        reward, terminated = reward.clone(), terminated.clone()  # which `begin` may overwrite
        simulation.begin(ended, self._uniform())
        obs = where_ended(ended, simulation.observation(), next_obs)
        return DeviceStep(next_obs, reward, terminated, truncated, obs)

    def state(self) -> Tensors:
        """See `DeviceVectorEnv`."""
        return {name: x.clone() for name, x in {**self._simulation.tensors(), **self._own}.items()}

    def load(self, state: Mapping[str, Any]) -> None:
        """See `DeviceVectorEnv`."""
        for name, x in {**self._simulation.tensors(), **self._own}.items():
            x.copy_(state[name])

    def close(self) -> None:
        """See `DeviceVectorEnv`."""

    def _uniform(self) -> Tensor:
        simulation = self._simulation
        drawn = tensor_noise.uniform(
            self._own["key"],
            self._own["clock"],
            num_steps=1,
            num_envs=simulation.num_envs,
            size=simulation.num_uniform,
            stream=RESETS,
        )[0]
        self._own["clock"].add_(1)
        return drawn
