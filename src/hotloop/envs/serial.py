"""A vector environment that steps single environments in a loop, the usual case."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from hotloop.base.importing import describe_exception
from hotloop.envs.action_decoder import ActionDecoder
from hotloop.envs.checks import (
    FLOAT32_MAX,
    as_flag,
    as_reward,
    check_call,
    check_reset,
    describe_bad_info,
    describe_bad_step,
    describe_non_finite,
    has_finite_square,
    warn_of_coarse_numbers,
)
from hotloop.envs.encoding import ObsEncoder
from hotloop.envs.episode_totals import EpisodeTotals
from hotloop.envs.global_generators import seed_spaces
from hotloop.envs.gymnasium_envs import GymnasiumEnvs
from hotloop.envs.protocol import obs_hash
from hotloop.envs.spec import EnvSpec
from hotloop.errors import (
    EnvironmentFailure,
    HotloopError,
    MaskError,
    NonFiniteStep,
    SpaceError,
)
from hotloop.timing import span
from hotloop.types import Array, RunningEpisode, StepArrays

if TYPE_CHECKING:
    from gymnasium import Env


_NEVER = 2**63
# Errors that a new environment would repeat, or that make the later steps unusable.
_FINAL = (NonFiniteStep, MaskError)


class SerialVectorEnv(GymnasiumEnvs):
    """N single Gymnasium environments, stepped one after another into the caller's arrays.

    Every episode is reset with `episode_seed(seed, env, episode, stream)`.

    Args:
        envs: environments with equal spaces.
        spec: the specification of `envs`. Its `first_env` is the index of `envs[0]`.
        env_id: name of the environments in messages.
        rebuild: function that makes a replacement for a failed environment. None raises failures.
        on_failure: callback with each failure before `rebuild`, which may raise.

    Raises:
        SpaceError: a space is not supported, or the spaces differ.
    """

    def __init__(
        self,
        envs: Sequence[Env[Any, Any]],
        spec: EnvSpec,
        *,
        env_id: str,
        rebuild: Callable[[], Env[Any, Any]] | None = None,
        on_failure: Callable[[HotloopError], None] = lambda error: None,
    ) -> None:
        spaces = envs[0].observation_space, envs[0].action_space
        super().__init__(envs[0], len(envs), spaces, spec, env_id)
        self._envs = list(envs)
        self._rebuild_env = rebuild
        self._on_failure = on_failure
        self._failed_env = 0  # the environment of the last failure
        for i, env in enumerate(self._envs):
            self._check_spaces(i, env)
            seed_spaces(env, self._spec.episode_seed(i, self._episode[i] + 1))
        unwrapped = [_unwrap(env) for env in self._envs]
        self._resets = [env.reset for env, _ in unwrapped]
        self._steps = [env.step for env, _ in unwrapped]
        self._time_limits = [limit for _, limit in unwrapped]
        self._next_limit = _NEVER
        # The dtype of the last raw observation, which may differ from the declared one.
        self._box_dtype = self._encoder.box_dtype
        # Rows of a persistent array: stored views take half the time of `next_obs[i]`.
        self._staged = np.zeros_like(self._step_buffers.next_obs)
        self._rows = list(self._staged)
        self._indices = range(self.num_envs)
        self._returns = [0.0] * self.num_envs
        self._start_step = [0] * self.num_envs
        # The step at which each episode is truncated.
        self._truncation_step = [_NEVER] * self.num_envs
        # Infos of the last step, for a time limit that ends the episode, and for masks.
        self._infos: list[Any] = [None] * self.num_envs
        # Observations of the last step, for masks, and to name a number that float32 does not hold.
        self._raws: list[Any] = [None] * self.num_envs
        self._may_overflow = False
        self._totals = [EpisodeTotals(env) for env in envs]

    can_replay = True

    @property
    def time_limit(self) -> int | None:
        """The first environment's maximum number of steps per episode, None if unknown."""
        limit = self._time_limits[0]
        return limit if limit < _NEVER else None

    def reset(self, first_episode: int | None = None) -> Array:
        """See `VectorEnv.reset`."""
        if first_episode is not None:
            self._episode = [first_episode - 1] * self.num_envs
        obs = self._new_obs()
        for i in range(self.num_envs):
            self._begin_or_rebuild(i, obs[i])
        return obs

    def step(self, action: Array, out: StepArrays | None = None) -> StepArrays:
        """See `VectorEnv.step`."""
        if out is None:
            out = self._step_buffers
        check_call(self._env_id, action, self._action_shape, has_begun=self._episode[0] >= 0)
        next_obs, reward, terminated, truncated, valid, obs, next_mask, self.mask = out
        # Flags are rarely set: one `fill` and a few assignments cost less than N assignments.
        terminated.fill(False)
        truncated.fill(False)
        valid.fill(True)
        ended_envs: list[int] = []
        failed_envs: list[int] = []
        # Step all environments. After a failure, continue with the next environment.
        first, actions = 0, self._decoder.rows(action)
        while True:
            try:
                self._advance(first, actions, reward, terminated, truncated, ended_envs)
                break
            except EnvironmentFailure as error:
                if self._rebuild_env is None or isinstance(error, _FINAL):
                    raise
                self._on_failure(error)
                failed_envs.append(self._failed_env)
                first = self._failed_env + 1
        if self._may_overflow and not has_finite_square(self._staged):
            for i, row in enumerate(self._rows):
                self._check(i, self._encoder.check_range, self._raws[i], row)
        # Write the rows and their masks.
        if self._masks is not None:
            for i in self._indices:
                if i not in failed_envs:
                    is_last = bool(terminated[i])
                    self._write_mask(i, self._raws[i], self._infos[i], next_mask[i], is_last)
            self.mask[...] = next_mask
        next_obs[...] = self._staged
        obs[...] = self._staged
        self._num_steps += 1
        if self._num_steps >= self._next_limit:
            ended_envs = self._apply_time_limits(truncated, ended_envs)
        # Begin the next episodes, and rebuild failed environments.
        for i in ended_envs:
            if i not in failed_envs:
                num_steps = self._num_steps - self._start_step[i]
                episode = self._ended_episode(i, self._infos[i], self._returns[i], num_steps)
                totals = self._totals[i]
                with span("env_reset"):
                    self._begin_or_rebuild(i, obs[i])
                if not totals.is_continued():
                    self._finished.append(episode)
        for i in failed_envs:
            # The row is no transition, since its successor is unknown.
            reward[i], terminated[i], truncated[i], valid[i] = 0.0, False, False, False
            with span("env_reset"):
                self._rebuild(i, obs[i])
            next_obs[i], next_mask[i] = obs[i], self.mask[i]
        return out

    def _advance(
        self,
        first: int,
        actions: list[Any],
        reward: Array,
        terminated: Array,
        truncated: Array,
        ended_envs: list[int],
    ) -> None:
        """Step the environments from `first` on, and add those that end to `ended_envs`."""
        returns, infos = self._returns, self._infos
        box_shape, box_dtype = self._encoder.box_shape, self._box_dtype
        raws, ndarray, float64, np_false = self._raws, np.ndarray, np.float64, np.False_
        steps = zip(self._indices, self._steps, self._rows, actions, strict=True)
        for i, step_env, row, env_action in islice(steps, first, None) if first else steps:
            try:
                result = step_env(env_action)
            except (Exception, SystemExit) as error:
                raise self._failure(i, f"`step` raised {describe_exception(error)}") from error
            try:
                observation, value, is_terminated, is_truncated, infos[i] = result
            except (TypeError, ValueError):
                raise self._failure(i, describe_bad_step(result)) from None
            if (
                type(observation) is ndarray
                and observation.shape == box_shape
                and observation.dtype is box_dtype
            ):
                row[...] = observation
            else:
                self._write(i, observation, row)
                box_dtype = self._box_dtype
            raws[i] = observation
            if type(value) is not float:
                value = float(value) if type(value) is float64 else self._check(i, as_reward, value)
            if not -FLOAT32_MAX <= value <= FLOAT32_MAX:
                self._check_reward(i, value)
            reward[i] = value
            returns[i] += value
            # Flags are rarely set, and identity is the fastest test.
            is_over = not (is_terminated is False or is_terminated is np_false) and self._check(
                i, as_flag, is_terminated, "`terminated`"
            )
            is_cut = not (is_truncated is False or is_truncated is np_false) and self._check(
                i, as_flag, is_truncated, "`truncated`"
            )
            if is_over or is_cut:
                terminated[i], truncated[i] = is_over, is_cut
                ended_envs.append(i)
            if type(infos[i]) is not dict and not isinstance(infos[i], dict):
                raise self._failure(i, describe_bad_info(infos[i]))

    def running_episodes(self) -> list[tuple[int, int]]:
        """See `VectorEnv.running_episodes`."""
        lengths = (self._num_steps - began for began in self._start_step)
        return list(zip(self._episode, lengths, strict=True))

    def resume(
        self,
        episodes: Sequence[RunningEpisode],
        on_step: Callable[[], None] = lambda: None,
    ) -> tuple[Array, list[int]]:
        """See `VectorEnv.resume`."""
        obs = self._new_obs()
        restarted_envs: list[int] = []
        # Count steps as if all of them had begun during the longest episode.
        self._num_steps = max(len(episode.actions) for episode in episodes)
        for i, episode in enumerate(episodes):
            self._episode[i] = episode.episode - 1
            on_step()
            self._begin_episode(i, obs[i])
            if self._replay(i, episode, obs[i], on_step):
                self._start_step[i] -= len(episode.actions)
                self._truncation_step[i] -= len(episode.actions)
            else:
                on_step()
                self._begin_episode(i, obs[i])
                restarted_envs.append(i)
        self._next_limit = min(self._truncation_step)
        return obs, restarted_envs

    def set_attr(self, name: str, values: Any) -> None:
        """See `VectorEnv.set_attr`. A replaced environment begins with its own values."""
        super().set_attr(name, values)
        self._time_limits = [_unwrap(env)[1] for env in self._envs]  # of the next episodes

    def _begin_episode(self, i: int, row: Array) -> None:
        """Reset an environment, and write its first observation and mask."""
        self._episode[i] += 1
        self._returns[i] = 0.0
        self._start_step[i] = self._num_steps
        self._truncation_step[i] = self._num_steps + self._time_limit(i)
        self._next_limit = min(self._next_limit, self._truncation_step[i])
        try:
            result = self._resets[i](seed=self._spec.episode_seed(i, self._episode[i]))
        except (Exception, SystemExit) as error:
            raise self._failure(
                i, f"`reset` raised {describe_exception(error)}", at_reset=True
            ) from error
        observation, info = self._check(i, check_reset, result, at_reset=True)
        self._write(i, observation, row, at_reset=True)
        if self._masks is not None:
            self._write_mask(i, observation, info, self.mask[i], at_reset=True)
        elif self._may_warn and self._episode[i] == 0:
            self._warn_unused_masks(self._envs[i], observation, info)
        problem = describe_non_finite(row, self.obs_spec)
        if problem is not None:
            self._check(i, self._encoder.check_range, observation, row, at_reset=True)
            raise self._failure(i, problem, at_reset=True)
        if self._first_env + i == 0 and self._episode[i] == 0 and self._spec.stream == "training":
            warn_of_coarse_numbers(self._env_id, self.obs_spec, row)

    def _replay(
        self, i: int, episode: RunningEpisode, row: Array, on_step: Callable[[], None]
    ) -> bool:
        """Repeat an episode's actions, and return whether they lead to the same observation."""
        observation = info = None
        try:
            for action in self._decoder.rows(episode.actions):
                on_step()
                observation, value, is_terminated, is_truncated, info = self._steps[i](action)
                if as_flag(is_terminated) or as_flag(is_truncated):
                    return False
                self._returns[i] += as_reward(value)
        except Exception:  # a non-deterministic environment may fail in any way
            return False
        if observation is not None:
            self._write(i, observation, row)
            if self._masks is not None:
                self._write_mask(i, observation, info, self.mask[i])
        return obs_hash(row) == episode.obs_hash

    def _apply_time_limits(self, truncated: Array, ended_envs: list[int]) -> list[int]:
        """Truncate the episodes at their limit, and return all environments whose episode ends."""
        at_limit = [i for i, step in enumerate(self._truncation_step) if step <= self._num_steps]
        truncated[at_limit] = True
        ended_envs = sorted({*ended_envs, *at_limit})
        # Environments that end here get a new limit at their reset.
        limits = (self._truncation_step[i] for i in self._indices if i not in ended_envs)
        self._next_limit = min(limits, default=_NEVER)
        return ended_envs

    def _time_limit(self, i: int) -> int:
        limit, env = self._time_limits[i], self._first_env + i
        if self._spec.stagger and self._episode[i] == 0 and limit < _NEVER:
            return max(1, limit - limit * (env % self._spec.stagger) // self._spec.stagger)
        return limit

    def _begin_or_rebuild(self, i: int, row: Array) -> None:
        """Begin the next episode, in a new environment if the reset fails."""
        try:
            self._begin_episode(i, row)
        except EnvironmentFailure as error:
            if self._rebuild_env is None or isinstance(error, _FINAL):
                raise
            self._on_failure(error)
            self._rebuild(i, row)

    def _rebuild(self, i: int, row: Array) -> None:
        """Replace a failed environment until a reset succeeds or `on_failure` raises."""
        assert self._rebuild_env is not None
        while True:
            with contextlib.suppress(Exception):
                self._envs[i].close()
            try:
                self._envs[i] = env = self._rebuild_env()
                self._check_spaces(i, env)
                seed_spaces(env, self._spec.episode_seed(i, self._episode[i] + 1))
                unwrapped, self._time_limits[i] = _unwrap(env)
                self._totals[i] = EpisodeTotals(env)
                self._resets[i], self._steps[i] = unwrapped.reset, unwrapped.step
                self._begin_episode(i, row)
                return
            except HotloopError as error:
                if isinstance(error, _FINAL):
                    raise
                self._on_failure(error)

    def _write(self, i: int, observation: Any, row: Array, *, at_reset: bool = False) -> None:
        """Encode an observation into a row, and store its dtype for the fast path of `_advance`."""
        self._check(i, self._encoder.write, observation, row, at_reset=at_reset)
        is_array = isinstance(observation, np.ndarray)
        if is_array:
            self._box_dtype = observation.dtype
        self._may_overflow = not is_array or observation.dtype.itemsize > 4

    def _write_mask(
        self,
        i: int,
        observation: Any,
        info: Any,
        out: Array,
        is_last: bool = False,
        *,
        at_reset: bool = False,
    ) -> None:
        """Write the mask of environment `i`."""
        assert self._masks is not None
        values = self._envs[i], observation, info, out, is_last
        self._check(i, self._masks.write_from, *values, at_reset=at_reset)

    def _failure(self, i: int | None, problem: str, **details: Any) -> EnvironmentFailure:
        self._failed_env = i or 0
        return super()._failure(i, problem, **details)

    def _current_step(self, i: int) -> int:
        return self._num_steps - self._start_step[i]

    def _check_spaces(self, i: int, env: Env[Any, Any]) -> None:
        encoder = ObsEncoder(env.observation_space, has_masks=self._spec.action_masks)
        for name, expected, actual in (
            ("observation", self.obs_spec, encoder.spec),
            ("action", self._decoder.spec, ActionDecoder(env.action_space).spec),
        ):
            if expected != actual:
                raise SpaceError(
                    f"{self._env_id}: all environments must have the {name} space of environment "
                    f"{self._first_env}, {getattr(self._envs[0], f'{name}_space')}; environment "
                    f"{self._first_env + i} has {getattr(env, f'{name}_space')}: pad or wrap them "
                    "to make them equal"
                )


def _unwrap(env: Any) -> tuple[Any, int]:
    """Return an environment without its `TimeLimit` and `OrderEnforcing`, and its time limit."""
    # The loop already ensures the order of calls and counts the steps. The two wrappers cost 0.7 µs
    # of the 10 µs that a CartPole step takes.
    from gymnasium.wrappers import OrderEnforcing, TimeLimit

    limit = _NEVER
    if type(env) is TimeLimit:
        limit, env = env._max_episode_steps, env.env
    if type(env) is OrderEnforcing:
        env = env.env
    return env, limit
