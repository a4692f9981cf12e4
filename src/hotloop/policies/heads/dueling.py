"""A dueling head: action values with a last layer folded from two streams."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hotloop.errors import ConfigError
from hotloop.ops.arrays import namespace
from hotloop.policies.heads.greedy import Greedy

_STREAMS = ("value.weight", "value.bias", "advantage.weight", "advantage.bias")


@dataclass(frozen=True)
class Dueling(Greedy):
    """A value stream and an advantage stream, each with its own last hidden layer.

    Q(s, a) = V(s) + A(s, a) − mean_a' A(s, a'), Wang et al. 2016, arXiv:1511.06581, eq. 9.

    Q is linear in both hidden layers. Concatenated, they are the last hidden layer of a perceptron
    of twice the width: V reads the first half and A the second. The last layer is folded from those
    of both streams, so a plain perceptron acts.
    """

    needs_perceptrons = True

    def hidden_sizes(self, sizes: tuple[int, ...]) -> tuple[int, ...]:
        """See `Head`. The last hidden layer has the given width in each of the two streams.

        Raises:
            ConfigError: there is no hidden layer.
        """
        if not sizes:
            raise ConfigError("dueling streams need at least one hidden layer, got none")
        return (*sizes[:-1], 2 * sizes[-1])

    def learned_shapes(self, shapes: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        """See `Head`. `value.…` and `advantage.…` replace the policy's last layer."""
        learned = dict(shapes)
        last = f"policy.{_num_layers(shapes) - 1}"
        half = learned.pop(f"{last}.weight")[0] // 2
        del learned[f"{last}.bias"]
        width = self.outputs_per_action
        streams = ((half, width), (width,), (half, self.size), (self.size,))
        return {**learned, **dict(zip(_STREAMS, streams, strict=True))}

    def fold(self, params: dict[str, Any]) -> dict[str, Any]:
        value_weight, value_bias, weight, bias = (params[name] for name in _STREAMS)
        last = f"policy.{_num_layers(params)}"
        centered = self.center(weight)
        return {
            **{name: x for name, x in params.items() if name not in _STREAMS},
            f"{last}.weight": _stack(self.repeat(value_weight, centered), centered),
            f"{last}.bias": self.repeat(value_bias, bias) + self.center(bias),
        }

    def repeat(self, value: Any, advantage: Any) -> Any:
        """Return the value's outputs, (…, 1), in the shape of the advantage's, (…, H)."""
        if isinstance(value, np.ndarray):
            return np.broadcast_to(value, advantage.shape)
        return value.expand_as(advantage)

    def center(self, advantage: Any) -> Any:
        """Return the advantage's outputs, (…, H), minus their mean over the actions."""
        return advantage - advantage.mean(-1)[..., None]


def _num_layers(params: Mapping[str, Any]) -> int:
    return sum(name.startswith("policy.") and name.endswith(".weight") for name in params)


def _stack(upper: Any, lower: Any) -> Any:
    """Return a matrix above another one: arrays or torch tensors."""
    return namespace(lower).concatenate([upper, lower])
