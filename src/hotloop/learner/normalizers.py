"""Normalizing statistics of observations and rewards: updated from fragments, published frozen."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from hotloop.policies import ObsScale
from hotloop.types import Array, Fragment

_EPS = 1e-8
_MAX = float(np.finfo(np.float32).max)


class RunningMoments:
    """Mean and variance of all that was seen, in float64.

    Chan et al. 1979, "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances":
    batches are merged, so that no sum of squares grows until it drowns the variance.

    Attributes:
        mean: (*shape).
        var: (*shape), the population's; 1 before anything was seen.
        count: rows seen.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.mean = np.zeros(shape, np.float64)
        self.var = np.ones(shape, np.float64)
        self.count = 0

    def update(self, rows: Array) -> None:
        """Take in `rows`, (M, *shape)."""
        num_rows = len(rows)
        if not num_rows:
            return
        rows = rows.astype(np.float64)
        mean, var = rows.mean(axis=0), rows.var(axis=0)
        total = self.count + num_rows
        difference = mean - self.mean
        seen = self.var * self.count + var * num_rows
        self.var = (seen + np.square(difference) * (self.count * num_rows / total)) / total
        self.mean = self.mean + difference * (num_rows / total)
        self.count = total

    def to_arrays(self) -> dict[str, Array]:
        """For a checkpoint."""
        return {"mean": self.mean, "var": self.var, "count": np.array(self.count, np.int64)}

    def load(self, arrays: Mapping[str, Array]) -> None:
        """The inverse of `to_arrays`."""
        self.mean, self.var = arrays["mean"], arrays["var"]
        self.count = int(arrays["count"])


class Normalizer:
    """Observations to mean 0 and standard deviation 1, rewards to returns of standard deviation 1.

    A reward is divided by the standard deviation of the discounted sum of rewards,
    G_t = r_t + γ (1 − ended_{t−1}) G_{t−1}, and keeps its sign: Engstrom et al. 2020,
    "Implementation Matters in Deep Policy Gradients", arXiv:2005.12729, algorithm 1.

    Args:
        obs_shape: of one observation.
        num_envs: N.
        normalize_obs: whether observations are.
        normalize_reward: whether rewards are.
        clip_obs: bound on what the networks see, None for none.
        clip_reward: bound on the rewards that are learned from, None for none.
        gamma: γ; may change between fragments.
        mask_size: the last numbers of an observation, which stay as they are.
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
        mask_size: int = 0,
    ) -> None:
        self._normalize_obs = normalize_obs
        self._normalize_reward = normalize_reward
        # A greater bound is none, and NumPy would warn of it at each fragment.
        self._clip_obs = None if clip_obs is None else float(min(clip_obs, _MAX))
        self._clip_reward = None if clip_reward is None else float(min(clip_reward, _MAX))
        self.gamma = gamma
        self._mask_size = mask_size
        self._obs = RunningMoments(obs_shape)
        self._returns = RunningMoments(())
        self._return = np.zeros(num_envs, np.float64)

    @property
    def obs_scale(self) -> ObsScale | None:
        """What the networks are to see of an observation; None where it is left as it is."""
        if not self._normalize_obs and self._clip_obs is None:
            return None
        mean = self._obs.mean.astype(np.float32)
        std = np.sqrt(self._obs.var + _EPS).astype(np.float32)
        if self._mask_size:
            mean[-self._mask_size :], std[-self._mask_size :] = 0.0, 1.0
        return ObsScale(
            mean=mean,
            std=std,
            clip=np.inf if self._clip_obs is None else self._clip_obs,
        )

    def update(self, fragment: Fragment) -> None:
        """Take in a fragment's raw observations and rewards; `obs_scale` changes by it."""
        if self._normalize_obs:
            self._obs.update(fragment.obs[fragment.valid])
        if self._normalize_reward:
            first = fragment.first_env
            self.restart([first + i for i in fragment.restarted_envs])
            self._returns.update(self._discounted_returns(fragment)[fragment.valid])

    def reward(self, reward: Array) -> Array:
        """What is learned from, float32, (T, N), from raw rewards of that shape."""
        if self._normalize_reward:
            reward = (reward / np.sqrt(self._returns.var + _EPS)).astype(np.float32)
        if self._clip_reward is not None:
            reward = reward.clip(-self._clip_reward, self._clip_reward)
        return reward

    def restart(self, envs: Sequence[int]) -> None:
        """Forget the running episodes of these environments."""
        if envs:
            self._return = self._return.copy()
            self._return[list(envs)] = 0.0

    def to_arrays(self) -> dict[str, Array]:
        """For a checkpoint; later updates leave these arrays alone."""
        return {
            **{f"normalizer.obs.{name}": x for name, x in self._obs.to_arrays().items()},
            **{f"normalizer.returns.{name}": x for name, x in self._returns.to_arrays().items()},
            "normalizer.return": self._return,
        }

    def kept(self) -> Callable[[], dict[str, Array]]:
        """What gives the same, as things are now."""
        return self.to_arrays().copy

    def load(self, arrays: Mapping[str, Array]) -> None:
        """The inverse of `to_arrays`."""
        for key, moments in (("obs", self._obs), ("returns", self._returns)):
            names = ("mean", "var", "count")
            moments.load({name: arrays[f"normalizer.{key}.{name}"] for name in names})
        self._return = arrays["normalizer.return"]

    def _discounted_returns(self, fragment: Fragment) -> Array:
        """G after each step, float64, (T, N); goes on in those environments' next fragment."""
        envs = slice(fragment.first_env, fragment.first_env + fragment.num_envs)
        returns = np.empty(fragment.reward.shape, np.float64)
        going_on = self.gamma * ~(fragment.terminated | fragment.truncated)
        # What is carried over: γ G, or 0 where the episode ended.
        carried = self._return[envs]
        for t in range(fragment.num_steps):
            returns[t] = carried + fragment.reward[t]
            carried = going_on[t] * returns[t]
        self._return = self._return.copy()  # a checkpoint may hold it
        self._return[envs] = carried
        return returns
