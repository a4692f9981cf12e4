"""Dueling networks, as what they are: a perceptron whose last layer is put together of two."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hotloop.policies.actors import Actor, uniform_parameters
from hotloop.types import Array


@dataclass(frozen=True)
class Dueling:
    """A value stream and an advantage stream, with a last hidden layer each.

    Q(s, a) = V(s) + A(s, a) − mean_a' A(s, a'), Wang et al. 2016, arXiv:1511.06581, eq. 9.

    Q is linear in both hidden layers, so side by side they are the last hidden layer of one
    perceptron, whose head is `folded` from both streams': who acts needs to know no more of it.

    Attributes:
        actor: that perceptron; of its last hidden layer, V sees the first half, A the second.
    """

    actor: Actor

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """The actor's, with `value.…` and `advantage.…` in place of its head."""
        shapes = self.actor.parameter_shapes()
        head = self.actor.layer_names[-1]
        half = shapes.pop(f"{head}.weight")[0] // 2
        shapes.pop(f"{head}.bias")
        for stream, outputs in (("value", 1), ("advantage", self.actor.action_size)):
            shapes[f"{stream}.weight"] = (half, outputs)
            shapes[f"{stream}.bias"] = (outputs,)
        return shapes

    def initial_parameters(self, seed: int) -> dict[str, Array]:
        """Weights and biases uniform in ±1/√inputs."""
        return uniform_parameters(self.parameter_shapes(), np.random.default_rng((seed, 0)))

    def folded(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """The actor's parameters, of torch tensors or NumPy arrays like those that came."""
        head = self.actor.layer_names[-1]
        own = ("value", "advantage")
        named = {name: x for name, x in params.items() if name.split(".")[0] not in own}
        weight, bias = params["advantage.weight"], params["advantage.bias"]
        centred = weight - weight.mean(1)[:, None]
        named[f"{head}.weight"] = _stack(params["value.weight"], centred)
        named[f"{head}.bias"] = params["value.bias"] + (bias - bias.mean(0))
        return named


def _stack(column: Any, lower: Any) -> Any:
    """A column, once for each action, above a matrix: of torch, which is there if tensors are."""
    if isinstance(lower, np.ndarray):
        return np.concatenate([np.broadcast_to(column, lower.shape), lower])
    import torch

    return torch.cat([column.expand_as(lower), lower])
