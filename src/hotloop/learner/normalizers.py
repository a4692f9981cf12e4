"""Running statistics that normalize observations and rewards, in arrays or on a device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from hotloop.base.transfer import to_device, to_host
from hotloop.errors import CheckpointError
from hotloop.ops.arrays import namespace
from hotloop.policies import ObsScale
from hotloop.types import Array, Fragment

_EPS = 1e-8
_MAX = float(np.finfo(np.float32).max)
_PRECISION = float(np.finfo(np.float32).eps)  # relative precision of stored observations


class RunningMoments:
    """Running mean and variance, in float64.

    Chan et al. 1979, "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances".
    Merging moments avoids a growing sum of squares, whose rounding would hide the variance.

    Args:
        shape: shape of a row.
        device: device of tensors. None: rows are arrays.

    Attributes:
        mean: (*shape).
        var: population variance, (*shape), 1 before the first row.
        count: number of rows.
    """

    def __init__(self, shape: tuple[int, ...], device: torch.device | None = None) -> None:
        self._device = device
        self.mean: Any = to_device(np.zeros(shape, np.float64), device)
        self.var: Any = to_device(np.ones(shape, np.float64), device)
        self.count = 0

    def update(self, rows: Any) -> None:
        """Add `rows`, (M, *shape). The mean and variance become new arrays."""
        num_rows = len(rows)
        if not num_rows:
            return
        xp = namespace(rows)
        rows = xp.asarray(rows, dtype=xp.float64)
        mean = rows.mean(axis=0)
        var = xp.square(rows - mean).mean(axis=0)
        total = self.count + num_rows
        difference = mean - self.mean
        squares = self.var * self.count + var * num_rows
        self.var = (squares + xp.square(difference) * (self.count * num_rows / total)) / total
        self.mean = self.mean + difference * (num_rows / total)
        self.count = total

    def values(self) -> dict[str, Any]:
        """Return the statistics for a checkpoint."""
        return {"mean": self.mean, "var": self.var, "count": np.array(self.count, np.int64)}

    def load(self, arrays: Mapping[str, Array]) -> None:
        """Load the arrays of `values`.

        Raises:
            ValueError: they have another shape, or impossible numbers.
        """
        shape = tuple(self.mean.shape)
        shapes = [arrays[name].shape for name in ("mean", "var", "count")]
        if shapes != [shape, shape, ()]:
            raise ValueError(f"mean and variance must have shape {shape}, got {shapes[:2]}")
        are_finite = all(np.isfinite(array).all() for array in arrays.values())
        if not (are_finite and (arrays["var"] >= 0).all() and 0 <= arrays["count"] < 2**62):
            raise ValueError("they must be finite, and variance and count not negative")
        self.mean, self.var = (to_device(arrays[name], self._device) for name in ("mean", "var"))
        self.count = int(arrays["count"])


def normalizing_scale(mean: Array, var: Array, clip: float) -> ObsScale:
    """Return the scale that normalizes observations by their statistics.

    If a number never changed by more than its float32 precision, its spread is unknown. It is
    divided by 1, as in scikit-learn's `StandardScaler`, so that the result stays moderate if it
    changes after the training.

    Args:
        mean: float64, obs_shape.
        var: float64, obs_shape.
        clip: bound on the magnitude of normalized observations.
    """
    precision = _PRECISION * np.abs(mean)
    spread = np.where(var <= np.square(precision), 1.0, np.sqrt(var + _EPS))
    std = np.maximum(spread, precision).astype(np.float32)
    return ObsScale(mean=mean.astype(np.float32), std=std, clip=clip)


def as_clip(bound: float | None) -> float:
    """Return a bound on magnitudes for float32: infinity for None."""
    # NumPy would print a warning per fragment for bounds outside float32.
    return np.inf if bound is None else float(min(bound, _MAX))


class Normalizer:
    """A normalizer of observations to mean 0 and standard deviation 1, and of rewards.

    It divides rewards by the standard deviation of the discounted sum of rewards,
    G_t = r_t + γ (1 − ended_{t−1}) G_{t−1}. Rewards keep their signs. Engstrom et al. 2020,
    "Implementation Matters in Deep Policy Gradients", arXiv:2005.12729, algorithm 1.

    Args:
        obs_shape: shape of one observation.
        num_envs: N.
        normalize_obs: whether to normalize observations.
        normalize_reward: whether to normalize rewards.
        clip_obs: bound on the magnitude of normalized observations. None: no bound.
        fixed_scale: scale of observations that are not normalized. None: they stay unchanged.
        clip_reward: bound on the magnitude of (normalized) rewards. None: no bound.
        gamma: γ. It may change between fragments.
        device: device of fragments of tensors. None: they are arrays.
    """

    def __init__(
        self,
        obs_shape: tuple[int, ...],
        num_envs: int,
        *,
        normalize_obs: bool,
        normalize_reward: bool,
        clip_obs: float | None,
        clip_reward: float | None,
        gamma: float,
        device: torch.device | None = None,
        fixed_scale: ObsScale | None = None,
    ) -> None:
        self._normalize_obs = normalize_obs
        self._normalize_reward = normalize_reward
        self._clip_obs, self._clip_reward = as_clip(clip_obs), as_clip(clip_reward)
        self._fixed_scale = fixed_scale
        self.gamma = gamma
        self._device = device
        self._obs = RunningMoments(obs_shape, device)
        self._returns = RunningMoments((), device)
        self._running_return: Any = to_device(np.zeros(num_envs, np.float64), device)

    @property
    def obs_scale(self) -> ObsScale | None:
        """Return the scale of observations in arrays, or None if they stay unchanged."""
        if not self._normalize_obs:
            return self._fixed_scale
        mean, var = to_host(self._obs.mean), to_host(self._obs.var)
        return normalizing_scale(mean, var, self._clip_obs)

    def add_obs(self, obs: Any) -> None:
        """Add raw observations, (M, *obs_shape), that no fragment holds."""
        if self._normalize_obs:
            self._obs.update(obs)

    def update(self, fragment: Fragment) -> None:
        """Add a fragment's raw observations and rewards to the statistics."""
        if self._normalize_obs:
            self._obs.update(fragment.valid_rows(fragment.obs))
        if self._normalize_reward:
            first = fragment.first_env
            self.restart([first + i for i in fragment.restarted_envs])
            self._returns.update(fragment.valid_rows(self._discounted_returns(fragment)))

    def reward(self, reward: Any) -> Any:
        """Return the rewards to learn from, float32, (T, N), for raw rewards of that shape."""
        if self._normalize_reward:
            xp = namespace(reward)
            spread = xp.sqrt(self._returns.var + _EPS)
            reward = xp.asarray(reward / spread, dtype=xp.float32)
        if self._clip_reward < np.inf:
            reward = reward.clip(-self._clip_reward, self._clip_reward)
        return reward

    def restart(self, envs: Sequence[int]) -> None:
        """Reset the discounted sums of these environments."""
        if envs:
            is_kept = np.ones(len(self._running_return))
            is_kept[list(envs)] = 0.0
            self._running_return = self._running_return * to_device(is_kept, self._device)

    def to_arrays(self) -> dict[str, Array]:
        """Return arrays for a checkpoint. Later updates do not change them."""
        return self.array_snapshot()()

    def array_snapshot(self) -> Callable[[], dict[str, Array]]:
        """Return a function that returns the current statistics as arrays, for a checkpoint."""
        values = {
            **{f"normalizer.obs.{name}": x for name, x in self._obs.values().items()},
            **{f"normalizer.returns.{name}": x for name, x in self._returns.values().items()},
            "normalizer.return": self._running_return,
        }
        return lambda: {name: to_host(x) for name, x in values.items()}

    def load(self, arrays: Mapping[str, Array]) -> None:
        """Load the arrays of `to_arrays`.

        Raises:
            CheckpointError: see `load_obs`.
        """
        self.load_obs(arrays)
        _load_moments(self._returns, "returns", arrays)
        running_return = arrays["normalizer.return"]
        if running_return.shape != tuple(self._running_return.shape):
            raise _damaged(
                "return", f"there is one for each environment, got {running_return.shape}"
            )
        self._running_return = to_device(running_return, self._device)

    def load_obs(self, arrays: Mapping[str, Array]) -> None:
        """Load only the statistics of observations from `to_arrays`.

        Raises:
            CheckpointError: they have another shape, or impossible numbers.
        """
        _load_moments(self._obs, "obs", arrays)

    def _discounted_returns(self, fragment: Fragment) -> Any:
        """Return G after each step, float64, (T, N), and store it for the next fragment."""
        xp = namespace(fragment.reward)
        first, stop = fragment.first_env, fragment.first_env + fragment.num_envs
        reward = xp.asarray(fragment.reward, dtype=xp.float64)
        is_running = ~(fragment.terminated | fragment.truncated)
        discount = self.gamma * xp.asarray(is_running, dtype=xp.float64)
        returns = xp.empty_like(reward)
        # γ G of the previous step, or 0 after the end of an episode.
        discounted = self._running_return[first:stop]
        for t in range(fragment.num_steps):
            xp.add(discounted, reward[t], out=returns[t])
            discounted = discount[t] * returns[t]
        # Make a new array, since a checkpoint may use the old one.
        parts = [self._running_return[:first], discounted, self._running_return[stop:]]
        self._running_return = xp.concatenate(parts)
        return returns


def _load_moments(moments: RunningMoments, key: str, arrays: Mapping[str, Array]) -> None:
    names = ("mean", "var", "count")
    try:
        moments.load({name: arrays[f"normalizer.{key}.{name}"] for name in names})
    except ValueError as error:
        raise _damaged(key, str(error)) from error


def _damaged(key: str, problem: str) -> CheckpointError:
    return CheckpointError(
        f"the checkpoint's statistics `normalizer.{key}` can't be used ({problem}): choose another "
        "checkpoint, or start a new training"
    )
