"""Hindsight experience replay (HER): transitions learned from as if what came of them was the goal.

Andrychowicz et al. 2017, "Hindsight Experience Replay", arXiv:1707.01495. Observations are a dict
with `achieved_goal` and `desired_goal`, and the environment has `compute_reward(achieved_goal,
desired_goal, info)`, as those of Gymnasium-Robotics have it. Batches are drawn as they are, and a
share of their transitions get another goal: what was achieved at a later step of the episode
(`future`), or at its last one (`final`). Their rewards are computed anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from hotloop.envs import ObsSpec, make_env
from hotloop.errors import ConfigError, EnvironmentFailure
from hotloop.importing import describe_exception
from hotloop.system.memory import need_memory
from hotloop.types import Array, Fragment

_ACHIEVED, _DESIRED = "achieved_goal", "desired_goal"
# What a checkpoint keeps.
_KEPT = ("goals", "last", "place", "count", "begun")
# Of random numbers, beside the run's seed.
_STREAM = 3


class Hindsight:
    """What was achieved in each transition of a replay buffer, and in those after it.

    An environment's transitions are numbered in a row, and its last so many are kept.

    Args:
        config: the run's; `hindsight`, `hindsight_share`, `buffer_size`, `seed`, and what makes an
            environment.
        environment: an id or a factory: of it, one is made that computes rewards.
        obs_spec: of observations.
        num_envs: N.

    Raises:
        ConfigError: observations hold no goals, or the environment computes no rewards.
    """

    def __init__(
        self, config: Any, environment: str | Callable[..., Any], obs_spec: ObsSpec, num_envs: int
    ) -> None:
        fields = {part.name: part for part in obs_spec.layout}
        if not {_ACHIEVED, _DESIRED} <= fields.keys():
            raise ConfigError(
                f"`hindsight` needs observations that are a dict with '{_ACHIEVED}' and "
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
        self._num_drawn = 0
        self._capacity = config.buffer_size
        # Of each environment; the buffer holds as many of each, or one more.
        self._kept = -(-self._capacity // num_envs) + 1
        size = int(np.prod(achieved))
        need_memory(
            4 * self._kept * num_envs * (size + 2),
            "the goals of `hindsight`",
            "lower `buffer_size`",
        )
        self._goals = np.zeros((num_envs, self._kept, *achieved), np.float32)
        # Where the episode of a transition ends: its number in its environment's row.
        self._last = np.zeros((num_envs, self._kept), np.int64)
        # By a transition's place in the buffer: its environment and its number there.
        self._place = np.full((self._capacity, 2), -1, np.int64)
        self._added = 0  # transitions of the buffer that are known
        self._count = np.zeros(num_envs, np.int64)
        self._begun = np.zeros(num_envs, np.int64)  # the number of each episode's first transition
        self._reward = _reward_of(environment, config.env_kwargs, achieved)
        self._clip = config.clip_reward

    def add(self, fragment: Fragment, first_number: int) -> None:
        """Note what the transitions of a fragment have achieved.

        Args:
            fragment: as it is stored.
            first_number: of its first transition in the buffer, counted from the start.
        """
        achieved = self._spec.unflatten(fragment.next_obs)[_ACHIEVED]
        ended = fragment.terminated | fragment.truncated
        # Nothing is known of what the buffer got from elsewhere.
        unknown = np.arange(max(self._added, first_number - self._capacity), first_number)
        self._place[unknown % self._capacity] = -1
        number = first_number
        for t in range(fragment.num_steps):
            envs = fragment.first_env + np.flatnonzero(fragment.valid[t])
            rows = envs - fragment.first_env
            counts = self._count[envs]
            slots = counts % self._kept
            self._goals[envs, slots] = achieved[t, rows]
            self._last[envs, slots] = -1  # goes on
            places = (number + np.arange(len(envs))) % self._capacity
            self._place[places, 0], self._place[places, 1] = envs, counts
            self._count[envs] += 1
            number += len(envs)
            for env in envs[ended[t, rows]].tolist():
                self.cut(env)
        self._added = number

    def relabel(self, drawn: Any) -> None:
        """Give a share of drawn transitions other goals, and the rewards that those bring.

        Args:
            drawn: a batch of a buffer, whose `obs`, `next_obs`, `reward` change in place; `index`
                are the transitions' numbers.
        """
        rng = np.random.default_rng((self._seed, _STREAM, self._num_drawn))
        self._num_drawn += 1
        places = self._place[drawn.index % self._capacity]
        is_known = places[:, 0] >= 0
        chosen = np.flatnonzero((rng.random(len(places)) < self._share) & is_known)
        if not len(chosen):
            return
        envs, numbers = places[chosen].T
        last = self._last[envs, numbers % self._kept]
        last = np.where(last < 0, self._count[envs] - 1, last)
        if self._strategy == "future":
            last = rng.integers(numbers, last, endpoint=True)
        goals = self._goals[envs, last % self._kept]
        for obs in (drawn.obs, drawn.next_obs):
            self._spec.unflatten(obs)[_DESIRED][chosen] = goals
        achieved = self._spec.unflatten(drawn.next_obs)[_ACHIEVED][chosen]
        reward = self._reward(achieved, goals)
        # Those that are stored have been clipped.
        drawn.reward[chosen] = (
            reward if self._clip is None else reward.clip(-self._clip, self._clip)
        )

    def to_arrays(self) -> dict[str, Array]:
        """For a checkpoint that the buffer is kept with."""
        arrays = {f"hindsight.{name}": getattr(self, f"_{name}").copy() for name in _KEPT}
        counts = np.array([self._num_drawn, self._added], np.int64)
        return {**arrays, "hindsight.counts": counts}

    def load(self, arrays: Mapping[str, Array]) -> None:
        """The inverse of `to_arrays`."""
        for name in _KEPT:
            getattr(self, f"_{name}")[...] = arrays[f"hindsight.{name}"]
        self._num_drawn, self._added = arrays["hindsight.counts"].tolist()

    def cut(self, env: int | None = None) -> None:
        """End the episode of an environment, or of all, with its last transition."""
        if env is None:
            for each in range(len(self._count)):
                self.cut(each)
            return
        last = int(self._count[env]) - 1
        first = max(int(self._begun[env]), last + 1 - self._kept)
        self._last[env, np.arange(first, last + 1) % self._kept] = last
        self._begun[env] = last + 1


def _reward_of(
    environment: str | Callable[..., Any],
    env_kwargs: Mapping[str, Any],
    shape: tuple[int, ...],
) -> Callable[[Array, Array], Array]:
    """Return the rewards of achieved and desired goals, (B, *shape) each: float32, (B,).

    Raises:
        ConfigError: the environment computes none.
    """
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
        return np.array([compute(one, goal, {}) for one, goal in pairs], np.float32)

    def at_once(achieved: Array, desired: Array) -> Array:
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
        together = at_once(achieved, desired)
    except Exception:
        return one_by_one
    is_same = together.shape == expected.shape and np.allclose(together, expected)
    return at_once if is_same else one_by_one
