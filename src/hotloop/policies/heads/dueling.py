"""Dueling networks: action values whose last layer is put together of two streams'."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hotloop.errors import ConfigError
from hotloop.policies.heads.greedy import Greedy

_STREAMS = ("value.weight", "value.bias", "advantage.weight", "advantage.bias")


class Dueling(Greedy):
    """A value stream and an advantage stream, with a last hidden layer each.

    Q(s, a) = V(s) + A(s, a) − mean_a' A(s, a'), Wang et al. 2016, arXiv:1511.06581, eq. 9.

    Q is linear in both hidden layers, so side by side they are the last hidden layer of one
    perceptron, twice as wide, of which V sees the first half and A the second. Its last layer is
    folded from both streams': what acts is a plain perceptron.
    """

    needs_perceptrons = True

    def hidden_sizes(self, sizes: tuple[int, ...]) -> tuple[int, ...]:
        """See `Head`: the last layer's is for each stream.

        Raises:
            ConfigError: there is no hidden layer.
        """
        if not sizes:
            raise ConfigError("dueling streams need at least one hidden layer, got none")
        return (*sizes[:-1], 2 * sizes[-1])

    def learned_shapes(self, shapes: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        """See `Head`: `value.…` and `advantage.…` in place of the policy's last layer."""
        learned = dict(shapes)
        last = f"policy.{_num_layers(shapes) - 1}"
        half = learned.pop(f"{last}.weight")[0] // 2
        del learned[f"{last}.bias"]
        streams = ((half, 1), (1,), (half, self.size), (self.size,))
        return {**learned, **dict(zip(_STREAMS, streams, strict=True))}

    def fold(self, params: dict[str, Any]) -> dict[str, Any]:
        value_weight, value_bias, weight, bias = (params[name] for name in _STREAMS)
        last = f"policy.{_num_layers(params)}"
        centred = weight - weight.mean(1)[:, None]
        return {
            **{name: x for name, x in params.items() if name not in _STREAMS},
            f"{last}.weight": _stack(value_weight, centred),
            f"{last}.bias": value_bias + (bias - bias.mean(0)),
        }


def _num_layers(params: Mapping[str, Any]) -> int:
    return sum(name.startswith("policy.") and name.endswith(".weight") for name in params)


def _stack(column: Any, lower: Any) -> Any:
    """Return a column, once for each action, above a matrix: of torch, if that is what came."""
    if isinstance(lower, np.ndarray):
        return np.concatenate([np.broadcast_to(column, lower.shape), lower])
    import torch

    return torch.cat([column.expand_as(lower), lower])
