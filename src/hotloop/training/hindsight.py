"""Hindsight experience replay (HER): replayed transitions with an achieved goal as their goal.

Andrychowicz et al. 2017, "Hindsight Experience Replay", arXiv:1707.01495. Observations are a dict
with `achieved_goal` and `desired_goal`, and the environment has `compute_reward(achieved_goal,
desired_goal, info)`, as in Gymnasium-Robotics. A share of each batch's transitions gets another
goal: the goal achieved at a later step of the episode (`future`), or at its last step (`final`).
Their rewards and terminations are recomputed.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from hotloop.base.memory import require_memory
from hotloop.envs import EnvSpec, ObsField, ObsSpec
from hotloop.errors import ConfigError, EnvironmentFailure
from hotloop.training.goal_functions import ACHIEVED, DESIRED, GoalFunctions
from hotloop.training.options import ReplayOptions
from hotloop.types import Array, Fragment

# The attributes stored in a checkpoint, by key.
_CHECKPOINT_ARRAYS = {
    "goals": "_goals",
    "last": "_episode_end",
    "place": "_location",
    "count": "_num_steps",
    "begun": "_episode_start",
    "oldest": "_oldest",
}
# The number of the random stream, combined with the run's seed.
_STREAM = 3


class Hindsight:
    """The achieved goals of a replay buffer's transitions, and the relabeling of batches.

    Each environment numbers its transitions consecutively, and a ring buffer keeps the latest ones
    of all environments. The environments' shares of it may differ: some fail or reset more often.

    Args:
        env_spec: an environment that computes rewards.
        obs_spec: the layout of observations.
        num_envs: N.

    Raises:
        ConfigError: observations have no goals, or the environment has no `compute_reward`.
        EnvironmentFailure: `compute_reward` failed for goals of the space.
    """

    def __init__(
        self, config: ReplayOptions, env_spec: EnvSpec, obs_spec: ObsSpec, num_envs: int
    ) -> None:
        field = _goal_field(obs_spec)
        self._strategy, self._share = config.hindsight, config.hindsight_share
        self._seed, self._spec = config.seed, obs_spec
        self._clip_reward = config.clip_reward
        self._num_batches = 0
        self._capacity = config.buffer_size
        if self._capacity < num_envs:
            raise ConfigError(
                f"`hindsight` needs a `buffer_size` of at least {num_envs}, a transition of each "
                f"environment, got {self._capacity}: raise it"
            )
        size_bytes = np.dtype(field.dtype).itemsize * int(np.prod(field.shape))
        require_memory(
            (size_bytes + 5 * 8) * self._capacity,
            "the goals of `hindsight`",
            "lower `buffer_size`",
        )
        # At each index of the buffer: the achieved goal, the environment, the number of the
        # transition, and the number of the last transition of its episode, −1 while it continues.
        self._goals = np.zeros((self._capacity, *field.shape), field.dtype)
        self._location = np.full((self._capacity, 2), -1, np.int64)
        self._episode_end = np.zeros(self._capacity, np.int64)
        self._num_known = 0  # transitions added to the buffer so far
        # The numbers of each environment's next transition, of the first one of its episode, and of
        # the oldest one in the buffer.
        self._num_steps = np.zeros(num_envs, np.int64)
        self._episode_start = np.zeros(num_envs, np.int64)
        self._oldest = np.zeros(num_envs, np.int64)
        self._index = _TransitionIndex(num_envs, self._capacity)
        self._functions = GoalFunctions(env_spec, field)
        self.close = self._functions.close
        self._may_warn = not self._functions.has_terminated

    def add(self, fragment: Fragment, first_number: int) -> None:
        """Record the achieved goals of a fragment, stored from transition `first_number` on."""
        achieved = self._spec.unflatten(fragment.next_obs)[ACHIEVED]
        # The row of a failed environment or of a reset is no transition, and follows an end.
        ends = fragment.terminated | fragment.truncated | ~fragment.valid
        if self._may_warn and (fragment.terminated & fragment.valid).any():
            self._warn_of_terminations()
        # Transitions that were added from elsewhere have no goals.
        unknown = np.arange(max(self._num_known, first_number - self._capacity), first_number)
        self._release(unknown % self._capacity)
        number = first_number
        for t in range(fragment.num_steps):
            rows = np.flatnonzero(fragment.valid[t])
            envs = fragment.first_env + rows
            counts = self._num_steps[envs]
            indices = (number + np.arange(len(envs))) % self._capacity
            self._release(indices)
            self._index.put(envs, counts, indices, self._oldest)
            self._goals[indices] = achieved[t, rows]
            self._episode_end[indices] = -1  # the episode continues
            self._location[indices, 0], self._location[indices, 1] = envs, counts
            self._num_steps[envs] += 1
            number += len(envs)
            for env in np.flatnonzero(ends[t]).tolist():
                self.cut(fragment.first_env + env)
        self._num_known = number

    def relabel(self, batch: Any) -> None:
        """Replace goals, rewards and terminations of a share of a batch in place.

        A relabeled transition terminates if the environment's `compute_terminated` returns True for
        its new goal. A termination that its old goal did not cause stays.
        """
        rng = np.random.default_rng((self._seed, _STREAM, self._num_batches))
        self._num_batches += 1
        places = batch.index % self._capacity
        is_known = self._location[places, 0] >= 0
        chosen = np.flatnonzero((rng.random(len(places)) < self._share) & is_known)
        if not len(chosen):
            return
        # Choose the later transitions, whose achieved goals become the desired ones.
        places = places[chosen]
        envs, numbers = self._location[places].T
        last = self._episode_end[places]
        last = np.where(last < 0, self._num_steps[envs] - 1, last)
        if self._strategy == "future":
            last = rng.integers(numbers, last, endpoint=True)
        goals = self._goals[self._index.find(envs, last)]
        achieved = self._spec.unflatten(batch.next_obs)[ACHIEVED][chosen]
        if self._functions.has_terminated:
            self._relabel_terminations(batch, chosen, achieved, goals)
        for obs in (batch.obs, batch.next_obs):
            self._spec.unflatten(obs)[DESIRED][chosen] = goals
        # Stored rewards are clipped too.
        reward = self._functions.reward(achieved, goals)
        is_bad = ~(np.abs(reward) <= np.finfo(np.float32).max)
        if is_bad.any():
            pair = int(is_bad.argmax())
            advice = "scale it down" if np.isfinite(reward[pair]) else "look for a division by zero"
            raise EnvironmentFailure(
                f"`compute_reward` must return numbers within ±3.4e38, got {reward[pair]} for the "
                f"achieved goal {achieved[pair].tolist()} and the desired goal "
                f"{goals[pair].tolist()}: {advice}"
            )
        limit = self._clip_reward
        batch.reward[chosen] = reward if limit is None else reward.clip(-limit, limit)

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
        known = np.flatnonzero(self._location[:, 0] >= 0)
        envs, numbers = self._location[known].T
        order = np.argsort(numbers, kind="stable")  # `put` expects ascending numbers
        self._index.put(envs[order], numbers[order], known[order], self._oldest)

    def cut(self, env: int | None = None) -> None:
        """End the current episode of an environment, or of all, at its last transition."""
        if env is None:
            for index in range(len(self._num_steps)):
                self.cut(index)
            return
        stop = int(self._num_steps[env])
        numbers = np.arange(max(int(self._episode_start[env]), int(self._oldest[env])), stop)
        self._episode_end[self._index.find(np.full(len(numbers), env), numbers)] = stop - 1
        self._episode_start[env] = stop

    def _release(self, places: Array) -> None:
        """Forget the transitions at indices of the buffer that others replace."""
        places = places[self._location[places, 0] >= 0]
        envs, numbers = self._location[places].T
        np.maximum.at(self._oldest, envs, numbers + 1)
        self._location[places] = -1

    def _relabel_terminations(
        self, batch: Any, chosen: Array, achieved: Array, goals: Array
    ) -> None:
        terminated = batch.terminated[chosen]
        reached = self._functions.terminated(achieved, goals)
        rows = np.flatnonzero(terminated & ~reached)
        if len(rows):
            old_goals = self._spec.unflatten(batch.next_obs)[DESIRED][chosen[rows]]
            # A termination that the old goal did not cause, such as a fall, stays.
            reached[rows] = ~self._functions.terminated(achieved[rows], old_goals)
        batch.terminated[chosen] = reached

    def _warn_of_terminations(self) -> None:
        self._may_warn = False
        warnings.warn(
            "an episode terminated, and hindsight does not know whether its goal was the cause: "
            "transitions that reach a replaced goal do not terminate, so that Q-values can exceed "
            "all returns. Give the environment `compute_terminated(achieved_goal, desired_goal, "
            "info)`, which returns whether success ends the episode, or False if it does not",
            RuntimeWarning,
            stacklevel=3,
        )


class _TransitionIndex:
    """The index in the buffer of each environment's transitions, by their number.

    Each environment has a ring of indices, and all rings are parts of one array. A ring that is too
    small for the environment's share of the buffer doubles.

    Args:
        num_envs: N.
        capacity: the capacity of the buffer.
    """

    def __init__(self, num_envs: int, capacity: int) -> None:
        self._capacity = capacity
        self._sizes = np.full(num_envs, -(-capacity // num_envs) + 1, np.int64)
        self._starts = np.cumsum(self._sizes) - self._sizes
        self._places = np.zeros(int(self._sizes.sum()), np.int64)

    def find(self, envs: Array, numbers: Array) -> Array:
        """Return the indices in the buffer of transitions that it holds."""
        return self._places[self._starts[envs] + numbers % self._sizes[envs]]

    def put(self, envs: Array, numbers: Array, places: Array, oldest: Array) -> None:
        """Set the indices in the buffer of new transitions.

        Args:
            oldest: number of the oldest transition in the buffer for each environment, (N,).
        """
        min_sizes = numbers - oldest[envs] + 1
        # No ring needs to be larger than the buffer.
        is_short = (min_sizes > self._sizes[envs]) & (self._sizes[envs] < self._capacity)
        for env in np.unique(envs[is_short]).tolist():
            size = min(2 * int(min_sizes[envs == env].max()), self._capacity)
            self._grow(env, size, np.arange(int(oldest[env]), int(numbers[envs == env].max())))
        self._places[self._starts[envs] + numbers % self._sizes[envs]] = places

    def _grow(self, env: int, size: int, numbers: Array) -> None:
        """Enlarge the ring of an environment, which holds the transitions `numbers`."""
        ring = np.zeros(size, np.int64)
        ring[numbers % size] = self.find(np.full(len(numbers), env), numbers)
        start = int(self._starts[env])
        stop = start + int(self._sizes[env])
        self._places = np.concatenate((self._places[:start], ring, self._places[stop:]))
        self._sizes[env] = size
        self._starts = np.cumsum(self._sizes) - self._sizes


def _goal_field(obs_spec: ObsSpec) -> ObsField:
    """Return the layout of the goals in observations, or raise ConfigError."""
    fields = {part.name: part for part in obs_spec.layout}
    if not {ACHIEVED, DESIRED} <= fields.keys():
        raise ConfigError(
            f"`hindsight` needs dict observations with '{ACHIEVED}' and '{DESIRED}', got "
            f"{', '.join(map(repr, fields)) if any(fields) else 'no dict'}: "
            "leave it out, or choose an environment with goals"
        )
    achieved, desired = (
        (field.encoding, field.dtype, field.raw_shape, field.counts, field.starts)
        for field in (fields[ACHIEVED], fields[DESIRED])
    )
    if achieved != desired:
        raise ConfigError(
            "`hindsight` needs goals of one kind and shape, got "
            f"{_describe(fields[ACHIEVED])} achieved and {_describe(fields[DESIRED])} desired: "
            "correct the observation space"
        )
    return fields[ACHIEVED]


def _describe(field: ObsField) -> str:
    if field.encoding == "one_hot":
        last = [start + count - 1 for start, count in zip(field.starts, field.counts, strict=True)]
        return f"integers {list(field.starts)} … {last}"
    return f"{field.encoding} values of shape {field.raw_shape}"
