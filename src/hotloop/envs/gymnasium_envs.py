"""The spaces, masks and ended episodes of Gymnasium's environments, single ones or vectors."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from hotloop.envs.action_decoder import ActionDecoder
from hotloop.envs.attributes import call_each, set_each
from hotloop.envs.checks import FLOAT32_MAX, as_reward, describe_range
from hotloop.envs.closing import close_all
from hotloop.envs.encoding import ObsEncoder
from hotloop.envs.episode_metrics import EpisodeMetrics
from hotloop.envs.episode_totals import EpisodeTotals
from hotloop.envs.masks import MaskWriter, find_source, with_masks
from hotloop.envs.protocol import allocate_step
from hotloop.envs.spec import EnvSpec
from hotloop.errors import EnvironmentFailure, NonFiniteStep
from hotloop.types import Array, Episode

REWARD_SUM = "reward_sum"
"""Metric of an episode whose recorded return is not the sum of the rewards: that sum."""


class GymnasiumEnvs:
    """The part of a `VectorEnv` that does not depend on how environments are stepped.

    A subclass sets `_envs` to its single environments, or overrides the methods that use them.

    Attributes:
        mask: actions that the last observations allow, bool, (N, M).
    """

    def __init__(
        self, env: Any, num_envs: int, spaces: tuple[Any, Any], spec: EnvSpec, env_id: str
    ) -> None:
        self.num_envs = num_envs
        self._envs: list[Any] = []
        self._spec, self._first_env, self._env_id = spec, spec.first_env, env_id
        self._encoder = ObsEncoder(spaces[0], has_masks=spec.action_masks)
        self._decoder = ActionDecoder(spaces[1])
        self.obs_spec, self.action_spec = self._encoder.spec_for(env), self._decoder.spec
        self._masks: MaskWriter | None = None
        if spec.action_masks:
            self.action_spec = with_masks(self.action_spec)
            self._masks = MaskWriter(self.action_spec)
        self._may_warn = (
            not spec.action_masks and self.action_spec.kind != "box" and spec.first_env == 0
        )
        self._action_shape = (num_envs, *self.action_spec.shape)
        self._step_buffers = allocate_step(num_envs, self.obs_spec, self.action_spec.mask_size)
        self.mask = self._step_buffers.mask
        self._episode = [-1] * num_envs
        self._num_steps = 0
        self._metrics = EpisodeMetrics(spec.log_info, env_id)
        self._totals: list[EpisodeTotals] = []
        self._finished: list[Episode] = []

    def pop_episodes(self) -> list[Episode]:
        """See `VectorEnv.pop_episodes`."""
        finished, self._finished = self._finished, []
        return finished

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """See `VectorEnv.call`."""
        return call_each(self._envs, name, *args, **kwargs)

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """See `VectorEnv.get_attr`."""
        return self.call(name)

    def set_attr(self, name: str, values: Any) -> None:
        """See `VectorEnv.set_attr`. A replaced environment begins with its own values."""
        set_each(self._envs, name, values, self.num_envs)

    def close(self) -> None:
        """See `VectorEnv.close`."""
        envs, self._envs = self._envs, []
        self._episode = [-1] * self.num_envs
        close_all(envs)

    def _new_obs(self) -> Array:
        """Return zeroed observations, (N, *obs_shape), and make new masks: callers keep the old."""
        self.mask = np.ones_like(self.mask)
        return np.zeros((self.num_envs, *self.obs_spec.shape), self.obs_spec.dtype)

    def _ended_episode(self, i: int, info: Any, summed_return: Any, num_steps: Any) -> Episode:
        total, length = self._totals[i].at_end(info, float(summed_return), int(num_steps))
        # A recorder inside of a wrapper that changes rewards: show the sum of these, too. With
        # another length, the record is of a game, and the sum of its last life.
        if length == num_steps and not math.isclose(
            total, summed_return, rel_tol=1e-3, abs_tol=1e-3
        ):
            record = info.get("episode")
            numbers = record if isinstance(record, Mapping) else {}
            info = {**info, "episode": {**numbers, REWARD_SUM: float(summed_return)}}
        metrics = self._metrics.from_info(info)
        return Episode(self._first_env + i, self._episode[i], total, length, metrics)

    def _check_reward(self, i: int, reward: Any) -> float:
        """Return a reward as a number that float32 holds. NaN and infinity are found later."""
        value = self._check(i, as_reward, reward)
        if not -FLOAT32_MAX <= value <= FLOAT32_MAX and math.isfinite(value):
            raise self._failure(i, describe_range("the reward", value), kind=NonFiniteStep)
        return value

    def _check(
        self, i: int | None, function: Callable[..., Any], *values: Any, at_reset: bool = False
    ) -> Any:
        """Call a function whose ValueError describes a wrong value of environment `i`."""
        try:
            return function(*values)
        except ValueError as error:
            kind = getattr(error, "failure_class", EnvironmentFailure)
            raise self._failure(i, str(error), at_reset=at_reset, kind=kind) from None

    def _failure(
        self,
        i: int | None,
        problem: str,
        *,
        at_reset: bool = False,
        kind: type[EnvironmentFailure] = EnvironmentFailure,
    ) -> EnvironmentFailure:
        """Return an error that names environment, episode and step. None: all environments."""
        if i is None:
            last_env = self._first_env + self.num_envs - 1
            place = f"environments {self._first_env} … {last_env}, vector step {self._num_steps}"
        else:
            step = None if at_reset else self._current_step(i)
            place = f"environment {self._first_env + i}, episode {self._episode[i]}, "
            place += "at its reset" if step is None else f"step {step}"
        return kind(f"{self._env_id}, {place}: {problem}")

    def _current_step(self, i: int) -> int | None:
        """Return the number of the step that environment `i` is in, None at its reset."""
        raise NotImplementedError

    def _warn_unused_masks(self, env: Any, observation: Any, info: Any) -> None:
        """Warn once if environments have masks, which the run ignores."""
        if find_source(env, observation, info) is None:
            return
        self._may_warn = False
        warnings.warn(
            f"{self._env_id} has action masks, which this run ignores: train ppo, appo or dqn with "
            "`action_masks` (`--action-masks`) to sample and learn only allowed actions",
            UserWarning,
            stacklevel=4,
        )
