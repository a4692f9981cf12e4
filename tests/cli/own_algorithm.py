"""An algorithm of a user's own, as the command line sees one: it prints how it was called."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from hotloop.ops.schedules import linear
from hotloop.training.options import (
    NetworkOptions,
    RunOptions,
    ScheduledFinite,
    ScheduledPositive,
)


@dataclass(frozen=True, kw_only=True)
class Config(NetworkOptions, RunOptions):
    """Options of an algorithm of one's own."""

    learning_rate: ScheduledPositive = linear(1e-3, 0.0)
    """Adam's α."""
    target: ScheduledFinite | None = None
    """Where to go."""


class Called(Exception):
    """What stops the command once the algorithm is called."""

    def __init__(self, config: Config, options: dict[str, Any]) -> None:
        self.config = config
        self.options = options


class Algorithm:
    name = "own"
    config = Config
    presets: ClassVar = {"Pendulum-v1": {"learning_rate": 0.5, "seed": 7}}

    def train(self, config: Config, **options: Any) -> None:
        raise Called(config, options)


algorithm = Algorithm()
