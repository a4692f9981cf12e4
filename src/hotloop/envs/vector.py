"""An adapter for vector environments with any of the three autoreset modes.

A vector environment steps N environments in one call. Its `metadata["autoreset_mode"]` (Gymnasium
≥ 1.1, before it and in EnvPool always next-step) determines the result at the end of an episode:

    NEXT_STEP   returns the last observation. The next call ignores the action and returns the first
                observation of the next episode. That call is no transition: `valid` is False.
    SAME_STEP   returns the first observation of the next episode, and the last in
                `info["final_obs"]`.
    DISABLED    returns the last observation. The adapter resets with `options={"reset_mask": ...}`.

Gymnasium's own `SyncVectorEnv` and `AsyncVectorEnv` accept a mask in NEXT_STEP mode too. So they
spend no call on a reset, and every episode has its own seed.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from hotloop.base.importing import describe_exception
from hotloop.envs.checks import (
    as_rows,
    check_call,
    check_reset,
    describe_bad_info,
    describe_bad_step,
    describe_non_finite,
    describe_range,
    describe_value,
    has_finite_square,
    warn_of_coarse_numbers,
)
from hotloop.envs.encoding import MismatchError
from hotloop.envs.episode_totals import EpisodeTotals
from hotloop.envs.final_obs import FinalObsCheck
from hotloop.envs.gymnasium_envs import GymnasiumEnvs
from hotloop.envs.masks import MASK_KEY
from hotloop.envs.protocol import obs_hash
from hotloop.envs.spec import EnvSpec
from hotloop.errors import ConfigError, MaskError, NonFiniteStep
from hotloop.timing import span
from hotloop.types import Array, RunningEpisode, StepArrays

if TYPE_CHECKING:
    from gymnasium.vector import VectorEnv

Autoreset = Literal["next_step", "same_step", "masked"]


class VectorAdapter(GymnasiumEnvs):
    """One of Gymnasium's or EnvPool's vector environments, stepped into the caller's arrays.

    Raises:
        SpaceError: a space is not supported.
        ConfigError: its autoreset mode is unknown, a call steps fewer than all environments, or
            the environments reset twice.
    """

    def __init__(
        self,
        envs: VectorEnv[Any, Any, Any],
        spec: EnvSpec,
        *,
        env_id: str,
    ) -> None:
        from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

        self._vector = envs
        self._is_closed = False
        self._takes_seeds = isinstance(envs.unwrapped, (SyncVectorEnv, AsyncVectorEnv)) or (
            getattr(envs, "takes_seeds", False)
        )
        # Set only if an episode is a part of a game, such as a life.
        self._is_playing: Callable[[Any], Any] | None = getattr(envs, "is_playing", None)
        self._is_envpool = _is_envpool(envs)
        if self._is_envpool:
            _check_synchronous(envs, env_id)
        self.autoreset = _autoreset_mode(envs, env_id)
        if self.autoreset == "next_step" and isinstance(envs.unwrapped, AsyncVectorEnv):
            _check_shared_memory(envs.unwrapped, env_id)
        if self.autoreset == "next_step" and type(envs) in (SyncVectorEnv, AsyncVectorEnv):
            self.autoreset = "masked"
        # Whether each environment can begin an episode separately, from a given seed.
        self.can_replay = self._takes_seeds and self.autoreset == "masked"
        spaces = envs.single_observation_space, envs.single_action_space
        super().__init__(envs, envs.num_envs, spaces, spec, env_id)
        self._returns = np.zeros(self.num_envs, np.float64)
        self._lengths = np.zeros(self.num_envs, np.int64)
        # Next-step mode: rows whose episode ended. The next call resets them.
        self._resetting = np.zeros(self.num_envs, np.bool_)
        # Same-step mode: active until final observations are found right or wrong.
        self._final_check: FinalObsCheck | None = None
        self._is_final_check_done = self.autoreset != "same_step"
        # In other modes, a reset comes before or long after reading an episode's totals.
        singles: Sequence[Any] = [None] * self.num_envs
        if isinstance(envs.unwrapped, SyncVectorEnv) and self.autoreset == "masked":
            singles = envs.unwrapped.envs
        self._totals = [EpisodeTotals(env) for env in singles]

    def reset(self, first_episode: int | None = None) -> Array:
        """See `VectorEnv.reset`."""
        if first_episode is not None:
            self._episode = [first_episode - 1] * self.num_envs
        all_rows = np.ones(self.num_envs, np.bool_)
        self._begin_episodes(all_rows)
        self._resetting[:] = False
        obs = self._new_obs()
        observations, info = self._reset_all()
        self._write(observations, obs)
        self._write_masks(observations, info, self.mask)
        is_method = self._masks is not None and self._masks.source == "method"
        if is_method and self.autoreset == "same_step":
            raise self._failure(
                None,
                "in same-step mode `action_masks()` has no mask of an episode's last observation: "
                "return `info['action_mask']` at each reset and step, or create the vector "
                "environment with another autoreset mode",
                kind=MaskError,
            )
        if self._may_warn:
            self._warn_unused_masks(self._vector, observations, info)
        self._check_first_obs(obs, all_rows)
        if self._first_env == 0 and self._episode[0] == 0 and self._spec.stream == "training":
            warn_of_coarse_numbers(self._env_id, self.obs_spec, obs)
        if not self._is_final_check_done:
            self._final_check = FinalObsCheck(obs)
        return obs

    def step(self, action: Array, out: StepArrays | None = None) -> StepArrays:
        """See `VectorEnv.step`."""
        if out is None:
            out = self._step_buffers
        check_call(self._env_id, action, self._action_shape, has_begun=self._episode[0] >= 0)
        next_obs, reward, terminated, truncated, valid, obs, next_mask, self.mask = out
        # Step all environments, and copy the results.
        try:
            result = self._vector.step(self._decoder.batch(action))
        except (Exception, SystemExit) as error:
            raise self._failure(None, f"`step` raised {describe_exception(error)}") from error
        try:
            observations, rewards, is_terminated, is_truncated, info = result
        except (TypeError, ValueError):
            raise self._failure(None, describe_bad_step(result)) from None
        if not isinstance(info, dict):
            raise self._failure(None, describe_bad_info(info))
        self._write(observations, next_obs)
        rewards = self._as_rows(rewards, "rewards")
        self._write_rewards(rewards, reward)
        terminated[...] = self._as_rows(is_terminated, "terminations", are_flags=True)
        truncated[...] = self._as_rows(is_truncated, "truncations", are_flags=True)
        valid.fill(True)
        self._num_steps += 1
        self._returns += rewards
        self._lengths += 1
        obs[...] = next_obs
        if self.autoreset == "next_step" and self._resetting.any():
            self._mark_resets(out)
        is_ended = self._episode_ended(terminated, truncated, info)
        has_ended = is_ended.any()
        if self.autoreset == "same_step":  # ended rows have the first masks of the next episodes
            self._write_masks(observations, info, next_mask, begins=is_ended)
        else:
            self._write_masks(observations, info, next_mask, is_last=terminated)
        self.mask[...] = next_mask
        # End finished episodes, and begin the next ones.
        if has_ended:
            episodes = [
                self._ended_episode(
                    i, self._metrics.values_of_env(info, i), self._returns[i], self._lengths[i]
                )
                for i in np.flatnonzero(is_ended).tolist()
            ]
            if self.autoreset == "next_step":
                self._resetting = is_ended
            else:
                with span("env_reset"):
                    if self.autoreset == "same_step":
                        self._write_final(info, is_ended, out)
                    self._begin_episodes(is_ended)
                    if self.autoreset == "masked":
                        self._reset_masked(is_ended, obs)
                    self._check_first_obs(obs, is_ended)
            self._finished += [
                episode
                for episode in episodes
                if not self._totals[episode.env - self._first_env].is_continued()
            ]
        if self._final_check is not None and (has_ended or not self._final_check.has_change):
            self._check_final_obs(is_ended, out)
        return out

    def running_episodes(self) -> list[tuple[int, int]]:
        """See `VectorEnv.running_episodes`."""
        return list(zip(self._episode, self._lengths.tolist(), strict=True))

    def resume(
        self,
        episodes: Sequence[RunningEpisode],
        on_step: Callable[[], None] = lambda: None,
    ) -> tuple[Array, list[int]]:
        """See `VectorEnv.resume`.

        No environment can be stepped alone. The longest episode begins first, and each of the
        others later by the difference of their lengths.
        """
        self._episode = [episode.episode for episode in episodes]
        if not self.can_replay:
            return self.reset(), list(range(self.num_envs))
        self._episode = [episode.episode - 1 for episode in episodes]
        obs = self.reset()
        self._lengths[:] = [len(episode.actions) for episode in episodes]
        try:
            failed = self._replay(episodes, obs, on_step)
        except Exception:  # a non-deterministic environment may fail in any way
            failed = np.ones(self.num_envs, np.bool_)
        for i, episode in enumerate(episodes):
            failed[i] |= obs_hash(obs[i]) != episode.obs_hash
        if failed.any():
            self._begin_episodes(failed)
            self._reset_masked(failed, obs)
            self._check_first_obs(obs, failed)
        return obs, np.flatnonzero(failed).tolist()

    def _replay(
        self, episodes: Sequence[RunningEpisode], obs: Array, on_step: Callable[[], None]
    ) -> Array:
        """Repeat all actions, write the last observations, return which ended early: bool, (N,)."""
        lengths = self._lengths.copy()
        longest = int(lengths.max())
        action = np.zeros(self._action_shape, self.action_spec.dtype)
        is_ended, failed = np.zeros((2, self.num_envs), np.bool_)
        for t in range(longest + 1):
            on_step()
            begins = (lengths == longest - t) | is_ended  # those that still wait may end, too
            if begins.any():
                self._reset_masked(begins, obs)
            if t == longest:
                break
            is_running = lengths >= longest - t
            for i in np.flatnonzero(is_running).tolist():
                action[i] = episodes[i].actions[t - longest + lengths[i]]
            observations, reward, terminated, truncated, info = self._vector.step(
                self._decoder.batch(action)
            )
            is_ended = self._episode_ended(terminated, truncated, info)
            failed |= is_running & is_ended
            self._returns[is_running] += reward[is_running]
            new_obs = np.empty_like(obs)
            self._write(observations, new_obs)
            new_mask = np.ones_like(self.mask)
            self._write_masks(observations, info, new_mask, is_last=terminated | ~is_running)
            obs[is_running], self.mask[is_running] = new_obs[is_running], new_mask[is_running]
        return failed

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """See `VectorEnv.call`."""
        return self._attributes("call")(name, *args, **kwargs)

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """See `VectorEnv.get_attr`."""
        return self._attributes("get_attr")(name)

    def set_attr(self, name: str, values: Any) -> None:
        """See `VectorEnv.set_attr`."""
        self._attributes("set_attr")(name, values)

    def _attributes(self, method_name: str) -> Callable[..., Any]:
        """Return a method of the vector environment that reaches its single environments."""
        envs: Any = self._vector
        while not callable(method := getattr(envs, method_name, None)):
            envs = getattr(envs, "env", None)
            if envs is None:
                raise ConfigError(
                    f"{self._env_id}: attributes of its environments can't be reached, because "
                    f"{describe_value(self._vector)} has no `{method_name}`: use single "
                    "environments"
                )
        return method

    def close(self) -> None:
        """See `VectorEnv.close`."""
        if not self._is_closed:
            self._is_closed = True
            self._episode = [-1] * self.num_envs
            self._vector.close()

    def _episode_ended(self, terminated: Array, truncated: Array, info: Any) -> Array:
        """Return whether the environment's whole episode has ended, not only a life: bool, (N,)."""
        if self._is_playing is not None:
            terminated = terminated & ~self._is_playing(info)
        return terminated | truncated

    def _mark_resets(self, out: StepArrays) -> None:
        """Next-step mode: mark the rows of environments that this call has reset."""
        rows = self._resetting
        out.valid[rows] = False
        out.reward[rows] = 0.0
        out.terminated[rows] = False
        out.truncated[rows] = False
        self._begin_episodes(rows)
        self._check_first_obs(out.obs, rows)
        self._resetting = np.zeros(self.num_envs, np.bool_)

    def _write_final(self, info: dict[str, Any], is_ended: Array, out: StepArrays) -> None:
        """Same-step mode: copy the true successors and their masks from `info`."""
        final_obs = info.get("final_obs")
        if final_obs is None:
            raise self._failure(
                None,
                "in same-step mode `info` must have `final_obs` when an episode ends, got "
                f"{sorted(info)}: keep it in the wrappers, or create the vector environment with "
                "another autoreset mode",
            )
        masks = info.get("final_info", {}).get(MASK_KEY)
        for i in np.flatnonzero(is_ended).tolist():
            self._write(final_obs[i], out.next_obs[i])
            final = {} if masks is None else {MASK_KEY: masks[i]}
            is_last = out.terminated[i]
            self._write_masks(final_obs[i], final, out.next_mask[i], is_last=is_last, row=i)

    def _check_final_obs(self, is_ended: Array, out: StepArrays) -> None:
        """Same-step mode: warn once if final observations are those of the next episode."""
        assert self._final_check is not None
        is_correct = self._final_check.update(is_ended, out)
        if is_correct is None:
            return
        self._is_final_check_done, self._final_check = True, None
        if not is_correct:
            warnings.warn(
                f"{self._env_id}: `final_obs` must be the last observation of the episode that "
                "ended, but it always equals the first of the next one: it may be a view of a "
                "buffer that the reset overwrites, so that truncated episodes bootstrap from a "
                "wrong value. Return `obs.copy()` from the environment's `step`. In a vector "
                "environment, set `infos['final_obs'][i] = obs[i].copy()` before the reset",
                RuntimeWarning,
                stacklevel=3,
            )

    def _reset_masked(self, is_ended: Array, obs: Array) -> None:
        seeds = None
        if self._takes_seeds:
            seeds = [self._episode_seed(i) if is_ended[i] else None for i in range(self.num_envs)]
        observations, info = self._call_reset(seed=seeds, options={"reset_mask": is_ended.copy()})
        first, first_mask = np.empty_like(obs), np.empty_like(self.mask)
        self._write(observations, first)
        self._write_masks(observations, info, first_mask, is_last=~is_ended)  # the others continue
        obs[is_ended], self.mask[is_ended] = first[is_ended], first_mask[is_ended]

    def _reset_all(self) -> Any:
        if self._is_envpool:  # EnvPool is seeded at its creation
            return self._call_reset()
        if self._takes_seeds:
            return self._call_reset(seed=[self._episode_seed(i) for i in range(self.num_envs)])
        return self._call_reset(seed=self._episode_seed(0))

    def _call_reset(self, **arguments: Any) -> Any:
        try:
            result = self._vector.reset(**arguments)
        except (Exception, SystemExit) as error:
            raise self._failure(None, f"`reset` raised {describe_exception(error)}") from error
        return self._check(None, check_reset, result)

    def _episode_seed(self, i: int) -> int:
        return self._spec.episode_seed(i, self._episode[i])

    def _begin_episodes(self, rows: Array) -> None:
        self._returns[rows] = 0.0
        self._lengths[rows] = 0
        for i in np.flatnonzero(rows):
            self._episode[i] += 1

    def _write(self, observations: Any, out: Array) -> None:
        """Encode observations of all environments, (N, *obs_shape), or of one, (*obs_shape)."""
        self._check(None, self._encoder.write, observations, out)
        if not has_finite_square(out):
            self._check(None, self._encoder.check_range, observations, out)

    def _write_masks(
        self,
        observations: Any,
        info: Any,
        out: Array,
        *,
        is_last: Any = False,
        begins: Array | None = None,
        row: int | None = None,
    ) -> None:
        """Write the masks of all environments, or of `row`. Those of `is_last` may be missing.

        Errors in rows of `begins` name the next episode.
        """
        if self._masks is None:
            return
        env = self._vector if row is None else None  # a method returns masks after the reset
        try:
            self._masks.write_from(env, observations, info, out, is_last)
        except MismatchError as error:
            row = error.row if row is None else row
            if begins is not None and row is not None and begins[row]:
                self._begin_episodes(np.arange(self.num_envs) == row)
            raise self._failure(row, str(error), kind=MaskError) from None

    def _as_rows(self, values: Any, name: str, *, are_flags: bool = False) -> Array:
        return self._check(None, partial(as_rows, are_flags=are_flags), values, self.num_envs, name)

    def _write_rewards(self, rewards: Array, out: Array) -> None:
        with np.errstate(over="ignore"):  # the code below reports an overflow
            out[...] = rewards
        if has_finite_square(out):
            return
        for i in np.flatnonzero(np.isfinite(rewards) & ~np.isfinite(out)).tolist():
            name = f"the reward of environment {self._first_env + i}"
            problem = describe_range(name, float(rewards[i]))
            raise self._failure(None, problem, kind=NonFiniteStep)

    def _check_first_obs(self, obs: Array, rows: Array) -> None:
        if obs.dtype.kind != "f" or np.isfinite(obs[rows]).all():
            return
        for i in np.flatnonzero(rows).tolist():
            problem = describe_non_finite(obs[i], self.obs_spec)
            if problem is not None:
                raise self._failure(i, problem)

    def _current_step(self, i: int) -> int | None:
        length = int(self._lengths[i])
        return length - 1 if length else None


