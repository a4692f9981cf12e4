"""Heads turn a network's outputs into actions: on NumPy for acting and in torch for learning.

To add a head, write a module here with a subclass of `Head`, and add it to `HEADS`. Noise is drawn
ahead for many steps as a function of (seed, step, environment), so the actions do not depend on the
acting process.
"""

from __future__ import annotations

from hotloop.policies.heads.base import Head
from hotloop.policies.heads.bounded import Deterministic, SquashedGaussian
from hotloop.policies.heads.categorical import Categorical, MultiCategorical
from hotloop.policies.heads.dueling import Dueling
from hotloop.policies.heads.gaussian import (
    Gaussian,
    ScaledGaussian,
    describe_scale,
    gaussian_for,
)
from hotloop.policies.heads.greedy import Greedy

HEADS: dict[str, type[Head]] = {
    "categorical": Categorical,
    "multi_categorical": MultiCategorical,
    "gaussian": Gaussian,
    "scaled_gaussian": ScaledGaussian,
    "squashed_gaussian": SquashedGaussian,
    "deterministic": Deterministic,
    "greedy": Greedy,
    "dueling": Dueling,
}
"""Heads by name."""

__all__ = ["HEADS", "Head", "describe_scale", "gaussian_for"]
