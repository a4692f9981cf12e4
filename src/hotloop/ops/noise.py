"""Noise as a function of (seed, stream, step, environment), independent of earlier draws.

Philox 4×32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3") turns a 128-bit
counter and a 64-bit key into 128 random bits. The counter is (step, environment, block), so that an
action's noise does not depend on the worker or on the order of draws.
"""

from __future__ import annotations

import numpy as np

from hotloop.types import Array

_MULTIPLIER_0 = np.uint64(0xD2511F53)
_MULTIPLIER_1 = np.uint64(0xCD9E8D57)
_WEYL_0 = 0x9E3779B9
_WEYL_1 = 0xBB67AE85
_LOW = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)


def philox_4x32(counter: tuple[Array, Array, Array, Array], key: tuple[int, int]) -> Array:
    """Compute ten rounds of Philox 4×32.

    Args:
        counter: Four broadcastable arrays of 32-bit words in uint64.
        key: Two 32-bit words.

    Returns:
        32-bit words in uint64, (*shape, 4).
    """
    c0, c1, c2, c3 = np.broadcast_arrays(*counter)
    k0, k1 = key
    for _ in range(10):
        p0 = c0 * _MULTIPLIER_0
        p1 = c2 * _MULTIPLIER_1
        c0 = (p1 >> _SHIFT) ^ c1 ^ np.uint64(k0)
        c1 = p1 & _LOW
        c2 = (p0 >> _SHIFT) ^ c3 ^ np.uint64(k1)
        c3 = p0 & _LOW
        k0 = (k0 + _WEYL_0) & 0xFFFFFFFF
        k1 = (k1 + _WEYL_1) & 0xFFFFFFFF
    return np.stack([c0, c1, c2, c3], axis=-1)


def counter_uniform(
    seed: int,
    *,
    first_step: int,
    num_steps: int,
    num_envs: int,
    size: int,
    first_env: int = 0,
    stream: int = 0,
) -> Array:
    """Return uniform numbers in (0, 1) for `num_steps` steps of `num_envs` environments.

    Args:
        seed: The run's seed, 0 … 2⁶⁴ − 1.
        first_step: Index of the first step, counted from the start of the run.
        num_steps: T.
        num_envs: N.
        size: Number of values per step and environment.
        first_env: Index of the first environment.
        stream: 0 … 2³¹ − 1, a different one for each purpose.

    Returns:
        float64, (T, N, size), on a grid of 2⁻³², never 0 or 1.
    """
    blocks = -(-size // 4)
    step = np.arange(first_step, first_step + num_steps, dtype=np.uint64)[:, None, None]
    env = np.arange(first_env, first_env + num_envs, dtype=np.uint64)[None, :, None]
    block = np.arange(blocks, dtype=np.uint64)[None, None, :]
    # The stream's word includes the high half of the step, so that long runs do not repeat.
    high = (step >> _SHIFT) ^ np.uint64(stream)
    words = philox_4x32(
        (step & _LOW, high, env, block), (seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF)
    )
    uniform = (words.reshape(num_steps, num_envs, blocks * 4) + 0.5) * 2.0**-32
    return uniform[..., :size]


def counter_normal(
    seed: int,
    *,
    first_step: int,
    num_steps: int,
    num_envs: int,
    size: int,
    first_env: int = 0,
    stream: int = 0,
) -> Array:
    """Return standard normal numbers, see `counter_uniform`. Method: Box and Muller (1958).

    Returns:
        float32, (T, N, size).
    """
    pairs = -(-size // 2)
    uniform = counter_uniform(
        seed,
        first_step=first_step,
        num_steps=num_steps,
        num_envs=num_envs,
        size=2 * pairs,
        first_env=first_env,
        stream=stream,
    )
    radius = np.sqrt(-2.0 * np.log(uniform[..., :pairs]))
    angle = 2.0 * np.pi * uniform[..., pairs:]
    normal = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)], axis=-1)
    return normal[..., :size].astype(np.float32)
