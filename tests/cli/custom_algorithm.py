"""A custom algorithm whose training raises an exception with its arguments."""

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
    """Options of the custom algorithm."""

    learning_rate: ScheduledPositive = linear(1e-3, 0.0)
    """Adam's α."""
    target: ScheduledFinite | None = None
    """Target value."""


class TrainCalled(Exception):
    """Ends the command and carries the arguments of `train`."""

    def __init__(self, config: Config, options: dict[str, Any]) -> None:
        self.config = config
        self.options = options


class Algorithm:
    name = "own"
    config = Config
    presets: ClassVar = {"Pendulum-v1": {"learning_rate": 0.5, "seed": 7}}

    def train(self, config: Config, **options: Any) -> None:
        raise TrainCalled(config, options)


algorithm = Algorithm()
