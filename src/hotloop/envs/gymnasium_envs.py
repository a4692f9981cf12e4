"""The spaces, masks and ended episodes of Gymnasium's environments, single ones or vectors."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from hotloop.envs.action_decoder import ActionDecoder
from hotloop.envs.encoding import ObsEncoder
from hotloop.envs.episode_metrics import EpisodeMetrics
from hotloop.envs.episode_totals import EpisodeTotals
from hotloop.envs.masks import MaskWriter, find_source, with_masks
from hotloop.envs.protocol import allocate_step
from hotloop.envs.spec import EnvSpec
from hotloop.errors import EnvironmentFailure
from hotloop.types import Array, Episode

REWARD_SUM = "reward_sum"
"""Metric of an episode whose recorded return is not the sum of the rewards: that sum."""


class GymnasiumEnvs:
    """The part of a `VectorEnv` that does not depend on how environments are stepped.

    Attributes:
        mask: actions that the last observations allow, bool, (N, M).
    """

    def __init__(
        self, env: Any, num_envs: int, spaces: tuple[Any, Any], spec: EnvSpec, env_id: str
    ) -> None:
        self.num_envs = num_envs
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

    def _episode_failure(
        self, i: int, problem: str, step: int | None, kind: type[EnvironmentFailure]
    ) -> EnvironmentFailure:
        """Return an error that names environment, episode and step. A step of None is the reset."""
        place = "at its reset" if step is None else f"step {step}"
        env, episode = self._first_env + i, self._episode[i]
        return kind(f"{self._env_id}, environment {env}, episode {episode}, {place}: {problem}")

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
