"""Running statistics on the device: the twin of `Normalizer` for fragments of tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from hotloop.learner.normalizers import as_clip, normalizing_scale
from hotloop.policies import ObsScale
from hotloop.types import Array

_EPS = 1e-8
_PREFIX = "normalizer."


class TensorSteps(Protocol):
    """The fields of a fragment that normalizers need: T steps of N environments, raw tensors."""

    obs: Tensor
    reward: Tensor
    terminated: Tensor
    truncated: Tensor


class TensorMoments:
    """Running mean and variance, in float64, see `RunningMoments`.

    Attributes:
        mean: (*shape).
        var: population variance, (*shape), 1 before the first row.
        count: number of rows.
    """

    def __init__(self, shape: tuple[int, ...], device: torch.device) -> None:
        self.mean = torch.zeros(shape, dtype=torch.float64, device=device)
        self.var = torch.ones(shape, dtype=torch.float64, device=device)
        self.count = 0

    def update(self, rows: Tensor) -> None:
        """Add `rows`, (M, *shape). New tensors replace the old ones, which do not change."""
        num_rows = len(rows)
        rows = rows.to(torch.float64)
        mean, var = rows.mean(0), rows.var(0, correction=0)
        total = self.count + num_rows
        difference = mean - self.mean
        squares = self.var * self.count + var * num_rows
        self.var = (squares + difference.square() * (self.count * num_rows / total)) / total
        self.mean = self.mean + difference * (num_rows / total)
        self.count = total


class DeviceNormalizer:
    """A normalizer of observations and rewards on the device, see `Normalizer`.

    Args:
        obs_shape: shape of one observation.
        num_envs: N.
        device: the device of fragments.
        normalize_obs: whether to normalize observations.
        normalize_reward: whether to normalize rewards.
        clip_obs: bound on the magnitude of normalized observations. None: no bound.
        fixed_scale: scale of observations that are not normalized. None: they stay unchanged.
        clip_reward: bound on the magnitude of (normalized) rewards. None: no bound.
        gamma: γ. It may change between fragments.
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
        fixed_scale: ObsScale | None = None,
    ) -> None:
        self._normalize_obs, self._normalize_reward = normalize_obs, normalize_reward
        self._clip_obs, self._clip_reward = as_clip(clip_obs), as_clip(clip_reward)
        self._fixed_scale = fixed_scale
        self.gamma = gamma
        self._device = device
        self._obs = TensorMoments(obs_shape, device)
        self._returns = TensorMoments((), device)
        self._running_return = torch.zeros(num_envs, dtype=torch.float64, device=device)

    @property
    def obs_scale(self) -> ObsScale | None:
        """Return the scale of observations as host arrays, or None if they stay unchanged."""
        if not self._normalize_obs:
            return self._fixed_scale
        mean, var = (x.cpu().numpy() for x in (self._obs.mean, self._obs.var))
        return normalizing_scale(mean, var, self._clip_obs)

    def update(self, fragment: TensorSteps) -> None:
        """Add a fragment's raw observations and rewards to the statistics."""
        if self._normalize_obs:
            self._obs.update(fragment.obs.flatten(0, 1))
        if self._normalize_reward:
            self._returns.update(self._discounted_returns(fragment).flatten())

    def reward(self, reward: Tensor) -> Tensor:
        """Return the rewards to learn from, float32, (T, N), for raw rewards of that shape."""
        if self._normalize_reward:
            reward = (reward / (self._returns.var + _EPS).sqrt()).to(torch.float32)
        if self._clip_reward < np.inf:
            reward = reward.clamp(-self._clip_reward, self._clip_reward)
        return reward

    def restart(self, envs: Sequence[int]) -> None:
        """Reset the discounted sums of these environments."""
        if envs:
            self._running_return = self._running_return.clone()
            self._running_return[list(envs)] = 0.0

    def array_snapshot(self) -> Callable[[], dict[str, Array]]:
        """Return a function that returns the current statistics as arrays, for a checkpoint."""
        tensors = {"return": self._running_return}
        counts: dict[str, int] = {}
        for name, moments in (("obs", self._obs), ("returns", self._returns)):
            tensors |= {f"{name}.mean": moments.mean, f"{name}.var": moments.var}
            counts[f"{name}.count"] = moments.count

        def arrays() -> dict[str, Array]:
            values: dict[str, Any] = {name: x.cpu().numpy() for name, x in tensors.items()}
            values |= {name: np.array(count, np.int64) for name, count in counts.items()}
            return {f"{_PREFIX}{name}": x for name, x in values.items()}

        return arrays

    def load(self, arrays: Mapping[str, Array]) -> None:
        """Load the arrays of `array_snapshot`."""

        def tensor(name: str) -> Tensor:
            return torch.from_numpy(np.asarray(arrays[f"{_PREFIX}{name}"])).to(self._device)

        for name, moments in (("obs", self._obs), ("returns", self._returns)):
            moments.mean, moments.var = tensor(f"{name}.mean"), tensor(f"{name}.var")
            moments.count = int(arrays[f"{_PREFIX}{name}.count"])
        self._running_return = tensor("return")

    def _discounted_returns(self, fragment: TensorSteps) -> Tensor:
        """Return G after each step, float64, (T, N), and store it for the next fragment."""
        reward = fragment.reward.to(torch.float64)
        discount = self.gamma * (~(fragment.terminated | fragment.truncated)).to(torch.float64)
        returns = torch.empty_like(reward)
        # γ G of the previous step, or 0 after the end of an episode.
        discounted = self._running_return
        for t in range(len(reward)):
            torch.add(discounted, reward[t], out=returns[t])
            discounted = discount[t] * returns[t]
        self._running_return = discounted
        return returns
