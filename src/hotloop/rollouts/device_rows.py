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
    """One step of N environments, (N, …), or T steps, (T, N, …); see `types.Fragment`."""

    obs: Tensor
    action: Tensor
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    next_obs: Tensor
    value: Tensor
    log_prob: Tensor


class Told(NamedTuple):
    """What is only known once T steps are made: tensors, (T, N).

    Attributes:
        next_value: float32, V of the successors, 0 where terminated.
        episode: int64, number of the episode.
        episode_return: float64, of the episode so far, this step's reward included.
        episode_length: int64, likewise.
    """

    next_value: Tensor
    episode: Tensor
    episode_return: Tensor
    episode_length: Tensor


def stacked(steps: list[Rows]) -> Rows:
    """Return T steps as one, (T, N, …)."""
    return Rows(*(torch.stack(column) for column in zip(*steps, strict=True)))


def told_of(here: Mapping[str, Tensor], rows: Rows, next_value: Tensor) -> Told:
    """Count episodes and sum their rewards.

    Args:
        here: the counts until now, `episode`, `episode_return` and `episode_length`, (N,), which go
            on in place.
        rows: T steps.
        next_value: (T, N), V of their successors.
    """
    ended, reward = rows.terminated | rows.truncated, rows.reward.to(torch.float64)
    total, length = here["episode_return"], here["episode_length"]
    episode = here["episode"] + ended.cumsum(0) - ended.to(torch.int64)
    totals: list[Tensor] = []
    lengths: list[Tensor] = []
    for t in range(len(reward)):
        totals.append(total + reward[t])
        lengths.append(length + 1)
        total = totals[-1].masked_fill(ended[t], 0.0)
        length = lengths[-1].masked_fill(ended[t], 0)
    told = Told(
        next_value=next_value.masked_fill(rows.terminated, 0.0),
        episode=episode,
        episode_return=torch.stack(totals),
        episode_length=torch.stack(lengths),
    )
    here["episode"].add_(ended.sum(0))
    here["episode_return"].copy_(total)
    here["episode_length"].copy_(length)
    return told


def row_of(obs: Tensor, acted: tuple[Tensor, Tensor, Tensor], step: DeviceStep) -> Rows:
    """Return all that is kept of a step, (N, …).

    Args:
        obs: what was acted on.
        acted: the action, log π(action) and V(obs).
        step: what it led to.
    """
    action, log_prob, value = acted
    return Rows(
        obs=obs,
        action=action,
        reward=step.reward,
        terminated=step.terminated,
        truncated=step.truncated,
        next_obs=step.next_obs,
        value=value,
        log_prob=log_prob,
    )
