"""The methods `compute_reward` and `compute_terminated` of an environment, called on batches."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hotloop.base.importing import describe_exception
from hotloop.envs import EnvSpec, ObsField, as_flag, as_reward, make_env
from hotloop.errors import ConfigError, EnvironmentFailure, shortened
from hotloop.types import Array

ACHIEVED, DESIRED = "achieved_goal", "desired_goal"
# The minimum number of pairs of goals for which the functions are tested.
_NUM_PAIRS = 24


class GoalFunctions:
    """The functions of an environment that judge pairs of an achieved and a desired goal.

    The functions receive the environment's own values, in the shape and dtype of its spaces, and an
    empty `info`. They are tested with samples of the space. If one call with a batch returns the
    results of single calls, batches are passed in one call, and otherwise pair by pair.

    Args:
        spec: the environment.
        field: the layout of both goals in an observation.

    Attributes:
        has_terminated: whether the environment has `compute_terminated`.

    Raises:
        ConfigError: the environment has no `compute_reward`.
        EnvironmentFailure: a function raised, or returned no number or flag for a pair of goals.
    """

    def __init__(self, spec: EnvSpec, field: ObsField) -> None:
        self._field, self._env = field, make_env(spec)
        try:
            self._find_functions(self._env)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the environment."""
        self._env.close()

    def _find_functions(self, env: Any) -> None:
        """Find and test the functions of an environment."""
        compute_reward = _method_of(env, "compute_reward")
        if compute_reward is None:
            raise ConfigError(
                "`hindsight` needs an environment with `compute_reward(achieved_goal, desired_goal,"
                f" info)`, and {type(env.unwrapped).__name__} has none: add it, or leave "
                "`hindsight` out"
            )
        compute_terminated = _method_of(env, "compute_terminated")
        self.has_terminated = compute_terminated is not None
        spaces: Any = env.observation_space
        self._dtypes = [spaces[name].dtype for name in (ACHIEVED, DESIRED)]
        goals = self._sample_pairs(spaces[ACHIEVED])
        self._reward = _GoalFunction("compute_reward", compute_reward, as_reward, np.float64, goals)
        if compute_terminated is not None:
            self._terminated = _GoalFunction(
                "compute_terminated", compute_terminated, as_flag, np.bool_, goals
            )

    def reward(self, achieved: Array, desired: Array) -> Array:
        """Return the rewards of encoded goals, (B, *shape), as float64, (B,)."""
        return self._reward(*self._decode_pairs(achieved, desired))

    def terminated(self, achieved: Array, desired: Array) -> Array:
        """Return whether encoded goals, (B, *shape), end the episode, as bool, (B,)."""
        return self._terminated(*self._decode_pairs(achieved, desired))

    def _decode_pairs(self, *encoded_pair: Array) -> list[Array]:
        """Return goals as the environment's own values, (B, *raw_shape)."""
        pair: list[Array] = []
        for encoded, dtype in zip(encoded_pair, self._dtypes, strict=True):
            values = self._field.decode(encoded)
            pair.append((np.rint(values) if dtype.kind in "iu" else values).astype(dtype))
        return pair

    def _sample_pairs(self, space: Any) -> list[Array]:
        """Return pairs of goals: some equal, some with equal parts, some different."""
        space = copy.deepcopy(space)  # the environments may share it
        space.seed(0)
        # A batch size other than the sides of a goal reveals functions that mix up the axes.
        shape = self._field.raw_shape or ()
        count = max(_NUM_PAIRS, 1 + max(shape, default=0))
        achieved, desired = (np.stack([space.sample() for _ in range(count)]) for _ in range(2))
        rng = np.random.default_rng(0)
        is_shared = rng.random(achieved.shape) < 0.5
        is_shared[: count // 3], is_shared[-count // 3 :] = True, False
        desired = np.where(is_shared, achieved, desired)
        return [
            goals.astype(dtype)
            for goals, dtype in zip((achieved, desired), self._dtypes, strict=True)
        ]


class _GoalFunction:
    """One function of pairs of goals, called with batches if its test allows it."""

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        convert: Callable[[Any], Any],
        dtype: Any,
        goals: Sequence[Array],
    ) -> None:
        self._name, self._function, self._convert, self._dtype = name, function, convert, dtype
        self._is_discrete = goals[0].ndim == 1 and goals[0].dtype.kind in "iu"
        self._takes_batches = False
        expected = self(*goals)
        try:
            batched = np.asarray(function(*(goal.copy() for goal in goals), {}))
            self._takes_batches = (
                batched.shape == expected.shape
                and batched.dtype.kind in "fiub"
                and np.allclose(batched, expected, equal_nan=True)
            )
        except (Exception, SystemExit):  # the function takes only single pairs
            return

    def __call__(self, achieved: Array, desired: Array) -> Array:
        """Return the results for goals, (B, *raw_shape), as (B,)."""
        if not self._takes_batches:
            # Iterating over an array of numbers yields scalars, which only Discrete spaces sample.
            singles = (
                goals if self._is_discrete else map(np.asarray, goals)
                for goals in (achieved, desired)
            )
            pairs = zip(*singles, strict=True)
            return np.array([self._call_once(*pair) for pair in pairs], self._dtype)
        try:
            results = np.asarray(self._function(achieved, desired, {}))
        except (Exception, SystemExit) as error:
            raise EnvironmentFailure(
                f"`{self._name}` raised {describe_exception(error)}, with {len(achieved)} pairs of "
                "goals and an empty `info`"
            ) from error
        if results.shape != (len(achieved),) or results.dtype.kind not in "fiub":
            raise EnvironmentFailure(
                f"`{self._name}` must return a number for each of {len(achieved)} pairs of goals, "
                f"as it did at the start, got an array of shape {results.shape} and dtype "
                f"{results.dtype}: return one for each pair"
            )
        converted = results.astype(self._dtype)
        if self._dtype is np.bool_ and (converted != results).any():
            pair = int((converted != results).argmax())
            raise EnvironmentFailure(
                f"`{self._name}` must return True or False for each pair, got {results[pair]} for "
                f"the achieved goal {achieved[pair].tolist()} and the desired goal "
                f"{desired[pair].tolist()}: return one bool for each"
            )
        return converted

    def _call_once(self, achieved: Any, desired: Any) -> Any:
        pair = shortened(
            " and ".join(
                f"{name} goal {goal.tolist() if isinstance(goal, np.ndarray) else repr(goal)}"
                for name, goal in (("achieved", achieved), ("desired", desired))
            )
        )
        try:
            result = self._function(achieved, desired, {})
        except (Exception, SystemExit) as error:
            raise EnvironmentFailure(
                f"`{self._name}` raised {describe_exception(error)}, with {pair} and an empty "
                "`info`"
            ) from error
        try:
            return self._convert(result)
        except ValueError as error:
            raise EnvironmentFailure(f"`{self._name}`, with {pair}: {error}") from None


def _method_of(env: Any, name: str) -> Callable[..., Any] | None:
    """Return a method of the outermost wrapper that has it, or of the environment itself."""
    try:
        method = env.get_wrapper_attr(name)
    except AttributeError:
        return None
    return method if callable(method) else None
