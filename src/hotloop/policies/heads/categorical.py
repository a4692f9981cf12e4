"""Heads for one or several discrete actions: the argmax of logits plus Gumbel noise."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from hotloop.ops.noise import counter_gumbel
from hotloop.policies.heads.base import Head, Params
from hotloop.types import Array

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Categorical(Head):
    """One discrete action: the argmax of logits plus Gumbel noise samples from their softmax."""

    meaning = description = "logits"
    kind = "discrete"

    def draw_noise(self, seed: Any, **block: Any) -> Any:
        """Return Gumbel noise, also on a device."""
        return counter_gumbel(seed, size=self.size, **block)

    def draw_from(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
        """Return Gumbel noise."""
        return rng.gumbel(size=shape).astype(np.float32)

    def choose(self, outputs: Array, noise: Array, out: Array, params: Params) -> None:
        self.greedy(outputs + noise, out)

    def write(self, unit: Array, out: Array) -> None:
        """Write uniform actions from independent uniform numbers, (B, H): the greatest one's."""
        self.greedy(unit, out)

    def log_prob(self, outputs: Array, noise: Array, action: Array, params: Params) -> Array:
        return _log_prob(outputs, action)

    def draw(self, params: Params, outputs: Tensor, noise: Tensor) -> Tensor:
        return self.mode(outputs + noise)

    def evaluate(self, params: Params, outputs: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        from hotloop.ops import distributions

        return distributions.categorical(outputs, action)


@dataclass(frozen=True)
class MultiCategorical(Categorical):
    """Several independent discrete actions."""

    kind = "multi_discrete"

    @cached_property
    def _segments(self) -> list[tuple[int, int]]:
        return list(pairwise(np.cumsum((0, *self.spec.nvec)).tolist()))

    def greedy(self, outputs: Array, out: Array) -> None:
        for k, (start, stop) in enumerate(self._segments):
            out[:, k] = outputs[:, start:stop].argmax(axis=1)

    def log_prob(self, outputs: Array, noise: Array, action: Array, params: Params) -> Array:
        total = np.zeros(outputs.shape[:-1], np.float32)
        for k, (start, stop) in enumerate(self._segments):
            total += _log_prob(outputs[..., start:stop], action[..., k])
        return total

    def mode(self, outputs: Tensor) -> Tensor:
        import torch

        return torch.stack([part.argmax(1) for part in outputs.split(self.spec.nvec, 1)], 1)

    def evaluate(self, params: Params, outputs: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        from hotloop.ops import distributions

        return distributions.multi_categorical(outputs, action, self.spec.nvec)


def _log_prob(logits: Array, action: Array) -> Array:
    """Return log softmax(logits)[action]: (…,), from (…, A) and (…,)."""
    # Use ufuncs, and `take` with flat indices: `max`, `sum` and `take_along_axis` are four times
    # slower on short fragments.
    shifted = logits - np.maximum.reduce(logits, axis=-1, keepdims=True)
    log_sum = np.log(np.add.reduce(np.exp(shifted), axis=-1))
    first = np.arange(0, shifted.size, shifted.shape[-1]).reshape(action.shape)
    return shifted.take(first + action) - log_sum
