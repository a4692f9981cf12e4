"""The layers of a network: names, shapes and initial values of its parameters, computed once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from hotloop.policies.encoders import make_encoder
from hotloop.policies.forward_numpy import Activation
from hotloop.policies.initialization import orthogonal_parameters, uniform_parameters
from hotloop.policies.recurrent_layer import RecurrentLayer, parse_memory
from hotloop.types import Array

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from hotloop.ops.products import Precision
    from hotloop.policies.spec import Network

# Weights that are initialized separately. The name of the second determines the bias's bound.
_MEMORY_PARTS = ("memory.features.weight", "memory.weight")


class Layers:
    """The encoder, recurrent layer and perceptrons of a `Network`, with names of their parameters.

    The names are `trunk.k`, `policy.k` and `value.k`. Weights are (inputs, outputs), so that
    `obs @ weight` is a layer.

    Attributes:
        encoder: the encoder.
        recurrent_layer: the recurrent layer, or None.
        shapes: shapes of the layers that act (`Head.fold`), by name, in order.
        num_features: F, the number of the encoder's features.
        activation: activation after each layer except the last.
        names: names of the layers after the encoder and the recurrent layer, for the `policy` and,
            if any, the `value`.
        trunk: names of the layers that policy and value share.
    """

    def __init__(self, network: Network) -> None:
        self.activation: Activation = network.activation
        self._initialization = network.initialization
        self.encoder = make_encoder(
            network.encoder, network.obs_spec, layer_norm=network.layer_norm
        )
        self.recurrent_layer: RecurrentLayer | None = (
            None if network.memory is None else parse_memory(network.memory)
        )
        self.num_features = self.encoder.num_features
        sizes = network.head.hidden_sizes(network.hidden_sizes)
        self.trunk = [f"trunk.{k}" for k in range(len(sizes))] if network.shared_trunk else []
        self.names = {
            part: self.trunk + [f"{part}.{k}" for k in range(len(sizes) + 1 - len(self.trunk))]
            for part in (("policy", "value") if network.has_value else ("policy",))
        }
        self.shapes = self.encoder.parameter_shapes()
        width = self.num_features
        if self.recurrent_layer is not None:
            self.shapes |= self.recurrent_layer.parameter_shapes(width)
            width = self.recurrent_layer.num_units
        for part, names in self.names.items():
            outputs = network.head.size if part == "policy" else 1
            widths = pairwise([width, *sizes, outputs])
            for layer, shape in zip(names, widths, strict=True):
                self.shapes[f"{layer}.weight"] = shape  # set twice for a trunk
                self.shapes[f"{layer}.bias"] = shape[1:]

    @property
    def num_encoder_products(self) -> int:
        """Return the number of the encoder's multiplications by parameters for one observation."""
        return self.encoder.num_products

    @property
    def numpy_layers(self) -> Layers | None:
        """Return these layers if NumPy can compute them; None: they act through torch."""
        return self if self.encoder.acts_without_torch else None

    def initial_parameters(
        self, seed: int, shapes: Mapping[str, tuple[int, ...]]
    ) -> dict[str, Array]:
        """Return float32 arrays by name for the learned parameters (`Head.learned_shapes`)."""
        is_orthogonal = self._initialization == "orthogonal"
        generator = np.random.default_rng(seed if is_orthogonal else (seed, 0))
        init_shapes = dict(self._init_shapes(shapes))
        if is_orthogonal:
            last_gains = {"policy": 0.01, "value": 1.0}
            gains = {f"{names[-1]}.weight": last_gains[part] for part, names in self.names.items()}
            gains |= dict.fromkeys(_MEMORY_PARTS, 1.0)
            params = orthogonal_parameters(init_shapes, generator, gains)
        else:
            params = uniform_parameters(init_shapes, generator)
        if self.recurrent_layer is not None:
            weight = np.concatenate([params.pop(name) for name in _MEMORY_PARTS])
            params["memory.weight"] = weight
            params["memory.bias"] += self.recurrent_layer.initial_bias()
        return params

    def _init_shapes(
        self, shapes: Mapping[str, tuple[int, ...]]
    ) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Yield shapes by name, with the recurrent weights for features and output separated."""
        for name, shape in shapes.items():
            if name == "memory.weight":
                for part, inputs in zip(
                    _MEMORY_PARTS, (self.num_features, shape[0] - self.num_features), strict=True
                ):
                    yield part, (inputs, shape[1])
            else:
                yield name, shape

    def make_forward(
        self, precision: Precision, device: torch.device | str
    ) -> Callable[..., tuple[Tensor, ...]]:
        """Return a differentiable `function(params, obs, *sequences)`, see `network_outputs`."""
        from hotloop.policies.forward import differentiable_operations, network_outputs

        return partial(network_outputs, self, differentiable_operations(precision))

    def torch_module(self) -> tuple[nn.Module, Mapping[str, Tensor]]:
        """Return a new module for the outputs, and its parameters by name."""
        from hotloop.policies.forward import LayersModule

        module = LayersModule(self)
        return module, module.by_name
