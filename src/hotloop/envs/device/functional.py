"""Vector environments from functions of tensors, with resets and counter-based randomness."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from hotloop.envs.device.protocol import DeviceStep, TensorEnvironment, Tensors
from hotloop.ops.noise import counter_uniform, device_seed

# Stream of the random numbers for initial states. Acting uses streams 0 and 1.
RESET_STREAM = 2


class TensorVectorEnv:
    """N environments of one kind. See `DeviceVectorEnv`.

    `begin` and `advance` are functions of tensors: use them to compile or capture many steps, and
    store the state outside. `reset` and `step` store it in this object.

    Args:
        environment: functions of one kind of environment.
        num_envs: N.
        device: device of the tensors.
    """

    def __init__(self, environment: TensorEnvironment, num_envs: int, device: torch.device) -> None:
        self._environment, self.num_envs, self.device = environment, num_envs, device
        self.obs_spec, self.action_spec = environment.obs_spec, environment.action_spec
        self._bounds: tuple[Tensor, Tensor] | None = None
        spec = self.action_spec
        if spec.kind == "box":
            low, high = (
                torch.tensor(bound, dtype=torch.float32, device=device).reshape(spec.shape)
                for bound in (spec.low, spec.high)
            )
            self._bounds = low, high
        self._key = device_seed(0, device)
        self._clock = torch.zeros((), dtype=torch.int64, device=device)
        self._state: Tensors = {}

    def draw_uniform(self, key: Tensor, clock: Tensor, num_steps: int) -> Tensor:
        """Return random numbers for T calls, each of `begin` or `advance`.

        Args:
            key: key of the run, see `device_seed`.
            clock: number of earlier calls, int64, 0-d.
            num_steps: T.

        Returns:
            float32, (T, N, U).
        """
        return counter_uniform(
            key,
            first_step=clock,
            num_steps=num_steps,
            num_envs=self.num_envs,
            size=self._environment.num_uniform,
            stream=RESET_STREAM,
        )

    def begin(self, uniform: Tensor) -> tuple[Tensors, Tensor]:
        """Return initial states and observations from random numbers, (N, U)."""
        state = self._environment.initial(uniform)
        length = torch.zeros(self.num_envs, dtype=torch.int64, device=self.device)
        return {**state, "length": length}, self._environment.observation(state)

    def advance(
        self, state: Tensors, action: Tensor, uniform: Tensor
    ) -> tuple[Tensors, DeviceStep]:
        """Return the next state and the step. `uniform` holds random numbers, (N, U)."""
        before = {name: x for name, x in state.items() if name != "length"}
        if self._bounds is not None:
            action = torch.clamp(action, *self._bounds)
        after, reward, terminated = self._environment.step(before, action)
        length = state["length"] + 1
        limit = self._environment.max_episode_steps
        truncated = torch.zeros_like(terminated) if limit is None else length >= limit
        is_ended = terminated | truncated
        initial = self._environment.initial(uniform)
        next_obs = self._environment.observation(after)
        step = DeviceStep(
            next_obs=next_obs,
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            obs=select_by_end(is_ended, self._environment.observation(initial), next_obs),
        )
        next_state = {name: select_by_end(is_ended, initial[name], x) for name, x in after.items()}
        return {**next_state, "length": length.masked_fill(is_ended, 0)}, step

    def reset(self, seed: int) -> Tensor:
        """See `DeviceVectorEnv`."""
        self._key.copy_(device_seed(seed, self.device))
        self._clock.zero_()
        self._state, obs = self.begin(self._next_uniform())
        return obs.clone()

    def step(self, action: Tensor) -> DeviceStep:
        """See `DeviceVectorEnv`."""
        self._state, step = self.advance(self._state, action, self._next_uniform())
        return step

    def state(self) -> Tensors:
        """See `DeviceVectorEnv`."""
        tensors = {**self._state, "key": self._key, "clock": self._clock}
        return {name: x.clone() for name, x in tensors.items()}

    def load(self, state: Mapping[str, Any]) -> None:
        """See `DeviceVectorEnv`."""
        moved = {name: x.to(self.device).clone() for name, x in state.items()}
        self._key, self._clock = moved.pop("key"), moved.pop("clock")
        self._state = moved

    def close(self) -> None:
        """See `DeviceVectorEnv`."""

    def _next_uniform(self) -> Tensor:
        uniform = self.draw_uniform(self._key, self._clock, 1)[0]
        self._clock.add_(1)
        return uniform


def select_by_end(is_ended: Tensor, initial: Tensor, current: Tensor) -> Tensor:
    """Return rows of `initial` where `is_ended`, bool, (N,), and of `current` elsewhere."""
    return torch.where(is_ended.view(-1, *[1] * (current.ndim - 1)), initial, current)
