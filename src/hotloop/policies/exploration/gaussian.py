"""Gaussian noise, independent from step to step."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from hotloop.ops.noise import counter_normal
from hotloop.policies.exploration.base import Exploration
from hotloop.policies.heads import Head
from hotloop.policies.heads.base import num_action_values
from hotloop.policies.heads.bounded import Bounded
from hotloop.types import Array


@dataclass(frozen=True, kw_only=True)
class GaussianNoise(Exploration):
    """Gaussian noise on deterministic actions.

    Attributes:
        std: standard deviation, in units of half the width of the bounds.
    """

    heads: ClassVar[tuple[type[Head], ...]] = (Bounded,)
    std: float

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("std", 0.0 <= self.std < math.inf, "a number from 0")

    def action_noise(self, head: Head, seed: int, **block: int) -> Array:
        return self.std * counter_normal(seed, size=num_action_values(head.spec), **block)
