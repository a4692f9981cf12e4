"""A loop over single environments: the way that most training goes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from hotloop.envs.checks import (
    as_reward,
    check_call,
    describe_value,
    failure,
    non_finite,
)
from hotloop.envs.encoding import ActionDecoder, MismatchError, ObsEncoder
from hotloop.envs.masks import KEY, MaskWriter, warn_of_masks, with_mask
from hotloop.envs.numbers import EpisodeNumbers
from hotloop.envs.protocol import allocate_step, obs_hash
from hotloop.envs.seeding import Stream, episode_seed
from hotloop.errors import EnvironmentFailure, HotloopError, MaskError, SpaceError
from hotloop.importing import describe_exception
from hotloop.timing import span
from hotloop.types import Array, Episode, RunningEpisode, StepArrays

if TYPE_CHECKING:
    from gymnasium import Env


_NEVER = 2**63


class SerialVectorEnv:
    """N single Gymnasium environments, stepped one after another into the caller's arrays.

    Every episode is reset with `episode_seed(seed, env, episode, stream)`.

    Args:
        envs: all of one kind.
        env_id: what messages call them.
        seed: of the run.
        first_env: number of `envs[0]`, counted over all workers.
        stream: training and evaluation see other episodes.
        stagger: environments over all workers, among which the first episodes are to end one after
            another: environment e's gets 1 − e / `stagger` of the time limit. 0: all get all of it.
        action_masks: whether rows end in the masks that the environments tell, see
            `hotloop.envs.masks`.
        rebuild: makes a new environment in place of one that fails; None: failures are raised.
        on_failure: is told of each failure that is mended by `rebuild`, and may raise.
        log_info: keys of `info` whose numbers episodes keep, see `hotloop.envs.numbers`.

    Raises:
        SpaceError: a space is not supported, or not the same everywhere.
    """

    def __init__(
        self,
        envs: Sequence[Env[Any, Any]],
        *,
        env_id: str,
        seed: int,
        first_env: int = 0,
        stream: Stream = "training",
        stagger: int = 0,
        action_masks: bool = False,
        rebuild: Callable[[], Env[Any, Any]] | None = None,
        on_failure: Callable[[HotloopError], None] = lambda error: None,
        log_info: Sequence[str] = (),
    ) -> None:
        self.num_envs = len(envs)
        self._envs = list(envs)
        self._env_id = env_id
        self._seed = seed
        self._first_env = first_env
        self._stream: Stream = stream
        self._stagger = stagger
        self._remake = rebuild
        self._on_failure = on_failure
        self._failing = 0  # the environment that failed last
        self._encoder = ObsEncoder(envs[0].observation_space)
        self._decoder = ActionDecoder(envs[0].action_space)
        self.obs_spec = self._encoder.spec_of(envs[0])
        self.action_spec = self._decoder.spec
        for i, env in enumerate(self._envs):
            self._check_spaces(i, env)
        self._num_features = self.obs_spec.shape[0] if self.obs_spec.shape else 0
        self._masks: MaskWriter | None = None
        self._infos: list[Any] = [None] * self.num_envs  # of the last steps, where masks are read
        if action_masks:
            self.obs_spec = with_mask(self.obs_spec, self.action_spec)
            self._masks = MaskWriter(self.action_spec)
        self._may_warn = not action_masks and self.action_spec.kind != "box" and first_env == 0
        peeled = [_peel(env) for env in self._envs]
        self._resets = [env.reset for env, _ in peeled]
        self._steps = [self._noting(i, env.step) for i, (env, _) in enumerate(peeled)]
        self._time_limits = [limit for _, limit in peeled]
        self._next_limit = _NEVER
        self._action_shape = (self.num_envs, *self.action_spec.shape)
        # The dtype that rows were last assigned from: a declared one is not always the one given.
        self._box_dtype = self._encoder.box_dtype
        self._own = allocate_step(self.num_envs, self.obs_spec)
        # Rows of an array of our own: views made once take half the time that `next_obs[i]` takes.
        self._staged = np.zeros_like(self._own.next_obs)
        self._rows = [self._features(row) for row in self._staged]
        self._indices = range(self.num_envs)
        self._returns = [0.0] * self.num_envs
        self._episode = [-1] * self.num_envs
        self._began = [0] * self.num_envs
        # The step at which each episode is truncated.
        self._until = [_NEVER] * self.num_envs
        self._num_steps = 0
        # Of the last step: looked at where an episode ends, which a time limit may decide later.
        self._infos: list[Any] = [None] * self.num_envs
        self._numbers = EpisodeNumbers(log_info, env_id)
        self._finished: list[Episode] = []

    can_replay = True

    @property
    def time_limit(self) -> int | None:
        """Steps of the first environment until an episode is truncated; None: not known."""
        limit = self._time_limits[0]
        return limit if limit < _NEVER else None

    def reset(self, first_episode: int | None = None) -> Array:
        """See `VectorEnv.reset`."""
        if first_episode is not None:
            self._episode = [first_episode - 1] * self.num_envs
        obs = np.zeros((self.num_envs, *self.obs_spec.shape), self.obs_spec.dtype)
        for i in range(self.num_envs):
            self._begin_or_rebuild(i, obs[i])
        return obs

    def step(self, action: Array, out: StepArrays | None = None) -> StepArrays:
        """See `VectorEnv.step`."""
        if out is None:
            out = self._own
        check_call(self._env_id, action, self._action_shape, has_begun=self._episode[0] >= 0)
        next_obs, reward, terminated, truncated, valid, obs = out
        # Flags are rarely set: filling them once and setting those costs less than N assignments.
        terminated.fill(False)
        truncated.fill(False)
        valid.fill(True)
        ended: list[int] = []
        failed: list[int] = []
        first, actions = 0, self._decoder.rows(action)
        while True:
            try:
                self._advance(first, actions, reward, terminated, truncated, ended)
                break
            except EnvironmentFailure as error:
                if self._remake is None:
                    raise
                self._on_failure(error)
                failed.append(self._failing)
                first = self._failing + 1
        if self._masks is not None:
            for i in self._indices:
                if i not in failed:
                    self._write_mask(i, self._infos[i], self._staged[i], is_last=terminated[i])
        next_obs[...] = self._staged
        obs[...] = self._staged
        self._num_steps += 1
        if self._num_steps >= self._next_limit:
            ended = self._apply_time_limits(truncated, ended)
        for i in ended:
            if i not in failed:
                self._end_episode(i)
                with span("env_reset"):
                    self._begin_or_rebuild(i, obs[i])
        for i in failed:
            # No transition: what it led to is not known.
            reward[i], terminated[i], truncated[i], valid[i] = 0.0, False, False, False
            with span("env_reset"):
                self._rebuild(i, obs[i])
            next_obs[i] = obs[i]
        return out

    def _advance(
        self,
        first: int,
        actions: list[Any],
        reward: Array,
        terminated: Array,
        truncated: Array,
        ended: list[int],
    ) -> None:
        """Step the environments from `first` on; those whose episode ends are added to `ended`."""
        returns, infos = self._returns, self._infos
        box_shape, box_dtype = self._encoder.box_shape, self._box_dtype
        ndarray, float64 = np.ndarray, np.float64
        each = zip(self._indices, self._steps, self._rows, actions, strict=True)
        for i, step_env, row, one_action in islice(each, first, None) if first else each:
            try:
                result = step_env(one_action)
            except Exception as error:
                raise self._failure(i, f"`step` raised {describe_exception(error)}") from error
            try:
                observation, value, is_terminated, is_truncated, infos[i] = result
            except (TypeError, ValueError):
                raise self._bad_step(i, result) from None
            if (
                type(observation) is ndarray
                and observation.shape == box_shape
                and observation.dtype is box_dtype
            ):
                row[...] = observation
            else:
                self._write(i, observation, row)
                box_dtype = self._box_dtype
            if type(value) is not float:
                value = float(value) if type(value) is float64 else self._reward(i, value)
            reward[i] = value
            returns[i] += value
            try:
                if is_terminated or is_truncated:
                    terminated[i] = is_terminated
                    truncated[i] = is_truncated
                    ended.append(i)
            except (TypeError, ValueError):
                raise self._bad_flags(i, is_terminated, is_truncated) from None

    def running(self) -> list[tuple[int, int]]:
        """See `VectorEnv.running`."""
        lengths = (self._num_steps - began for began in self._began)
        return list(zip(self._episode, lengths, strict=True))

    def resume(
        self,
        episodes: Sequence[RunningEpisode],
        on_step: Callable[[], None] = lambda: None,
    ) -> tuple[Array, list[int]]:
        """See `VectorEnv.resume`."""
        obs = np.zeros((self.num_envs, *self.obs_spec.shape), self.obs_spec.dtype)
        restarted_envs: list[int] = []
        # Counted as if all had begun within the longest of them.
        self._num_steps = max(len(episode.actions) for episode in episodes)
        for i, episode in enumerate(episodes):
            self._episode[i] = episode.episode - 1
            on_step()
            self._begin_episode(i, obs[i])
            if self._replay(i, episode, obs[i], on_step):
                self._began[i] -= len(episode.actions)
                self._until[i] -= len(episode.actions)
            else:
                on_step()
                self._begin_episode(i, obs[i])
                restarted_envs.append(i)
        self._next_limit = min(self._until)
        return obs, restarted_envs

    def pop_episodes(self) -> list[Episode]:
        """See `VectorEnv.pop_episodes`."""
        finished, self._finished = self._finished, []
        return finished

    def close(self) -> None:
        """See `VectorEnv.close`."""
        envs, self._envs = self._envs, []
        self._episode = [-1] * self.num_envs
        close_all(envs)

    def _begin_episode(self, i: int, row: Array) -> None:
        self._episode[i] += 1
        self._returns[i] = 0.0
        self._began[i] = self._num_steps
        self._until[i] = self._num_steps + self._time_limit(i)
        self._next_limit = min(self._next_limit, self._until[i])
        env = self._first_env + i
        try:
            result = self._resets[i](
                seed=episode_seed(self._seed, env, self._episode[i], self._stream)
            )
        except Exception as error:
            raise self._failure(
                i, f"`reset` raised {describe_exception(error)}", at_reset=True
            ) from error
        if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict)):
            raise self._failure(
                i,
                f"`reset` must return (obs, info), got {describe_value(result)}: "
                "return both, as Gymnasium's interface says",
                at_reset=True,
            )
        self._write(i, result[0], self._features(row), at_reset=True)
        if self._masks is not None:
            self._write_mask(i, result[1], row, at_reset=True)
        elif self._may_warn and KEY in result[1]:
            self._warn_of_masks()
        problem = non_finite(row)
        if problem is not None:
            raise self._failure(i, problem, at_reset=True)

    def _replay(
        self, i: int, episode: RunningEpisode, row: Array, on_step: Callable[[], None]
    ) -> bool:
        """Repeat an episode's actions; whether they led to the same observation."""
        observation = None
        try:
            for action in self._decoder.rows(episode.actions):
                on_step()
                observation, value, is_terminated, is_truncated, _ = self._steps[i](action)
                if is_terminated or is_truncated:
                    return False
                self._returns[i] += as_reward(value)
        except Exception:  # what does not repeat itself may fail in any way
            return False
        if observation is not None:
            self._write(i, observation, self._features(row))
            if self._masks is not None:
                self._write_mask(i, self._infos[i], row)
        return obs_hash(row) == episode.obs_hash

    def _apply_time_limits(self, truncated: Array, ended: list[int]) -> list[int]:
        """Truncate the episodes that are as long as they may be; all that end in this step."""
        due = [i for i, until in enumerate(self._until) if until <= self._num_steps]
        truncated[due] = True
        ended = sorted({*ended, *due})
        # Those that end here get a new limit when they begin again.
        going_on = (self._until[i] for i in self._indices if i not in ended)
        self._next_limit = min(going_on, default=_NEVER)
        return ended

    def _time_limit(self, i: int) -> int:
        """Steps that the episode which begins now may have."""
        limit, env = self._time_limits[i], self._first_env + i
        if self._stagger and self._episode[i] == 0 and limit < _NEVER:
            return max(1, limit - limit * (env % self._stagger) // self._stagger)
        return limit

    def _begin_or_rebuild(self, i: int, row: Array) -> None:
        """Begin the next episode, in a new environment if this one fails at it."""
        try:
            self._begin_episode(i, row)
        except EnvironmentFailure as error:
            if self._remake is None or isinstance(error, MaskError):
                raise
            self._on_failure(error)
            self._rebuild(i, row)

    def _rebuild(self, i: int, row: Array) -> None:
        """Replace a failed environment, and begin its next episode; `on_failure` ends it if not."""
        assert self._remake is not None
        while True:
            with contextlib.suppress(Exception):
                self._envs[i].close()
            try:
                self._envs[i] = env = self._remake()
                self._check_spaces(i, env)
                peeled, self._time_limits[i] = _peel(env)
                self._resets[i], self._steps[i] = peeled.reset, self._noting(i, peeled.step)
                self._begin_episode(i, row)
                return
            except HotloopError as error:
                if isinstance(error, MaskError):
                    raise
                self._on_failure(error)

    def _end_episode(self, i: int) -> None:
        self._finished.append(
            Episode(
                env=self._first_env + i,
                episode=self._episode[i],
                undiscounted_return=self._returns[i],
                length=self._num_steps - self._began[i],
                info=self._numbers.of(self._infos[i]),
            )
        )

    def _write(self, i: int, observation: Any, row: Array, *, at_reset: bool = False) -> None:
        """Encode an observation, or one whose dtype is not the one that came last."""
        try:
            self._encoder.write(observation, row)
        except MismatchError as error:
            raise self._failure(i, str(error), at_reset=at_reset) from None
        if isinstance(observation, np.ndarray):
            self._box_dtype = observation.dtype

    def _features(self, row: Array) -> Array:
        """The part of a row that is observed; what follows is the mask."""
        return row if self._masks is None else row[: self._num_features]

    def _noting(self, i: int, step: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """An environment's `step`, whose `info` is kept where masks are read."""
        if self._masks is None:
            return step

        def noting(action: Any) -> Any:
            result = step(action)
            self._infos[i] = result[-1] if isinstance(result, tuple) and result else None
            return result

        return noting

    def _write_mask(
        self, i: int, info: Any, row: Array, *, is_last: bool = False, at_reset: bool = False
    ) -> None:
        assert self._masks is not None
        try:
            self._masks.write_of(info, row[self._num_features :], is_last=bool(is_last))
        except MismatchError as error:
            raise MaskError(str(self._failure(i, str(error), at_reset=at_reset))) from None

    def _warn_of_masks(self) -> None:
        self._may_warn = False
        warn_of_masks(self._env_id)

    def _reward(self, i: int, value: Any) -> float:
        try:
            return as_reward(value)
        except ValueError as error:
            raise self._failure(i, str(error)) from None

    def _bad_step(self, i: int, result: Any) -> EnvironmentFailure:
        hint = "return all five, as Gymnasium's interface says"
        if isinstance(result, tuple) and len(result) == 4:
            hint = "this looks like the old Gym interface, whose flag must be split in two"
        return self._failure(
            i,
            "`step` must return (obs, reward, terminated, truncated, info), "
            f"got {describe_value(result)}: {hint}",
        )

    def _bad_flags(self, i: int, terminated: Any, truncated: Any) -> EnvironmentFailure:
        return self._failure(
            i,
            "`terminated` and `truncated` must be True or False, "
            f"got {describe_value(terminated)} and {describe_value(truncated)}: "
            "return one flag of each for this environment",
        )

    def _failure(self, i: int, problem: str, *, at_reset: bool = False) -> EnvironmentFailure:
        self._failing = i
        return failure(
            self._env_id,
            problem,
            env=self._first_env + i,
            episode=self._episode[i],
            step=None if at_reset else self._num_steps - self._began[i],
        )

    def _check_spaces(self, i: int, env: Env[Any, Any]) -> None:
        for what, ours, theirs in (
            ("observation", self.obs_spec.unmasked, ObsEncoder(env.observation_space).spec),
            ("action", self.action_spec, ActionDecoder(env.action_space).spec),
        ):
            if ours != theirs:
                raise SpaceError(
                    f"{self._env_id}: all environments must have the {what} space of environment "
                    f"{self._first_env}, {getattr(self._envs[0], f'{what}_space')}; environment "
                    f"{self._first_env + i} has {getattr(env, f'{what}_space')}: pad or wrap them "
                    "into one"
                )


def close_all(envs: Sequence[Any]) -> None:
    """Close every environment, and only then raise what the first one raised that failed to."""
    first_error: Exception | None = None
    for env in envs:
        try:
            env.close()
        except Exception as error:
            first_error = first_error or error
    if first_error is not None:
        raise first_error


def _peel(env: Any) -> tuple[Any, int]:
    """The environment inside Gymnasium's outermost two wrappers, and its time limit.

    What `OrderEnforcing` looks after can't go wrong here, and `TimeLimit` only counts, which the
    loop does anyway: they cost 0.7 µs a step, of 10 µs that a CartPole takes.
    """
    from gymnasium.wrappers import OrderEnforcing, TimeLimit

    limit = _NEVER
    if type(env) is TimeLimit:
        limit, env = env._max_episode_steps, env.env
    if type(env) is OrderEnforcing:
        env = env.env
    return env, limit
