"""Batches of Stable-Baselines3's replay buffer, gathered with fewer copies.

The buffer stays Stable-Baselines3's own, with its arrays, its files and its random numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.type_aliases import ReplayBufferSamples

from hotloop.accelerate.acceleration import own_methods
from hotloop.types import Array

# The methods of a replay buffer that make a batch.
_METHODS = ("sample", "_get_samples", "_normalize_obs", "_normalize_reward", "to_torch")


def sample(buffer: Any, batch_size: int, normalizer: Any = None) -> Any:
    """Return what `buffer.sample(batch_size, env=normalizer)` returns.

    Args:
        buffer: any replay buffer. Only a plain `ReplayBuffer` on the CPU is gathered here, if its
            methods were not replaced.
        batch_size: B.
        normalizer: a VecNormalize, or None.
    """
    is_plain = type(buffer) is ReplayBuffer and not own_methods(buffer, _METHODS)
    if not is_plain or normalizer is not None or buffer.device.type != "cpu":
        return buffer.sample(batch_size, env=normalizer)
    # Draw rows and environments as the original does.
    if not buffer.optimize_memory_usage:
        size = buffer.buffer_size if buffer.full else buffer.pos
        steps = np.random.randint(0, size, size=batch_size)
    elif buffer.full:
        steps = np.random.randint(1, buffer.buffer_size, size=batch_size) + buffer.pos
        steps %= buffer.buffer_size
    else:
        steps = np.random.randint(0, buffer.pos, size=batch_size)
    env_indices = np.random.randint(0, high=buffer.n_envs, size=(batch_size,))

    # One index for both axes: an index of two arrays takes three times as long.
    rows = steps * buffer.n_envs + env_indices
    if buffer.optimize_memory_usage:
        next_rows = (steps + 1) % buffer.buffer_size * buffer.n_envs + env_indices
        next_obs = _take(buffer.observations, next_rows)
    else:
        next_obs = _take(buffer.next_observations, rows)
    dones = _take(buffer.dones, rows)
    if buffer.handle_timeout_termination:
        dones *= 1 - _take(buffer.timeouts, rows)
    fields = (
        _take(buffer.observations, rows),
        _take(buffer.actions, rows),
        next_obs,
        dones.reshape(-1, 1),
        _take(buffer.rewards, rows).reshape(-1, 1),
    )
    return ReplayBufferSamples(*map(torch.from_numpy, fields))


def _take(array: Array, rows: Array) -> Array:
    return array.reshape(-1, *array.shape[2:]).take(rows, axis=0)
