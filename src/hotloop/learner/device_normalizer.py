"""Normalizing statistics on the device: the twin of `Normalizer` for fragments of tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from hotloop.policies import ObsScale
from hotloop.types import Array

_EPS = 1e-8
_MAX = float(np.finfo(np.float32).max)
_PREFIX = "normalizer."


class TensorSteps(Protocol):
    """What is looked at of T steps of N environments: raw tensors on the device."""

    obs: Tensor
    reward: Tensor
    terminated: Tensor
    truncated: Tensor


class TensorMoments:
    """Mean and variance of all that was seen, in float64; see `RunningMoments`.

    Attributes:
        mean: (*shape).
        var: (*shape), the population's; 1 before anything was seen.
        count: rows seen.
    """

    def __init__(self, shape: tuple[int, ...], device: torch.device) -> None:
        self.mean = torch.zeros(shape, dtype=torch.float64, device=device)
        self.var = torch.ones(shape, dtype=torch.float64, device=device)
        self.count = 0

    def update(self, rows: Tensor) -> None:
        """Take in `rows`, (M, *shape); the tensors are replaced, not changed."""
        num_rows = len(rows)
        rows = rows.to(torch.float64)
        mean, var = rows.mean(0), rows.var(0, correction=0)
        total = self.count + num_rows
        difference = mean - self.mean
        seen = self.var * self.count + var * num_rows
        self.var = (seen + difference.square() * (self.count * num_rows / total)) / total
        self.mean = self.mean + difference * (num_rows / total)
        self.count = total


class DeviceNormalizer:
    """Observations to mean 0 and standard deviation 1, rewards likewise; see `Normalizer`.

    Args:
        obs_shape: of one observation.
        num_envs: N.
        device: where fragments are.
        normalize_obs: whether observations are.
        normalize_reward: whether rewards are.
        clip_obs: bound on what the networks see, None for none.
        clip_reward: bound on the rewards that are learned from, None for none.
        gamma: γ; may change between fragments.
    """

    def __init__(
        self,
        obs_shape: tuple[int, ...],
        num_envs: int,
        *,
        device: torch.device,
        normalize_obs: bool,
        normalize_reward: bool,
        clip_obs: float | None,
        clip_reward: float | None,
        gamma: float,
    ) -> None:
        self._normalize_obs, self._normalize_reward = normalize_obs, normalize_reward
        self._clip_obs = None if clip_obs is None else float(min(clip_obs, _MAX))
        self._clip_reward = None if clip_reward is None else float(min(clip_reward, _MAX))
        self.gamma = gamma
        self._device = device
        self._obs = TensorMoments(obs_shape, device)
        self._returns = TensorMoments((), device)
        self._return = torch.zeros(num_envs, dtype=torch.float64, device=device)

    @property
    def obs_scale(self) -> ObsScale | None:
        """What the networks are to see of an observation, on the host: it is published."""
        if not self._normalize_obs and self._clip_obs is None:
            return None
        std = (self._obs.var + _EPS).sqrt().to(torch.float32)
        return ObsScale(
            mean=self._obs.mean.to(torch.float32).cpu().numpy(),
            std=std.cpu().numpy(),
            clip=np.inf if self._clip_obs is None else self._clip_obs,
        )

    def update(self, fragment: TensorSteps) -> None:
        """Take in a fragment's raw observations and rewards; `obs_scale` changes by it."""
        if self._normalize_obs:
            self._obs.update(fragment.obs.flatten(0, 1))
        if self._normalize_reward:
            self._returns.update(self._discounted_returns(fragment).flatten())

    def reward(self, reward: Tensor) -> Tensor:
        """Return what is learned from, float32, (T, N), from raw rewards of that shape."""
        if self._normalize_reward:
            reward = (reward / (self._returns.var + _EPS).sqrt()).to(torch.float32)
        if self._clip_reward is not None:
            reward = reward.clamp(-self._clip_reward, self._clip_reward)
        return reward

    def restart(self, envs: Sequence[int]) -> None:
        """Forget the running episodes of these environments."""
        if envs:
            self._return = self._return.clone()
            self._return[list(envs)] = 0.0

    def kept(self) -> Callable[[], dict[str, Array]]:
        """Return what gives host arrays for a checkpoint, as things are now."""
        tensors = {"return": self._return}
        counts: dict[str, int] = {}
        for name, moments in (("obs", self._obs), ("returns", self._returns)):
            tensors |= {f"{name}.mean": moments.mean, f"{name}.var": moments.var}
            counts[f"{name}.count"] = moments.count

        def arrays() -> dict[str, Array]:
            made: dict[str, Any] = {name: x.cpu().numpy() for name, x in tensors.items()}
            made |= {name: np.array(count, np.int64) for name, count in counts.items()}
            return {f"{_PREFIX}{name}": x for name, x in made.items()}

        return arrays

    def load(self, arrays: Mapping[str, Array]) -> None:
        """Go on from what `kept` gave."""

        def tensor(name: str) -> Tensor:
            return torch.from_numpy(np.asarray(arrays[f"{_PREFIX}{name}"])).to(self._device)

        for name, moments in (("obs", self._obs), ("returns", self._returns)):
            moments.mean, moments.var = tensor(f"{name}.mean"), tensor(f"{name}.var")
            moments.count = int(arrays[f"{_PREFIX}{name}.count"])
        self._return = tensor("return")

    def _discounted_returns(self, fragment: TensorSteps) -> Tensor:
        """Return G after each step, float64, (T, N); it goes on in the next fragment."""
        reward = fragment.reward.to(torch.float64)
        going_on = self.gamma * (~(fragment.terminated | fragment.truncated)).to(torch.float64)
        returns = torch.empty_like(reward)
        # What is carried over: γ G, or 0 where the episode ended.
        carried = self._return
        for t in range(len(reward)):
            torch.add(carried, reward[t], out=returns[t])
            carried = going_on[t] * returns[t]
        self._return = carried
        return returns
