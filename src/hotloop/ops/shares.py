"""Weights that give fast and slow sources of rows the same share of a batch."""

from __future__ import annotations

import numpy as np

from hotloop.types import Array


def equal_shares(counts: Array, sizes: Array | None = None) -> Array:
    """Return weights that give each source of rows the same share of a batch.

    w_i = mean of all t / t_i, where source i has t_i rows. Without these weights, the policy would
    fit the fast environments. They equal the importance weights in the authors' implementation of
    variable experience rollouts (Wijmans et al. 2022, arXiv:2210.05064).

    Args:
        counts: t, (G,), positive.
        sizes: number of sources with each count, (G,). None: one each.

    Returns:
        float64, (G,), 1 on average over all rows.
    """
    return np.average(counts, weights=sizes) / counts
