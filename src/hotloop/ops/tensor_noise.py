"""Noise that is a function of (seed, stream, step, environment), drawn where the tensors are.

This is the torch twin of `hotloop.ops.noise`. Step and seed are tensors, so that each call of one
compiled function or CUDA graph draws new numbers, and there is no generator state to save. The
random words are the same to the last bit. Uniform numbers have 23 bits, the resolution of float32
just below 1.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_LOW = 0xFFFFFFFF
_HALF = 0xFFFF


def seed_key(seed: int, device: torch.device | str) -> Tensor:
    """Return the key of a seed, 0 … 2⁶⁴ − 1: int64, (2,), 32 bits each."""
    return torch.tensor([seed & _LOW, (seed >> 32) & _LOW], dtype=torch.int64, device=device)


def philox_4x32(counter: tuple[Tensor, Tensor, Tensor, Tensor], key: Tensor) -> Tensor:
    """Compute ten rounds of Philox 4×32.

    Args:
        counter: Four broadcastable tensors of 32-bit words in int64.
        key: Two 32-bit words in int64, (2,).

    Returns:
        32-bit words in int64, (*shape, 4).
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key.unbind()
    for _ in range(10):
        high_0, low_0 = _product(c0, _MULTIPLIERS[0])
        high_1, low_1 = _product(c2, _MULTIPLIERS[1])
        c0, c1, c2, c3 = high_1 ^ c1 ^ k0, low_1, high_0 ^ c3 ^ k1, low_0
        k0, k1 = (k0 + _WEYL[0]) & _LOW, (k1 + _WEYL[1]) & _LOW
    return torch.stack(torch.broadcast_tensors(c0, c1, c2, c3), -1)


def uniform(
    key: Tensor,
    first_step: Tensor,
    *,
    num_steps: int,
    num_envs: int,
    size: int,
    stream: int = 0,
) -> Tensor:
    """Return uniform numbers in (0, 1) for `num_steps` steps of `num_envs` environments.

    Args:
        key: The run's key, see `seed_key`.
        first_step: int64, 0-d, index of the first step, counted from the start of the run.
        num_steps: T.
        num_envs: N.
        size: Number of values per step and environment.
        stream: 0 … 2³¹ − 1, a different one for each purpose.

    Returns:
        float32, (T, N, size), on a grid of 2⁻²³, never 0 or 1.
    """
    blocks, device = -(-size // 4), key.device
    step = first_step + torch.arange(num_steps, device=device)[:, None, None]
    env = torch.arange(num_envs, device=device)[None, :, None]
    block = torch.arange(blocks, device=device)[None, None, :]
    words = philox_4x32((step & _LOW, (step >> 32) ^ stream, env, block), key)
    # With 24 bits, the largest number plus one half would be rounded to 1.
    numbers = ((words >> 9).to(torch.float32) + 0.5) * 2.0**-23
    return numbers.flatten(2)[..., :size]


def normal(
    key: Tensor,
    first_step: Tensor,
    *,
    num_steps: int,
    num_envs: int,
    size: int,
    stream: int = 0,
) -> Tensor:
    """Return standard normal numbers, see `uniform`. Method: Box and Muller (1958).

    Returns:
        float32, (T, N, size).
    """
    pairs = -(-size // 2)
    shape = {"num_steps": num_steps, "num_envs": num_envs, "size": 2 * pairs}
    uniforms = uniform(key, first_step, **shape, stream=stream)
    radius = (-2.0 * uniforms[..., :pairs].log()).sqrt()
    angle = 2.0 * math.pi * uniforms[..., pairs:]
    return torch.cat([radius * angle.cos(), radius * angle.sin()], -1)[..., :size]


def gumbel(
    key: Tensor,
    first_step: Tensor,
    *,
    num_steps: int,
    num_envs: int,
    size: int,
    stream: int = 0,
) -> Tensor:
    """Return Gumbel noise, −log(−log u), see `uniform`.

    Returns:
        float32, (T, N, size).
    """
    shape = {"num_steps": num_steps, "num_envs": num_envs, "size": size}
    return -(-uniform(key, first_step, **shape, stream=stream).log()).log()


def _product(word: Tensor, factor: int) -> tuple[Tensor, Tensor]:
    """Return the high and the low 32 bits of a product of 32-bit words."""
    # The factor is split into halves, because the whole product does not fit into a signed 64-bit
    # number, and signed overflow is undefined in C++.
    above, below = word * (factor >> 16), word * (factor & _HALF)
    high = (above + (below >> 16)) >> 16
    low = (((above & _HALF) << 16) + below) & _LOW
    return high, low
