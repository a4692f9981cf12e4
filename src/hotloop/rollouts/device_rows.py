"""Rows of fragments on the device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from hotloop.envs.device.protocol import DeviceStep


class DeviceRows(NamedTuple):
    """T steps of N environments, (T, N, …); see `types.Fragment`."""

    obs: Tensor
    action: Tensor
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    next_obs: Tensor
    value: Tensor
    log_prob: Tensor


class DerivedRows(NamedTuple):
    """Values that are computed from T steps, as tensors, (T, N).

    Attributes:
        next_value: V(next_obs), float32, 0 if terminated.
        episode: Number of the episode, int64.
        episode_return: Return of the episode up to and including this step, float64.
        episode_length: Length of the episode up to and including this step, int64.
    """

    next_value: Tensor
    episode: Tensor
    episode_return: Tensor
    episode_length: Tensor


def stack_rows(steps: list[tuple[Tensor, tuple[Tensor, ...], DeviceStep]]) -> DeviceRows:
    """Return T steps as stacked tensors, (T, N, …).

    Args:
        steps: For each step, the observations before it, (N, …); the actions, their log π and
            V(obs); and its results.
    """
    rows = [
        (obs, action, x.reward, x.terminated, x.truncated, x.next_obs, value, log_prob)
        for obs, (action, log_prob, value), x in steps
    ]
    return DeviceRows(*(torch.stack(column) for column in zip(*rows, strict=True)))


def derive_rows(
    counters: Mapping[str, Tensor], rows: DeviceRows, next_value: Tensor
) -> DerivedRows:
    """Return episode counts and sums of rewards for each row.

    Args:
        counters: `episode`, `episode_return` and `episode_length` before these rows, (N,). They
            are updated in place.
        rows: T steps.
        next_value: V(next_obs), (T, N).
    """
    is_over, reward = rows.terminated | rows.truncated, rows.reward.to(torch.float64)
    total, length = counters["episode_return"], counters["episode_length"]
    episode = counters["episode"] + is_over.cumsum(0) - is_over.to(torch.int64)
    totals: list[Tensor] = []
    lengths: list[Tensor] = []
    for t in range(len(reward)):
        totals.append(total + reward[t])
        lengths.append(length + 1)
        total = totals[-1].masked_fill(is_over[t], 0.0)
        length = lengths[-1].masked_fill(is_over[t], 0)
    derived = DerivedRows(
        next_value=next_value.masked_fill(rows.terminated, 0.0),
        episode=episode,
        episode_return=torch.stack(totals),
        episode_length=torch.stack(lengths),
    )
    counters["episode"].add_(is_over.sum(0))
    counters["episode_return"].copy_(total)
    counters["episode_length"].copy_(length)
    return derived
