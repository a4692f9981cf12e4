"""Noise that is a function of (seed, stream, step, environment), drawn where the tensors are.

The twin of `hotloop.ops.noise` in torch. The step is a tensor and so is the seed: one compiled
function, or one CUDA graph, draws anew at each call, and there is no generator whose state would
have to be saved. Words are the same to the last bit; uniform numbers keep 23 bits of a word, as
many as float32 has below 1.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_LOW = 0xFFFFFFFF
_HALF = 0xFFFF


def key_of(seed: int, device: torch.device | str) -> Tensor:
    """Return the key that a seed, 0 … 2⁶⁴ − 1, makes: int64, (2,), 32 bits each."""
    return torch.tensor([seed & _LOW, (seed >> 32) & _LOW], dtype=torch.int64, device=device)


def philox_4x32(counter: tuple[Tensor, Tensor, Tensor, Tensor], key: Tensor) -> Tensor:
    """Ten rounds of Philox 4×32.

    Args:
        counter: four tensors of int64 that hold 32-bit words, of one shape or broadcastable.
        key: int64, (2,), two 32-bit words.

    Returns:
        int64 that holds 32-bit words, (*shape, 4).
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
    """Uniform numbers in (0, 1) for `num_steps` steps of `num_envs` environments.

    Args:
        key: of the run, see `key_of`.
        first_step: int64, 0-d, number of the first step, counted from the start of the run.
        num_steps: T.
        num_envs: N.
        size: numbers for each step of each environment.
        stream: 0 … 2³¹ − 1, keeps different uses apart.

    Returns:
        float32, (T, N, size), on a grid of 2⁻²³, never 0 or 1.
    """
    blocks, device = -(-size // 4), key.device
    step = first_step + torch.arange(num_steps, device=device)[:, None, None]
    env = torch.arange(num_envs, device=device)[None, :, None]
    block = torch.arange(blocks, device=device)[None, None, :]
    words = philox_4x32((step & _LOW, (step >> 32) ^ stream, env, block), key)
    # 24 bits and the half would be rounded to 1.
    drawn = ((words >> 9).to(torch.float32) + 0.5) * 2.0**-23
    return drawn.flatten(2)[..., :size]


def normal(
    key: Tensor,
    first_step: Tensor,
    *,
    num_steps: int,
    num_envs: int,
    size: int,
    stream: int = 0,
) -> Tensor:
    """Standard normal numbers, by the transform of Box and Muller (1958); arguments as above.

    Returns:
        float32, (T, N, size).
    """
    pairs = -(-size // 2)
    shape = {"num_steps": num_steps, "num_envs": num_envs, "size": 2 * pairs}
    drawn = uniform(key, first_step, **shape, stream=stream)
    radius = (-2.0 * drawn[..., :pairs].log()).sqrt()
    angle = 2.0 * math.pi * drawn[..., pairs:]
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
    """Gumbel noise, −log(−log u); arguments as above.

    Returns:
        float32, (T, N, size).
    """
    shape = {"num_steps": num_steps, "num_envs": num_envs, "size": size}
    return -(-uniform(key, first_step, **shape, stream=stream).log()).log()


def _product(word: Tensor, factor: int) -> tuple[Tensor, Tensor]:
    """Return the high and the low 32 bits of a product of 32-bit words.

    In halves of the factor: the whole product does not fit into a signed 64-bit number, and what
    C++ makes of that is anybody's guess.
    """
    above, below = word * (factor >> 16), word * (factor & _HALF)
    high = (above + (below >> 16)) >> 16
    low = (((above & _HALF) << 16) + below) & _LOW
    return high, low
