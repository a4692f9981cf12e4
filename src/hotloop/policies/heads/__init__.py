"""Heads: what turns a network's outputs into actions, on NumPy to act and in torch to learn.

To add one, write a file here with a class that is a `Head`, and put it into `HEADS`. Noise is
drawn ahead for many steps as a function of (seed, step, environment), so that who acts, and in
which process, changes nothing. What a policy explores by is part of it.
"""

from __future__ import annotations

from hotloop.policies.heads.base import Exploration, Head
from hotloop.policies.heads.bounded import Deterministic, SquashedGaussian
from hotloop.policies.heads.categorical import Categorical, MultiCategorical
from hotloop.policies.heads.dueling import Dueling
from hotloop.policies.heads.gaussian import Gaussian
from hotloop.policies.heads.greedy import Greedy

HEADS: dict[str, type[Head]] = {
    "categorical": Categorical,
    "multi_categorical": MultiCategorical,
    "gaussian": Gaussian,
    "squashed_gaussian": SquashedGaussian,
    "deterministic": Deterministic,
    "greedy": Greedy,
    "dueling": Dueling,
}
"""Heads by name: what turns features into actions."""

__all__ = ["HEADS", "Exploration", "Head"]
