"""Adapters that make the three ways in which vector environments reset themselves alike.

A vector environment steps N environments in one call, and what it does where an episode ends is its
`metadata["autoreset_mode"]` (Gymnasium ≥ 1.1; older ones and EnvPool are next-step):

    NEXT_STEP   gives the last observation; the next call ignores the action and gives the first
                observation of the next episode. That call is no transition: `valid` is False.
    SAME_STEP   gives the first observation of the next episode at once, the last in
                `info["final_obs"]`.
    DISABLED    gives the last observation; we reset with `options={"reset_mask": ended}`.

Gymnasium's own `SyncVectorEnv` and `AsyncVectorEnv` take a mask in NEXT_STEP mode too, so that they
spend no call on a reset, and every episode has its own seed.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from hotloop.envs.checks import check_call, describe_value, failure, non_finite
from hotloop.envs.encoding import ActionDecoder, MismatchError, ObsEncoder
from hotloop.envs.masks import KEY, MaskWriter, warn_of_masks, with_mask
from hotloop.envs.numbers import EpisodeNumbers
from hotloop.envs.protocol import allocate_step, obs_hash
from hotloop.envs.seeding import Stream, episode_seed
from hotloop.errors import ConfigError, EnvironmentFailure, MaskError
from hotloop.importing import describe_exception
from hotloop.timing import span
from hotloop.types import Array, Episode, RunningEpisode, StepArrays

if TYPE_CHECKING:
    from gymnasium.vector import VectorEnv

Autoreset = Literal["next_step", "same_step", "masked"]

# Truncated episodes after which final observations that all were wrong are told of.
_ENOUGH_EPISODES = 10


class VectorAdapter:
    """One of Gymnasium's or EnvPool's vector environments, stepped into the caller's arrays.

    Args:
        envs: the vector environment.
        env_id: what messages call it.
        seed: of the run.
        first_env: number of its first environment, counted over all workers.
        stream: training and evaluation see other episodes.
        action_masks: whether rows end in the masks that it tells, see `hotloop.envs.masks`.
        log_info: keys of `info` whose numbers episodes keep, see `hotloop.envs.numbers`.

    Raises:
        SpaceError: a space is not supported.
        ConfigError: its mode of autoreset is unknown, or it steps fewer environments than it has.
    """

    def __init__(
        self,
        envs: VectorEnv[Any, Any, Any],
        *,
        env_id: str,
        seed: int,
        first_env: int = 0,
        stream: Stream = "training",
        action_masks: bool = False,
        log_info: Sequence[str] = (),
    ) -> None:
        from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

        self.num_envs: int = envs.num_envs
        self._envs = envs
        self._env_id = env_id
        self._seed = seed
        self._first_env = first_env
        self._stream: Stream = stream
        self._is_closed = False
        self._takes_seeds = isinstance(envs.unwrapped, (SyncVectorEnv, AsyncVectorEnv)) or (
            getattr(envs, "takes_seeds", False)
        )
        # Where what ends is a part of a game, such as a life.
        self._goes_on: Callable[[Any], Any] | None = getattr(envs, "goes_on", None)
        self._is_envpool = _is_envpool(envs)
        if self._is_envpool:
            _check_synchronous(envs, env_id)
        self.autoreset = _autoreset(envs, env_id)
        if self.autoreset == "next_step" and type(envs) in (SyncVectorEnv, AsyncVectorEnv):
            self.autoreset = "masked"
        self._encoder = ObsEncoder(envs.single_observation_space)
        self._decoder = ActionDecoder(envs.single_action_space)
        self.obs_spec = self._encoder.spec_of(envs)
        self.action_spec = self._decoder.spec
        self._num_features = self.obs_spec.shape[0] if self.obs_spec.shape else 0
        self._masks: MaskWriter | None = None
        if action_masks:
            self.obs_spec = with_mask(self.obs_spec, self.action_spec)
            self._masks = MaskWriter(self.action_spec)
        self._may_warn = not action_masks and self.action_spec.kind != "box" and first_env == 0
        self._own = allocate_step(self.num_envs, self.obs_spec)
        self._action_shape = (self.num_envs, *self.action_spec.shape)
        self._returns = np.zeros(self.num_envs, np.float64)
        self._lengths = np.zeros(self.num_envs, np.int64)
        self._episode = [-1] * self.num_envs
        self._num_steps = 0
        # Next-step mode: rows whose episode ended, so that the next call resets them.
        self._resetting = np.zeros(self.num_envs, np.bool_)
        # Same-step mode, until it is known whether final observations are what they should be.
        self._finals: _FinalObservations | None = None
        self._knows_finals = self.autoreset != "same_step"
        self._numbers = EpisodeNumbers(log_info, env_id)
        self._finished: list[Episode] = []

    def reset(self, first_episode: int | None = None) -> Array:
        """See `VectorEnv.reset`."""
        if first_episode is not None:
            self._episode = [first_episode - 1] * self.num_envs
        everywhere = np.ones(self.num_envs, np.bool_)
        self._begin_episodes(everywhere)
        self._resetting[:] = False
        obs = np.zeros((self.num_envs, *self.obs_spec.shape), self.obs_spec.dtype)
        observations, info = self._reset_all()
        self._write(observations, obs, info)
        if self._may_warn and KEY in info:
            self._may_warn = False
            warn_of_masks(self._env_id)
        self._check_first_obs(obs, everywhere)
        if not self._knows_finals:
            self._finals = _FinalObservations(obs)
        return obs

    def step(self, action: Array, out: StepArrays | None = None) -> StepArrays:
        """See `VectorEnv.step`."""
        if out is None:
            out = self._own
        check_call(self._env_id, action, self._action_shape, has_begun=self._episode[0] >= 0)
        next_obs, reward, terminated, truncated, valid, obs = out
        try:
            result = self._envs.step(self._decoder.batch(action))
        except Exception as error:
            raise self._failure(f"`step` raised {describe_exception(error)}") from error
        try:
            observations, rewards, is_terminated, is_truncated, info = result
        except (TypeError, ValueError):
            raise self._failure(
                "`step` must return (obs, reward, terminated, truncated, info), "
                f"got {describe_value(result)}: return all five, as Gymnasium's interface says"
            ) from None
        # Same-step mode: of what has ended these are the next episode's.
        is_last = False if self.autoreset == "same_step" else is_terminated
        self._write(observations, next_obs, info, is_last=is_last)
        rewards = self._checked("rewards", rewards)
        reward[...] = rewards
        terminated[...] = self._checked("terminations", is_terminated)
        truncated[...] = self._checked("truncations", is_truncated)
        valid.fill(True)
        obs[...] = next_obs
        self._num_steps += 1
        self._returns += rewards
        self._lengths += 1
        if self.autoreset == "next_step" and self._resetting.any():
            self._mark_resets(out)
        ended = self._ended(terminated, truncated, info)
        has_ended = ended.any()
        if has_ended:
            self._end_episodes(ended, info)
            if self.autoreset == "next_step":
                self._resetting = ended
            else:
                with span("env_reset"):
                    self._begin_episodes(ended)
                    if self.autoreset == "same_step":
                        self._write_final(info, ended, terminated, next_obs)
                    else:
                        self._reset_masked(ended, obs)
                    self._check_first_obs(obs, ended)
        if self._finals is not None and (has_ended or not self._finals.has_change):
            self._look_at_finals(ended, out)
        return out

    def running(self) -> list[tuple[int, int]]:
        """See `VectorEnv.running`."""
        return list(zip(self._episode, self._lengths.tolist(), strict=True))

    def resume(
        self,
        episodes: Sequence[RunningEpisode],
        on_step: Callable[[], None] = lambda: None,
    ) -> tuple[Array, list[int]]:
        """See `VectorEnv.resume`.

        None can be stepped alone, so the longest episode is begun first, and each of the others
        when it has as many steps left as they have.
        """
        self._episode = [episode.episode for episode in episodes]
        if not self.can_replay:
            return self.reset(), list(range(self.num_envs))
        self._episode = [episode.episode - 1 for episode in episodes]
        obs = self.reset()
        self._lengths[:] = [len(episode.actions) for episode in episodes]
        try:
            failed = self._replay(episodes, obs, on_step)
        except Exception:  # what does not repeat itself may fail in any way
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
        """Repeat the actions of all episodes, and write the last observations.

        Returns:
            bool, (N,): whether an episode ended on the way.
        """
        lengths = self._lengths.copy()
        longest = int(lengths.max())
        action = np.zeros(self._action_shape, self.action_spec.dtype)
        failed = np.zeros(self.num_envs, np.bool_)
        for t in range(longest + 1):
            on_step()
            begins = lengths == longest - t
            if begins.any():
                self._reset_masked(begins, obs)
            if t == longest:
                break
            runs = lengths >= longest - t
            for i in np.flatnonzero(runs).tolist():
                action[i] = episodes[i].actions[t - longest + lengths[i]]
            observations, reward, terminated, truncated, info = self._envs.step(
                self._decoder.batch(action)
            )
            ended = self._ended(terminated, truncated, info)
            failed |= runs & ended
            self._returns[runs] += reward[runs]
            following = np.empty_like(obs)
            self._write(observations, following, info, is_last=terminated)
            obs[runs] = following[runs]
        return failed

    @property
    def can_replay(self) -> bool:
        """Whether episodes can be begun one by one, each from its own seed."""
        return self._takes_seeds and self.autoreset == "masked"

    def pop_episodes(self) -> list[Episode]:
        """See `VectorEnv.pop_episodes`."""
        finished, self._finished = self._finished, []
        return finished

    def close(self) -> None:
        """See `VectorEnv.close`."""
        if not self._is_closed:
            self._is_closed = True
            self._episode = [-1] * self.num_envs
            self._envs.close()

    def _ended(self, terminated: Array, truncated: Array, info: Any) -> Array:
        """Return where the environment is over, and not only what is learned from: bool, (N,)."""
        if self._goes_on is not None:
            terminated = terminated & ~self._goes_on(info)
        return terminated | truncated

    def _mark_resets(self, out: StepArrays) -> None:
        """Next-step mode: this call was spent on the reset of those that ended in the last one."""
        rows = self._resetting
        out.valid[rows] = False
        out.reward[rows] = 0.0
        out.terminated[rows] = False
        out.truncated[rows] = False
        self._begin_episodes(rows)
        self._check_first_obs(out.obs, rows)
        self._resetting = np.zeros(self.num_envs, np.bool_)

    def _write_final(self, info: Any, ended: Array, terminated: Array, next_obs: Array) -> None:
        """Same-step mode: the true successors, which the reset has pushed into `info`."""
        final_obs = info.get("final_obs") if isinstance(info, dict) else None
        if final_obs is None:
            raise self._failure(
                "in same-step mode `info` must have `final_obs` where an episode ends, got "
                f"{sorted(info) if isinstance(info, dict) else describe_value(info)}: keep it in "
                "the wrappers, or make the vector environment with another autoreset mode"
            )
        masks = info.get("final_info", {}).get(KEY) if self._masks is not None else None
        for i in np.flatnonzero(ended):
            final = {} if masks is None else {KEY: masks[i]}
            self._write(final_obs[i], next_obs[i], final, is_last=terminated[i])

    def _look_at_finals(self, ended: Array, out: StepArrays) -> None:
        """Same-step mode: warn, once, where final observations are not those of the end."""
        assert self._finals is not None
        are_right = self._finals.look(ended, out)
        if are_right is None:
            return
        self._knows_finals, self._finals = True, None
        if not are_right:
            warnings.warn(
                f"{self._env_id}: `final_obs` must be the last observation of the episode that "
                "ended, but it always equals the first of the next one: it seems to be a view of a "
                "buffer that the reset writes to, and truncated episodes are learned from with a "
                "wrong value. Return `obs.copy()` from the environment's `step`; in a vector "
                "environment of your own, `infos['final_obs'][i] = obs[i].copy()` before the reset",
                RuntimeWarning,
                stacklevel=3,
            )

    def _reset_masked(self, ended: Array, obs: Array) -> None:
        seeds = None
        if self._takes_seeds:
            seeds = [self._episode_seed(i) if ended[i] else None for i in range(self.num_envs)]
        observations, info = self._call_reset(seed=seeds, options={"reset_mask": ended.copy()})
        first = np.empty_like(obs)
        self._write(observations, first, info, is_last=~ended)  # the others go on
        obs[ended] = first[ended]

    def _reset_all(self) -> Any:
        if self._is_envpool:  # seeded when it was made
            return self._call_reset()
        if self._takes_seeds:
            return self._call_reset(seed=[self._episode_seed(i) for i in range(self.num_envs)])
        return self._call_reset(seed=self._episode_seed(0))

    def _call_reset(self, **arguments: Any) -> Any:
        try:
            result = self._envs.reset(**arguments)
        except Exception as error:
            raise self._failure(f"`reset` raised {describe_exception(error)}") from error
        if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict)):
            raise self._failure(
                f"`reset` must return (obs, info), got {describe_value(result)}: return both, as "
                "Gymnasium's interface says"
            )
        return result

    def _episode_seed(self, i: int) -> int:
        return episode_seed(self._seed, self._first_env + i, self._episode[i], self._stream)

    def _begin_episodes(self, rows: Array) -> None:
        self._returns[rows] = 0.0
        self._lengths[rows] = 0
        for i in np.flatnonzero(rows):
            self._episode[i] += 1

    def _end_episodes(self, ended: Array, info: Any) -> None:
        for i in np.flatnonzero(ended).tolist():
            self._finished.append(
                Episode(
                    env=self._first_env + i,
                    episode=self._episode[i],
                    undiscounted_return=float(self._returns[i]),
                    length=int(self._lengths[i]),
                    info=self._numbers.of_row(info, i),
                )
            )

    def _write(
        self,
        observations: Any,
        out: Array,
        info: Any,
        *,
        is_last: Any = False,
    ) -> None:
        """Encode observations, and the masks that `info` holds.

        Args:
            observations: of all environments, or of one.
            out: (N, *obs_shape), or of one.
            info: of these.
            is_last: bool, where no mask is needed, see `MaskWriter.write`.
        """
        features = out if self._masks is None else out[..., : self._num_features]
        try:
            self._encoder.write(observations, features)
        except MismatchError as error:
            raise self._failure(str(error)) from None
        if self._masks is None:
            return
        try:
            self._masks.write_of(info, out[..., self._num_features :], is_last=is_last)
        except MismatchError as error:
            raise MaskError(str(self._failure(str(error)))) from None

    def _checked(self, name: str, values: Any) -> Array:
        array = np.asarray(values)
        if array.shape != (self.num_envs,) or array.dtype.kind not in "fiub":
            raise self._failure(
                f"the {name} must be {self.num_envs} numbers, got {describe_value(array)}: return "
                "one for each environment"
            )
        return array

    def _check_first_obs(self, obs: Array, rows: Array) -> None:
        if non_finite(obs[rows]) is None:
            return
        for i in np.flatnonzero(rows).tolist():
            problem = non_finite(obs[i])
            if problem is not None:
                raise failure(
                    self._env_id, problem, env=self._first_env + i, episode=self._episode[i]
                )

    def _failure(self, problem: str) -> EnvironmentFailure:
        """A failure of the whole call: which of the environments it was is for its cause to say."""
        last_env = self._first_env + self.num_envs - 1
        return failure(
            f"{self._env_id}, environments {self._first_env} … {last_env}, "
            f"vector step {self._num_steps}",
            problem,
        )


class _FinalObservations:
    """Finds out whether final observations are those of the end, or those after the reset.

    A view of a buffer that the reset writes to gives the next episode's first observation twice.
    One end where the two differ shows that all is well. Terminations alone show nothing else: what
    follows them is not learned from, and some environments give anything. Nor do observations that
    never change.

    Args:
        obs: (N, *obs_shape), the first ones of all episodes.

    Attributes:
        has_change: whether observations change within an episode, as far as is known; until they
            do, it looks at every step, and then where an episode ends.
    """

    def __init__(self, obs: Array) -> None:
        self.has_change = False
        self._first = obs.copy()
        self._num_same = 0

    def look(self, ended: Array, step: StepArrays) -> bool | None:
        """Return whether final observations are right; None: not known yet.

        Args:
            ended: bool, (N,), the episodes that this step ended.
            step: what it gave.
        """
        if not self.has_change:
            running = ~ended
            self.has_change = not np.array_equal(step.obs[running], self._first[running])
            self._first[ended] = step.obs[ended]
        if not np.array_equal(step.next_obs[ended], step.obs[ended]):
            return True
        self._num_same += int((ended & ~step.terminated).sum())
        return False if self.has_change and self._num_same >= _ENOUGH_EPISODES else None


def _is_envpool(envs: Any) -> bool:
    return any(base.__module__.partition(".")[0] == "envpool" for base in type(envs).__mro__)


def _check_synchronous(envs: Any, env_id: str) -> None:
    batch_size = envs.config["batch_size"]
    if batch_size != envs.num_envs:
        raise ConfigError(
            f"{env_id}: EnvPool must step all of its {envs.num_envs} environments at once, got "
            f"batch_size {batch_size}: leave `batch_size` out"
        )


def _autoreset(envs: Any, env_id: str) -> Autoreset:
    mode = (getattr(envs, "metadata", None) or {}).get("autoreset_mode")
    if mode is None:  # before Gymnasium 1.1 there was no other
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