def _is_envpool(envs: Any) -> bool:
    return any(base.__module__.partition(".")[0] == "envpool" for base in type(envs).__mro__)


def _check_synchronous(envs: Any, env_id: str) -> None:
    batch_size = envs.config["batch_size"]
    if batch_size != envs.num_envs:
        raise ConfigError(
            f"{env_id}: EnvPool must step all of its {envs.num_envs} environments at once, got "
            f"batch_size {batch_size}: leave `batch_size` out"
        )


def _check_shared_memory(envs: Any, env_id: str) -> None:
    if not envs.shared_memory:
        raise ConfigError(
            f"{env_id}: an AsyncVectorEnv in next-step mode must have `shared_memory`, since "
            "without it Gymnasium's processes reset an environment again in the step after its "
            "reset: leave `shared_memory` out, or choose another `autoreset_mode`"
        )


def _autoreset_mode(envs: Any, env_id: str) -> Autoreset:
    mode = (getattr(envs, "metadata", None) or {}).get("autoreset_mode")
    if mode is None:  # the only mode before Gymnasium 1.1
        return "next_step"
    name = str(getattr(mode, "value", mode)).lower().replace("_", "")
    modes: dict[str, Autoreset] = {
        "nextstep": "next_step",
        "samestep": "same_step",
        "disabled": "masked",
    }
    if name not in modes:
        raise ConfigError(
            f"{env_id}: `metadata['autoreset_mode']` must be one of "
            f"gymnasium.vector.AutoresetMode, got {mode!r}"
        )
    return modes[name]
