"""Random numbers that are a function of (seed, run, step, stream), for whole blocks.

Philox 4×32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"): the seed is the
key, (run, step, stream, …) the counter. A run's numbers do not depend on other runs, the order, the
thread or the agent. 128 bits take 2.3 ns on AVX2.

Normals come from Box and Muller's transform, 0.6 ns each. An inverse of the distribution function
takes 1.6 ns, because it computes a logarithm, two polynomials and a root for each normal.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hotloop.bandits.kernels import layout
from hotloop.bandits.kernels.layout import LANES
from hotloop.bandits.kernels.mathematics import f32, i32, log2_f32, u32, u64
from hotloop.base.numba_tools import (
    bits_of_f32,
    f32_of_bits,
    fma_f32,
    inline,
    jit,
    load_i64,
    load_u32,
    max_f32,
    sqrt_f32,
    store_f32,
    store_u32,
)

POLICY_STREAM, REWARD_STREAM, MEANS_STREAM, WALK_STREAM, SAMPLE_STREAM = range(1, 6)
BETA_STREAM, CONTEXT_STREAM, THETA_STREAM, USER_AGENT_STREAM, USER_ENVIRONMENT_STREAM = range(6, 11)

i64: Any = np.int64
f64: Any = np.float64

_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = np.uint32(0x9E3779B9), np.uint32(0xBB67AE85)
_32 = np.uint64(32)
_1 = np.uint32(1)
_SIGN = np.uint32(0x80000000)
_TO_UNIT_31 = np.float32(2.0**-31)
_TWO_LN_2 = np.float32(2 * np.log(2.0))
# sin(f π/4) / f and cos(f π/4) as polynomials in f²; errors 3e-9 and 3e-8.
_S0, _S1, _S2, _S3 = (
    np.float32(c) for c in (0.785398161, -0.0807454325, 0.00249000086, -3.59503437e-05)
)
_C0, _C1, _C2, _C3 = (
    np.float32(c) for c in (0.999999967, -0.308424165, 0.0158496818, -0.000318726324)
)


@inline
def philox(c0: int, c1: int, c2: int, c3: int, k0: int, k1: int) -> tuple[int, int, int, int]:
    """Return four words (uint32) from a counter of four and a key of two, in ten rounds."""
    for _ in range(10):
        p0 = u64(c0) * _M0
        p1 = u64(c2) * _M1
        c0 = u32(p1 >> _32) ^ c1 ^ k0
        c1 = u32(p1)
        c2 = u32(p0 >> _32) ^ c3 ^ k1
        c3 = u32(p0)
        k0 = u32(k0 + _W0)
        k1 = u32(k1 + _W1)
    return c0, c1, c2, c3


@jit
def fill_words(frame: int, target: int, major: int, stream: int, minor: int) -> None:
    """Store the words of all lanes for the counter (run, major, stream, minor): (4, LANES)."""
    first = u32(load_i64(frame, layout.FIRST_RUN))
    k0, k1 = u32(load_i64(frame, layout.KEY_LOW)), u32(load_i64(frame, layout.KEY_HIGH))
    c1, c2, c3 = u32(major), u32(stream), u32(minor)
    for i in range(LANES):
        a, b, c, d = philox(u32(first + u32(i)), c1, c2, c3, k0, k1)
        store_u32(target, i, a)
        store_u32(target, LANES + i, b)
        store_u32(target, 2 * LANES + i, c)
        store_u32(target, 3 * LANES + i, d)


@jit
def lane_words(frame: int, lane: int, major: int, stream: int, minor: int) -> Any:
    """Return the four words of one lane."""
    run = u32(u32(load_i64(frame, layout.FIRST_RUN)) + u32(lane))
    k0, k1 = u32(load_i64(frame, layout.KEY_LOW)), u32(load_i64(frame, layout.KEY_HIGH))
    return philox(run, u32(major), u32(stream), u32(minor), k0, k1)


@inline
def normal_pair(a: int, b: int) -> tuple[float, float]:
    """Return two independent normals (float32) from two words.

    The radius is √(−2 ln u) with u from 31 bits. The angle lies within ±π/4, from 32 bits. Three of
    its lowest bits swap the two normals and choose their signs, which covers the circle twice.
    """
    u = (f32(i32(a >> _1)) + f32(0.5)) * _TO_UNIT_31
    radius = sqrt_f32(max_f32(f32(0.0), -log2_f32(u) * _TWO_LN_2))
    f = f32(i32(b)) * _TO_UNIT_31
    v = f * f
    v2 = v * v
    x = radius * (f * fma_f32(fma_f32(_S3, v, _S2), v2, fma_f32(_S1, v, _S0)))
    y = radius * fma_f32(fma_f32(_C3, v, _C2), v2, fma_f32(_C1, v, _C0))
    is_straight = (b & _1) != u32(0)
    p = x if is_straight else y
    q = y if is_straight else x
    p = f32_of_bits(bits_of_f32(p) ^ ((b << u32(30)) & _SIGN))
    q = f32_of_bits(bits_of_f32(q) ^ ((b << u32(29)) & _SIGN))
    return p, q


@jit
def fill_normals(target: int, words: int, scale: float, shift: float) -> None:
    """Store shift + scale · normal for four words a lane: float32, (4, LANES)."""
    factor, offset = f32(scale), f32(shift)
    for half in range(2):
        first = half * 2 * LANES
        for i in range(LANES):
            p, q = normal_pair(load_u32(words, first + i), load_u32(words, first + LANES + i))
            store_f32(target, first + i, offset + factor * p)
            store_f32(target, first + LANES + i, offset + factor * q)


@inline
def unit(word: int) -> float:
    """Return a uniform number in [0, 1) from a word's upper 24 bits, exact in float32."""
    return f32(i32(word >> u32(8))) * f32(2.0**-24)
