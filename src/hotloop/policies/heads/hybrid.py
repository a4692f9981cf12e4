"""A head for actions with discrete and continuous parts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from hotloop.envs.spaces import ActionSpec
from hotloop.ops.arrays import namespace
from hotloop.policies.heads.base import Head, Params
from hotloop.policies.heads.categorical import MultiCategorical
from hotloop.policies.heads.gaussian import Gaussian, gaussian_for
from hotloop.types import Array

if TYPE_CHECKING:
    from torch import Tensor

_STREAM = 3  # noise stream of the continuous parts, next to those of exploration


@dataclass(frozen=True)
class Hybrid(Head):
    """Independent categorical and Gaussian parts: log-probabilities and entropies are sums.

    Outputs and noise are those of all categories, then those of the numbers. Actions are the
    components of all discrete parts, then the numbers, see `ActionSpec`.
    """

    meaning = "logits_and_means"
    description = "logits of all choices, then means"
    kind = "hybrid"

    def bind(self, spec: ActionSpec) -> Head:
        bound = super().bind(spec)
        assert isinstance(bound, Hybrid)
        # Computed now, since Dynamo can't trace the first access of a cached property.
        _ = bound.num_logits, bound.num_components
        return bound

    @cached_property
    def discrete(self) -> MultiCategorical:
        """Return the head of the discrete parts."""
        head = MultiCategorical().bind(self.spec.factors[0])
        assert isinstance(head, MultiCategorical)
        return head

    @cached_property
    def gaussian(self) -> Gaussian:
        """Return the head of the continuous parts."""
        box = self.spec.factors[1]
        head = gaussian_for(box).bind(box)
        assert isinstance(head, Gaussian)
        return head

    @cached_property
    def num_logits(self) -> int:
        return self.discrete.size

    @cached_property
    def num_components(self) -> int:
        """Return the number of discrete columns of an action."""
        return len(self.spec.nvec)

    @cached_property
    def action_scale(self) -> tuple[Array, Array] | None:
        scale = self.gaussian.action_scale
        if scale is None:
            return None
        center, half_width = scale
        discrete = np.zeros(self.num_components, np.float32)
        return _joined(discrete, center), _joined(discrete + 1.0, half_width)

    def describe_actions(self) -> str:
        return self.gaussian.describe_actions()

    def learned_shapes(self, shapes: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        return self.gaussian.learned_shapes(shapes)

    def acting_params(self, params: Params) -> dict[str, Array]:
        return self.gaussian.acting_params(params)

    def draw_noise(self, seed: Any, **block: Any) -> Any:
        """Return Gumbel noise, then standard normal numbers, also on a device."""
        gumbel = self.discrete.draw_noise(seed, **block)
        return _joined(gumbel, self.gaussian.draw_noise(seed, stream=_STREAM, **block))

    def draw_from(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
        """Return Gumbel noise, then standard normal numbers."""
        parts = self.discrete, self.gaussian
        return np.concatenate(
            [part.draw_from(rng, (shape[0], part.size)) for part in parts], axis=1
        )

    def choose(self, outputs: Array, noise: Array, out: Array, params: Params) -> None:
        (logits, means), (gumbel, normal) = self._split(outputs), self._split(noise)
        self.discrete.choose(logits, gumbel, out[:, : self.num_components], params)
        self.gaussian.choose(means, normal, out[:, self.num_components :], params)

    def greedy(self, outputs: Array, out: Array) -> None:
        logits, means = self._split(outputs)
        self.discrete.greedy(logits, out[:, : self.num_components])
        self.gaussian.greedy(means, out[:, self.num_components :])

    def log_prob(self, outputs: Array, noise: Array, action: Array, params: Params) -> Array:
        (logits, means), (gumbel, normal) = self._split(outputs), self._split(noise)
        choices, numbers = self._split_action(action)
        choices = choices.astype(np.int64)
        log_prob = self.discrete.log_prob(logits, gumbel, choices, params)
        return log_prob + self.gaussian.log_prob(means, normal, numbers, params)

    def mode(self, outputs: Tensor) -> Tensor:
        logits, means = self._split(outputs)
        return _joined(self.discrete.mode(logits).float(), self.gaussian.mode(means))

    def draw(self, params: Params, outputs: Tensor, noise: Tensor) -> Tensor:
        (logits, means), (gumbel, normal) = self._split(outputs), self._split(noise)
        choices = self.discrete.draw(params, logits, gumbel).float()
        return _joined(choices, self.gaussian.draw(params, means, normal))

    def evaluate(self, params: Params, outputs: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        (logits, means), (choices, numbers) = self._split(outputs), self._split_action(action)
        log_prob, entropy = self.discrete.evaluate(params, logits, choices.long())
        numbers_log_prob, numbers_entropy = self.gaussian.evaluate(params, means, numbers)
        return log_prob + numbers_log_prob, entropy + numbers_entropy

    def _split(self, values: Any) -> tuple[Any, Any]:
        """Return the columns of the categories and of the numbers, of outputs or noise."""
        return values[..., : self.num_logits], values[..., self.num_logits :]

    def _split_action(self, action: Any) -> tuple[Any, Any]:
        """Return the discrete and the continuous columns."""
        return action[..., : self.num_components], action[..., self.num_components :]


def _joined(choices: Any, numbers: Any) -> Any:
    """Return float32 columns: arrays or tensors."""
    return namespace(numbers).concatenate([choices, numbers], axis=-1)
