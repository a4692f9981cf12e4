"""Hindsight experience replay (HER): replayed transitions with an achieved goal as their goal.

Andrychowicz et al. 2017, "Hindsight Experience Replay", arXiv:1707.01495. Observations are a dict
with `achieved_goal` and `desired_goal`, and the environment has `compute_reward(achieved_goal,
desired_goal, info)`, as in Gymnasium-Robotics. A share of each batch's transitions gets another
goal: the goal achieved at a later step of the episode (`future`), or at its last step (`final`).
Their rewards are recomputed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from hotloop.envs import ObsSpec, make_env
from hotloop.errors import ConfigError, EnvironmentFailure
from hotloop.importing import describe_exception
from hotloop.system.memory import require_memory
from hotloop.types import Array, Fragment

_ACHIEVED, _DESIRED = "achieved_goal", "desired_goal"
# The attributes stored in a checkpoint, by key.
_CHECKPOINT_ARRAYS = {
    "goals": "_goals",
    "last": "_episode_end",
    "place": "_location",
    "count": "_num_steps",
    "begun": "_episode_start",
}
# The number of the random stream, combined with the run's seed.
_STREAM = 3


class Hindsight:
    """The achieved goals of a replay buffer's transitions, and the relabeling of batches.

    Each environment numbers its transitions consecutively, and a ring buffer keeps the latest ones.

    Args:
        environment: an id or a factory, to make an environment that computes rewards.
        obs_spec: the layout of observations.
        num_envs: N.

    Raises:
        ConfigError: observations have no goals, or the environment has no `compute_reward`.
    """

    def __init__(
        self, config: Any, environment: str | Callable[..., Any], obs_spec: ObsSpec, num_envs: int
    ) -> None:
        fields = {part.name: part for part in obs_spec.layout}
        if not {_ACHIEVED, _DESIRED} <= fields.keys():
            raise ConfigError(
                f"`hindsight` needs dict observations with '{_ACHIEVED}' and "
                f"'{_DESIRED}', got {', '.join(map(repr, fields)) if any(fields) else 'no dict'}: "
                "leave it out, or choose an environment with goals"
            )
        achieved, desired = fields[_ACHIEVED].shape, fields[_DESIRED].shape
        if achieved != desired:
            raise ConfigError(
                f"`hindsight` needs goals of one shape, got {achieved} achieved and {desired} "
                "desired: correct the observation space"
            )
        self._strategy, self._share = config.hindsight, config.hindsight_share
        self._seed, self._spec = config.seed, obs_spec
        self._num_batches = 0
        self._capacity = config.buffer_size
        # Transitions to keep of each environment. The buffer has at most this many of each.
        self._env_capacity = -(-self._capacity // num_envs) + 1
        size = int(np.prod(achieved))
        require_memory(
            4 * self._env_capacity * num_envs * (size + 2),
            "the goals of `hindsight`",
            "lower `buffer_size`",
        )
        self._goals = np.zeros((num_envs, self._env_capacity, *achieved), np.float32)
        # The number of the last transition of each transition's episode, −1 while it continues.
        self._episode_end = np.zeros((num_envs, self._env_capacity), np.int64)
        # The environment and the number of the transition at each index of the buffer.
        self._location = np.full((self._capacity, 2), -1, np.int64)
        self._num_known = 0  # transitions added to the buffer so far
        self._num_steps = np.zeros(num_envs, np.int64)
        self._episode_start = np.zeros(num_envs, np.int64)  # numbers of first transitions
        self._compute_reward = _make_reward_function(environment, config.env_kwargs, achieved)
        self._clip_reward = config.clip_reward

    def add(self, fragment: Fragment, first_number: int) -> None:
        """Record the achieved goals of a fragment, stored from transition `first_number` on."""
        achieved = self._spec.unflatten(fragment.next_obs)[_ACHIEVED]
        ends = fragment.terminated | fragment.truncated
        # Transitions that were added from elsewhere have no goals.
        unknown = np.arange(max(self._num_known, first_number - self._capacity), first_number)
        self._location[unknown % self._capacity] = -1
        number = first_number
        for t in range(fragment.num_steps):
            envs = fragment.first_env + np.flatnonzero(fragment.valid[t])
            rows = envs - fragment.first_env
            counts = self._num_steps[envs]
            slots = counts % self._env_capacity
            self._goals[envs, slots] = achieved[t, rows]
            self._episode_end[envs, slots] = -1  # continues
            indices = (number + np.arange(len(envs))) % self._capacity
            self._location[indices, 0], self._location[indices, 1] = envs, counts
            self._num_steps[envs] += 1
            number += len(envs)
            for env in envs[ends[t, rows]].tolist():
                self.cut(env)
        self._num_known = number

    def relabel(self, batch: Any) -> None:
        """Replace goals and rewards of a share of a batch in place, by its transition numbers."""
        rng = np.random.default_rng((self._seed, _STREAM, self._num_batches))
        self._num_batches += 1
        locations = self._location[batch.index % self._capacity]
        is_known = locations[:, 0] >= 0
        chosen = np.flatnonzero((rng.random(len(locations)) < self._share) & is_known)
        if not len(chosen):
            return
        envs, numbers = locations[chosen].T
        last = self._episode_end[envs, numbers % self._env_capacity]
        last = np.where(last < 0, self._num_steps[envs] - 1, last)
        if self._strategy == "future":
            last = rng.integers(numbers, last, endpoint=True)
        goals = self._goals[envs, last % self._env_capacity]
        for obs in (batch.obs, batch.next_obs):
            self._spec.unflatten(obs)[_DESIRED][chosen] = goals
        achieved = self._spec.unflatten(batch.next_obs)[_ACHIEVED][chosen]
        reward = self._compute_reward(achieved, goals)
        # Stored rewards are clipped too.
        batch.reward[chosen] = (
            reward
            if self._clip_reward is None
            else reward.clip(-self._clip_reward, self._clip_reward)
        )

    def to_arrays(self) -> dict[str, Array]:
        """Return the arrays for a checkpoint with the buffer."""
        arrays = {
            f"hindsight.{key}": getattr(self, name).copy()
            for key, name in _CHECKPOINT_ARRAYS.items()
        }
        counts = np.array([self._num_batches, self._num_known], np.int64)
        return {**arrays, "hindsight.counts": counts}

    def load(self, arrays: Mapping[str, Array]) -> None:
        """Restore the output of `to_arrays`."""
        for key, name in _CHECKPOINT_ARRAYS.items():
            getattr(self, name)[...] = arrays[f"hindsight.{key}"]
        self._num_batches, self._num_known = arrays["hindsight.counts"].tolist()

    def cut(self, env: int | None = None) -> None:
        """End the current episode of an environment, or of all, at its last transition."""
        if env is None:
            for index in range(len(self._num_steps)):
                self.cut(index)
            return
        last = int(self._num_steps[env]) - 1
        first = max(int(self._episode_start[env]), last + 1 - self._env_capacity)
        self._episode_end[env, np.arange(first, last + 1) % self._env_capacity] = last
        self._episode_start[env] = last + 1


def _make_reward_function(
    environment: str | Callable[..., Any],
    env_kwargs: Mapping[str, Any],
    shape: tuple[int, ...],
) -> Callable[[Array, Array], Array]:
    """Return a function from achieved and desired goals, (B, *shape), to rewards, float32, (B,)."""
    # Raises ConfigError without `compute_reward`, EnvironmentFailure if it raised.
    env = make_env(environment, env_kwargs)
    compute = getattr(env.unwrapped, "compute_reward", None)
    if not callable(compute):
        env.close()
        raise ConfigError(
            "`hindsight` needs an environment with `compute_reward(achieved_goal, desired_goal, "
            f"info)`, and {type(env.unwrapped).__name__} has none: add it, or leave `hindsight` out"
        )

    def one_by_one(achieved: Array, desired: Array) -> Array:
        pairs = zip(achieved, desired, strict=True)
        return np.array([compute(goal, other_goal, {}) for goal, other_goal in pairs], np.float32)

    def in_batches(achieved: Array, desired: Array) -> Array:
        return np.asarray(compute(achieved, desired, {}), np.float32)

    rng = np.random.default_rng(0)
    achieved, desired = rng.standard_normal((2, 3, *shape)).astype(np.float32)
    desired[0] = achieved[0]
    try:
        expected = one_by_one(achieved, desired)
    except Exception as error:
        raise EnvironmentFailure(
            f"`compute_reward` raised {describe_exception(error)}: it is called with goals of "
            f"shape {shape} and an empty `info`"
        ) from error
    try:
        batched = in_batches(achieved, desired)
    except Exception:
        return one_by_one
    is_same = batched.shape == expected.shape and np.allclose(batched, expected)
    return in_batches if is_same else one_by_one
