"""Fragments of tensors, and the rows that they are made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from hotloop.envs.device.protocol import DeviceStep


@dataclass(slots=True)
class DeviceFragment:
    """T steps of N environments, time-major, as tensors on the device; see `types.Fragment`."""

    obs: Tensor
    action: Tensor
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    next_obs: Tensor
    value: Tensor
    next_value: Tensor
    log_prob: Tensor
    last_obs: Tensor
    policy_version: int = 0
    first_env: int = 0

    @property
    def num_steps(self) -> int:
        """T."""
        return self.reward.shape[0]

    @property
    def num_envs(self) -> int:
        """N."""
        return self.reward.shape[1]

    @property
    def valid(self) -> Tensor:
        """Bool, (T, N): every row is a transition."""
        return torch.ones_like(self.terminated)


class Rows(NamedTuple):
    """One step of N environments, (N, …), or T steps, (T, N, …).

    Attributes:
        episode: int64, number of the episode.
        episode_return: float64, of the episode so far, this step's reward included.
        episode_length: int64, likewise.
    """

    obs: Tensor
    action: Tensor
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    next_obs: Tensor
    value: Tensor
    log_prob: Tensor
    episode: Tensor
    episode_return: Tensor
    episode_length: Tensor


class Tally:
    """Counts episodes and sums their rewards while environments step.

    Args:
        here: has the counts so far; left alone until `keep`.
    """

    _NAMES = ("episode", "episode_return", "episode_length")

    def __init__(self, here: Mapping[str, Tensor]) -> None:
        self._episode, self._return, self._length = (here[name] for name in self._NAMES)

    def row(
        self, obs: Tensor, action: Tensor, step: DeviceStep, value: Tensor, log_prob: Tensor
    ) -> Rows:
        """Count a step, and return all that is kept of it."""
        total, length = self._return + step.reward.double(), self._length + 1
        row = Rows(
            obs=obs,
            action=action,
            reward=step.reward,
            terminated=step.terminated,
            truncated=step.truncated,
            next_obs=step.next_obs,
            value=value,
            log_prob=log_prob,
            episode=self._episode,
            episode_return=total,
            episode_length=length,
        )
        ended = step.terminated | step.truncated
        self._episode = self._episode + ended
        self._return, self._length = total.masked_fill(ended, 0.0), length.masked_fill(ended, 0)
        return row

    def keep(self, here: Mapping[str, Tensor]) -> None:
        """Write the counts where the next block begins with them."""
        for name, x in zip(self._NAMES, (self._episode, self._return, self._length), strict=True):
            here[name].copy_(x)


def stacked(steps: list[Rows]) -> Rows:
    """Return T steps as one, (T, N, …)."""
    return Rows(*(torch.stack(column) for column in zip(*steps, strict=True)))
