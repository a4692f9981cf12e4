"""What critics of continuous actions are made of: several perceptrons side by side."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hotloop.policies.actors import uniform_parameters
from hotloop.types import Array


@dataclass(frozen=True, kw_only=True)
class Critics:
    """K action-value functions of one shape, computed as one batched product a layer.

    Two products of 256×256 by 256×256 keep two cores busy with one of them each, and cost one
    launch; their first layers, which see the same inputs, are one product K times as wide.

    Attributes:
        inputs: numbers in an observation and an action.
        hidden_sizes: widths of the hidden layers, at least one.
        layer_norm: normalise each hidden layer before its activation (Ba et al. 2016,
            arXiv:1607.06450).
        count: K.
    """

    inputs: int
    hidden_sizes: tuple[int, ...] = (256, 256)
    layer_norm: bool = False
    count: int = 2

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes; weights are (K, inputs, outputs), but the first's (inputs, K·outputs).

        The first layer's outputs lie side by side, critic after critic.
        """
        count, shapes = self.count, {}
        inputs = self.inputs
        for k, outputs in enumerate(self.hidden_sizes):
            wide = k == 0
            shapes[f"critic.{k}.weight"] = (
                (inputs, count * outputs) if wide else (count, inputs, outputs)
            )
            shapes[f"critic.{k}.bias"] = (count * outputs,) if wide else (count, 1, outputs)
            if self.layer_norm:
                shapes[f"critic.{k}.scale"] = (count, 1, outputs)
                shapes[f"critic.{k}.shift"] = (count, 1, outputs)
            inputs = outputs
        last = len(self.hidden_sizes)
        shapes[f"critic.{last}.weight"] = (count, inputs, 1)
        shapes[f"critic.{last}.bias"] = (count, 1, 1)
        return shapes

    def initial_parameters(self, seed: int) -> dict[str, Array]:
        """Weights and biases uniform in ±1/√inputs; layers' scales 1 and shifts 0.

        Args:
            seed: of NumPy's generator; other numbers than an actor's of the same seed.

        Returns:
            float32 arrays by name.
        """
        return uniform_parameters(self.parameter_shapes(), np.random.default_rng((seed, 1)))
