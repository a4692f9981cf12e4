"""Perceptrons whose layers normalize their inputs over the batch (batch renormalization)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from hotloop.ops.activations import tanh
from hotloop.ops.products import Precision
from hotloop.policies.forward import linear
from hotloop.policies.forward_numpy import Activation
from hotloop.policies.initialization import uniform_parameters
from hotloop.policies.parameters import ParameterLayout

EPSILON, MAX_SCALE, MAX_SHIFT = 1e-3, 3.0, 5.0


class NormalizedPerceptrons:
    """K perceptrons over one flat vector, (P,), with the running statistics in another one, (S,).

    Each layer computes x̂ · scale + shift of its inputs x before its product, with

    x̂ = (x − μ_B) / σ_B · r + d,   r = clip(σ_B / σ, 1/3, 3),   d = clip((μ_B − μ) / σ, −5, 5)

    Ioffe 2017, arXiv:1702.03275, algorithm 1: μ_B and σ_B are those of the batch, μ and σ the
    running ones, and r and d have no gradient. With r = 1 and d = 0 it is batch normalization. A
    running variance has 1e-3 added to it, as a batch's has.

    Args:
        name: first part of the parameters' names.
        sizes: numbers of inputs, of units in each hidden layer, and of outputs.
        count: K.
        activation: activation after each hidden layer.
        precision: precision of the matrix products.

    Attributes:
        layout: positions of the parameters in the vector.
        statistics: positions of means and variances in their vector.
    """

    def __init__(
        self,
        name: str,
        sizes: tuple[int, ...],
        *,
        count: int = 1,
        activation: Activation = "relu",
        precision: Precision = "float32",
    ) -> None:
        self._layers = [f"{name}.{k}" for k in range(len(sizes) - 1)]
        self._count = count
        self._precision: Precision = precision
        self._activation = tanh if activation == "tanh" else torch.relu
        shapes: dict[str, tuple[int, ...]] = {}
        statistics: dict[str, tuple[int, ...]] = {}
        for layer, (inputs, outputs) in zip(self._layers, pairwise(sizes), strict=True):
            shapes[f"{layer}.weight"] = (count, inputs, outputs)
            shapes[f"{layer}.bias"] = (count, 1, outputs)
            shapes[f"{layer}.scale"] = shapes[f"{layer}.shift"] = (count, 1, inputs)
            statistics[f"{layer}.mean"] = statistics[f"{layer}.variance"] = (count, 1, inputs)
        self.layout, self.statistics = ParameterLayout(shapes), ParameterLayout(statistics)

    def initial(self, generator: np.random.Generator, device: torch.device) -> Tensor:
        """Return weights and biases in ±1/√inputs, scales 1 and shifts 0: float32, (P,)."""
        return self.layout.pack(uniform_parameters(self.layout.shapes, generator), device)

    def initial_statistics(self, device: torch.device) -> Tensor:
        """Return means 0 and variances 1: float32, (S,)."""
        shapes = self.statistics.shapes.items()
        is_one = {name: np.full(shape, name.endswith("variance")) for name, shape in shapes}
        return self.statistics.pack(is_one, device)

    def fold(self, params: Tensor, statistics: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield weight, (K, inputs, outputs), and bias, (K, 1, outputs), of plain layers.

        These layers compute the same outputs as normalization by the running statistics.
        """
        named, running = self.layout.unpack(params), self.statistics.unpack(statistics)
        for layer in self._layers:
            std = (running[f"{layer}.variance"] + EPSILON).sqrt()
            factor = named[f"{layer}.scale"] / std
            offset = named[f"{layer}.shift"] - running[f"{layer}.mean"] * factor
            weight = named[f"{layer}.weight"]
            yield factor.transpose(-1, -2) * weight, named[f"{layer}.bias"] + offset @ weight

    def outputs(self, params: Tensor, statistics: Tensor, inputs: Tensor) -> Tensor:
        """Return the outputs with the running statistics, (K, B, outputs), for inputs, (B, D)."""
        hidden = inputs.expand(self._count, *inputs.shape)
        for k, (weight, bias) in enumerate(self.fold(params, statistics)):
            hidden = linear(
                self._activation(hidden) if k else hidden, weight, bias, self._precision
            )
        return hidden

    def train(
        self, params: Tensor, statistics: Tensor, inputs: Tensor, is_warm: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the outputs for a batch, normalized by its own statistics, and these statistics.

        Args:
            params: float32, (P,).
            statistics: the running statistics, (S,).
            inputs: (B, D).
            is_warm: whether the running statistics take part (r and d), bool, 0-d.

        Returns:
            The outputs, (K, B, outputs), and the batch's means and variances, (S,), without
            gradient.
        """
        named, running = self.layout.unpack(params), self.statistics.unpack(statistics)
        hidden, batch_statistics = inputs.expand(self._count, *inputs.shape), []
        for k, layer in enumerate(self._layers):
            if k:
                hidden = self._activation(hidden)
            # Normalize over the batch.
            mean = hidden.mean(1, keepdim=True)
            variance = (hidden - mean).square().mean(1, keepdim=True)
            std = (variance + EPSILON).sqrt()
            batch_statistics += [mean.detach().flatten(), variance.detach().flatten()]
            # Renormalize by the running statistics.
            running_std = (running[f"{layer}.variance"] + EPSILON).sqrt()
            scale = (std.detach() / running_std).clamp(1.0 / MAX_SCALE, MAX_SCALE)
            shift = (mean.detach() - running[f"{layer}.mean"]) / running_std
            scale = torch.where(is_warm, scale, 1.0)
            shift = torch.where(is_warm, shift.clamp(-MAX_SHIFT, MAX_SHIFT), 0.0)
            normalized = (hidden - mean) / std * scale + shift
            # Compute the layer.
            normalized = normalized * named[f"{layer}.scale"] + named[f"{layer}.shift"]
            weight, bias = named[f"{layer}.weight"], named[f"{layer}.bias"]
            hidden = linear(normalized, weight, bias, self._precision)
        return hidden, torch.cat(batch_statistics)
