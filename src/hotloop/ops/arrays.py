"""The array library of an argument, for functions that are written once for arrays and tensors."""

from __future__ import annotations

from typing import Any

import numpy as np

from hotloop.types import Array


def namespace(x: object) -> Any:
    """Return `torch` for a tensor, and `numpy` for anything else.

    Most of their functions have the same names, and take `axis`, `dtype` and `out` alike.
    """
    if hasattr(x, "requires_grad"):  # does not import torch for arrays
        import torch

        return torch
    return np


def backward_sums(terms: Array, factors: Array) -> Array:
    """Return x_t = terms_t + factors_t x_{t+1} with x_T = 0: floats, (T, …)."""
    xp = namespace(terms)
    sums = xp.empty_like(terms)
    sums[-1] = terms[-1]
    for t in range(len(terms) - 2, -1, -1):
        if xp is np:
            np.add(terms[t], factors[t] * sums[t + 1], out=sums[t])
        else:  # `addcmul` launches one kernel per step instead of two
            xp.addcmul(terms[t], factors[t], sums[t + 1], out=sums[t])
    return sums
