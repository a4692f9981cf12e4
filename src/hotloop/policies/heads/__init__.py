"""Heads turn a network's outputs into actions: on NumPy for acting and in torch for learning.

A head is a value with its own parameters. To add one, write a subclass of `Head`, in any module
that can be imported, and pass an instance to `actor`: files and acting processes store it as
`module:Class` with its fields. Noise is drawn ahead for many steps as a function of (seed, step,
environment), so the actions do not depend on the acting process.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hotloop.base.stored_values import value_from_json, value_to_json
from hotloop.envs.spaces import ActionSpec
from hotloop.policies.heads.base import Head
from hotloop.policies.heads.bounded import Deterministic, SquashedGaussian
from hotloop.policies.heads.categorical import Categorical, MultiCategorical
from hotloop.policies.heads.dueling import Dueling
from hotloop.policies.heads.gaussian import Gaussian, ScaledGaussian, gaussian_for
from hotloop.policies.heads.greedy import Greedy
from hotloop.policies.heads.hybrid import Hybrid
from hotloop.policies.heads.returns import DuelingReturnDistribution, ReturnDistribution

HEADS: dict[str, type[Head]] = {
    "categorical": Categorical,
    "multi_categorical": MultiCategorical,
    "gaussian": Gaussian,
    "scaled_gaussian": ScaledGaussian,
    "squashed_gaussian": SquashedGaussian,
    "deterministic": Deterministic,
    "greedy": Greedy,
    "dueling": Dueling,
    "hybrid": Hybrid,
    "return_distribution": ReturnDistribution,
    "dueling_return_distribution": DuelingReturnDistribution,
}
"""hotloop's own heads by their names in files."""

__all__ = [
    "HEADS",
    "Categorical",
    "Deterministic",
    "Dueling",
    "DuelingReturnDistribution",
    "Gaussian",
    "Greedy",
    "Head",
    "Hybrid",
    "MultiCategorical",
    "ReturnDistribution",
    "ScaledGaussian",
    "SquashedGaussian",
    "head_for",
    "head_from_json",
    "head_to_json",
]


def head_for(spec: ActionSpec) -> Head:
    """Return the head of a policy with log-probabilities for these actions."""
    if spec.kind == "box":
        return gaussian_for(spec)
    if spec.kind == "hybrid":
        return Hybrid()
    return Categorical() if spec.kind == "discrete" else MultiCategorical()


def head_to_json(head: Head) -> str | dict[str, Any]:
    """Return a head's name, with its parameters if it has any. `head_from_json` is the inverse."""
    fields = value_to_json(head)
    names = {kind: name for name, kind in HEADS.items()}
    name = names.get(type(head), str(fields["name"]))
    return {**fields, "name": name} if len(fields) > 1 else name


def head_from_json(value: str | Mapping[str, Any]) -> Head:
    """Return the head that `head_to_json` wrote. Raises like `value_from_json`."""
    fields = {"name": value} if isinstance(value, str) else value
    return value_from_json(fields, Head, HEADS, kind="head")
