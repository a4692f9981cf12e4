"""Exponential and logarithm in float32, which a loop over lanes can take eight or sixteen at a
time.

Polynomials were fitted by least squares at Chebyshev nodes; every operation is rounded as IEEE 754
says, so the results are the same on every machine. Errors: log2 2e-7, exp2 8e-8, relative.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hotloop.compiled import bits_of_f32, f32_of_bits, fma_f32, inline, max_f32

f32: Any = np.float32
u32: Any = np.uint32
i32: Any = np.int32

# log2(m) / (m − 1) for m in [√½, √2], in powers of m − _L_MIDDLE.
_L_MIDDLE = np.float32(1.0606601717798214)
_L0, _L1, _L2, _L3, _L4, _L5, _L6, _L7 = (
    np.float32(c)
    for c in (
        1.4006305,
        -0.666743824,
        0.421193782,
        -0.298713416,
        0.223412624,
        -0.175710329,
        0.17202222,
        -0.142376485,
    )
)
# 2^f for f in [−½, ½].
_E0, _E1, _E2, _E3, _E4, _E5 = (
    np.float32(c)
    for c in (1.00000007, 0.693146949, 0.240221218, 0.0555074262, 0.00967545975, 0.00132669704)
)
_ROOT_HALF = np.uint32(0x3F3504F3)  # bits of √½
_LOG2_E = np.float32(1.4426950408889634)
_ROUNDER = np.float32(12582912.0)  # 1.5 · 2²³: added and taken away it rounds to a whole number
_LEAST = np.float32(-87.0)  # exp of less would be denormal


@inline
def log2_f32(x: float) -> float:
    """log2(x) for a positive, normal x."""
    bits = bits_of_f32(x)
    exponent = i32(bits - _ROOT_HALF) >> i32(23)
    m = f32_of_bits(u32(bits - u32(exponent << i32(23))))
    v = m - _L_MIDDLE
    v2 = v * v
    low = fma_f32(fma_f32(_L3, v, _L2), v2, fma_f32(_L1, v, _L0))
    high = fma_f32(fma_f32(_L7, v, _L6), v2, fma_f32(_L5, v, _L4))
    return fma_f32(m - f32(1.0), fma_f32(high, v2 * v2, low), f32(exponent))


@inline
def exp_f32(x: float) -> float:
    """e^x for x up to 87; below −87 it stays at e^−87."""
    bounded = max_f32(x, _LEAST)
    whole = fma_f32(bounded, _LOG2_E, _ROUNDER)
    n = whole - _ROUNDER
    f = fma_f32(bounded, _LOG2_E, -n)
    f2 = f * f
    low = fma_f32(fma_f32(_E3, f, _E2), f2, fma_f32(_E1, f, _E0))
    power = fma_f32(fma_f32(_E5, f, _E4), f2 * f2, low)
    # `whole` holds n in its lowest bits; shifted left they are added to the exponent.
    return f32_of_bits(u32(bits_of_f32(power) + (bits_of_f32(whole) << u32(23))))
