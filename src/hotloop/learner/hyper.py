"""Hyper-parameters that may change during training, as 0-d tensors."""

from __future__ import annotations

from typing import Any, TypeAlias

import torch

from hotloop.ops.schedules import as_schedule

Scalar: TypeAlias = Any
"""A field of an algorithm's `Hyper`: a 0-d float32 tensor in an update, a float in `prepare`, and a
number or a schedule in the configuration."""


class HyperParameters:
    """The current values of a `Hyper`.

    A schedule, a sweep or a user changes the tensors in place, so nothing is compiled again.

    Args:
        values: a `Hyper`, a NamedTuple of numbers and schedules.
        device: the learner's device.

    Attributes:
        floats: a `Hyper` of floats, for code on the host.
        tensors: a `Hyper` of 0-d float32 tensors, which are never replaced.
    """

    def __init__(self, values: Any, device: torch.device) -> None:
        self._type: Any = type(values)
        self._schedules = [as_schedule(value) for value in values]
        self._is_constant = all(schedule.is_constant for schedule in self._schedules)
        self.floats = self._type(*(schedule(0.0) for schedule in self._schedules))
        self.tensors = self._type(
            *(torch.tensor(value, dtype=torch.float32, device=device) for value in self.floats)
        )

    def set(self, progress: float) -> None:
        """Set the values to those of the schedules at this progress.

        Args:
            progress: the finished share of the run, in [0, 1].
        """
        if self._is_constant:
            return
        values = self._type(*(schedule(progress) for schedule in self._schedules))
        for tensor, value, old_value in zip(self.tensors, values, self.floats, strict=True):
            if value != old_value:
                tensor.fill_(value)
        self.floats = values

    def reported_values(self) -> dict[str, float]:
        """Return the learning rates and all values with a schedule, by name."""
        items = zip(self.floats._fields, self.floats, self._schedules, strict=True)
        return {
            name: value
            for name, value, schedule in items
            if name.endswith("learning_rate") or not schedule.is_constant
        }
