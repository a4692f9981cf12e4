"""A body of multilayer perceptrons: an encoder, then linear layers to the head and the value."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from hotloop.envs.spaces import ObsSpec
from hotloop.errors import ConfigError
from hotloop.policies.encoders import make_encoder
from hotloop.policies.forward_numpy import Activation
from hotloop.policies.heads import Head
from hotloop.policies.initialization import orthogonal_parameters, uniform_parameters
from hotloop.policies.recurrent_layer import RecurrentLayer, parse_memory
from hotloop.types import Array

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from hotloop.ops.products import Precision
    from hotloop.policies.operations import Operations


# Initialized separately. The name of the second one determines the bound of the bias.
_MEMORY_PARTS = ("memory.features.weight", "memory.weight")


@dataclass(frozen=True, kw_only=True)
class Perceptrons:
    """A perceptron for the head and, if any, another one for the value.

    Attributes:
        encoder: encoder of the observation, a name in `ENCODERS`; all layers share it.
        layer_norm: whether to normalize the features of an encoder of images.
        memory: recurrent layer after the encoder, see `parse_memory`; None: no recurrent layer.
        hidden_sizes: widths of the hidden layers that follow.
        activation: activation after each hidden layer.
        shared_trunk: whether head and value share their hidden layers.
        initialization: `orthogonal` weights with gains √2, 0.01 for the head's and 1 for the
            value's, and zero biases: Huang et al. 2022, "The 37 Implementation Details of Proximal
            Policy Optimization"; `uniform`: weights and biases in ±1/√inputs, as `torch.nn.Linear`.

    Raises:
        ConfigError: a width is not positive, or a name is unknown.
    """

    name: ClassVar[str] = "perceptrons"

    encoder: str = "flatten"
    layer_norm: bool = False
    memory: str | None = None
    hidden_sizes: tuple[int, ...]
    activation: Activation
    shared_trunk: bool = False
    initialization: Literal["orthogonal", "uniform"]

    def __post_init__(self) -> None:
        check_sizes(self.hidden_sizes)
        for name, known in (
            ("activation", ("tanh", "relu")),
            ("initialization", ("orthogonal", "uniform")),
        ):
            if getattr(self, name) not in known:
                raise ConfigError(
                    f"`{name}` must be '{known[0]}' or '{known[1]}', got '{getattr(self, name)}'"
                )

    def build(self, obs_spec: ObsSpec, head: Head, has_value: bool) -> PerceptronLayers:
        """Return the layers for these observations and this head."""
        return PerceptronLayers(self, obs_spec, head, has_value)

    def to_json(self) -> dict[str, Any]:
        """Return all fields as values for `json.dumps`."""
        fields = {"kind": "perceptrons", **asdict(self), "hidden_sizes": list(self.hidden_sizes)}
        if self.memory is None:  # the format of versions without `memory`
            del fields["memory"]
        return fields


class PerceptronLayers:
    """The layers of `Perceptrons` for given observations and a given head.

    Their names are `trunk.k`, `policy.k` and `value.k`. Weights are (inputs, outputs), so that
    `obs @ weight` is a layer.

    Attributes:
        recurrent_layer: the recurrent layer, or None.
        shapes: shapes of the layers that act (`Head.fold`), by name, in order.
        num_features: F, the number of the encoder's features.
        activation: activation after each layer except the last.
        names: names of the layers after the encoder and the recurrent layer, for the `policy` and,
            if any, the `value`.
    """

    def __init__(self, body: Perceptrons, obs_spec: ObsSpec, head: Head, has_value: bool) -> None:
        self.activation: Activation = body.activation
        self._initialization = body.initialization
        self._encoder = make_encoder(body.encoder, obs_spec, layer_norm=body.layer_norm)
        self.recurrent_layer: RecurrentLayer | None = (
            None if body.memory is None else parse_memory(body.memory)
        )
        self.num_features = self._encoder.num_features
        sizes = head.hidden_sizes(body.hidden_sizes)
        self._trunk = [f"trunk.{k}" for k in range(len(sizes))] if body.shared_trunk else []
        self.names = {
            part: self._trunk + [f"{part}.{k}" for k in range(len(sizes) + 1 - len(self._trunk))]
            for part in (("policy", "value") if has_value else ("policy",))
        }
        self.shapes = self._encoder.parameter_shapes()
        width = self.num_features
        if self.recurrent_layer is not None:
            self.shapes |= self.recurrent_layer.parameter_shapes(width)
            width = self.recurrent_layer.num_units
        for part, names in self.names.items():
            outputs = head.size if part == "policy" else 1
            widths = pairwise([width, *sizes, outputs])
            for layer, shape in zip(names, widths, strict=True):
                self.shapes[f"{layer}.weight"] = shape  # twice for a trunk
                self.shapes[f"{layer}.bias"] = shape[1:]

    @property
    def num_encoder_products(self) -> int:
        """Return the number of the encoder's multiplications by parameters for one observation."""
        return self._encoder.num_products

    @property
    def numpy_layers(self) -> PerceptronLayers | None:
        """Return these layers if NumPy can compute them; None: they act through torch."""
        return self if self._encoder.acts_without_torch else None

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

    def outputs(
        self,
        params: Mapping[str, Tensor],
        obs: Tensor,
        operations: Operations,
        memory: Tensor | None = None,
        begins: Tensor | None = None,
    ) -> tuple[Tensor, ...]:
        """Return the head, (B, H), and, if any, the value, (B,), and the hidden state after a step.

        Args:
            params: float32, by name, with the shapes of `shapes`.
            obs: (B, *obs_shape).
            operations: operations of the layers.
            memory: hidden state of a recurrent network before the first step of S sequences,
                float32, (S, M).
            begins: whether an episode starts, bool, (L, S), for L steps of each sequence. B is
                L · S, and rows are step by step. None: one step of each sequence, so B is S, and
                the last output is the hidden state after it, (S, M).
        """
        activation = operations.tanh if self.activation == "tanh" else lambda x: x.relu()

        def layer(name: str, inputs: Tensor) -> Tensor:
            return operations.linear(inputs, params[f"{name}.weight"], params[f"{name}.bias"])

        from hotloop.policies import recurrence

        # Compute the features and the recurrent layer.
        features = self._encoder.features(params, obs, operations)
        next_memory: tuple[Tensor, ...] = ()
        if self.recurrent_layer is not None:
            assert memory is not None
            weight = params["memory.weight"]
            recurrent = weight[self.num_features :]
            features = operations.linear(
                features, weight[: self.num_features], params["memory.bias"]
            )
            if begins is None:
                next_memory = (
                    recurrence.step(self.recurrent_layer.kind, features, recurrent, memory),
                )
                features = next_memory[0][:, : self.recurrent_layer.num_units]
            else:
                features = features.unflatten(0, begins.shape)
                features = recurrence.unroll(
                    self.recurrent_layer, features, recurrent, memory, begins
                )
                features = features.flatten(0, 1)
        # Compute the perceptrons.
        for name in self._trunk:
            features = activation(layer(name, features))
        outputs: list[Tensor] = []
        for names in self.names.values():
            hidden = features
            for name in names[len(self._trunk) : -1]:
                hidden = activation(layer(name, hidden))
            outputs.append(layer(names[-1], hidden))
        return outputs[0], *(value.squeeze(-1) for value in outputs[1:]), *next_memory

    def make_forward(
        self, precision: Precision, device: torch.device | str
    ) -> Callable[..., tuple[Tensor, ...]]:
        """Return a differentiable `function(params, obs, *sequences)` for `outputs`."""
        from hotloop.policies.layers import differentiable_operations

        operations = differentiable_operations(precision)

        def forward(
            params: Mapping[str, Tensor], obs: Tensor, *sequences: Tensor
        ) -> tuple[Tensor, ...]:
            return self.outputs(params, obs, operations, *sequences)

        return forward

    def torch_module(self) -> tuple[nn.Module, Mapping[str, Tensor]]:
        """Return a new module for the outputs, and its parameters by name."""
        from hotloop.policies.layers import PerceptronModule

        module = PerceptronModule(self)
        return module, module.by_name


def check_sizes(hidden_sizes: tuple[int, ...]) -> None:
    """Raise `ConfigError` if the width of a hidden layer is not positive."""
    if any(size < 1 for size in hidden_sizes):
        raise ConfigError(f"`hidden_sizes` must be positive, got {hidden_sizes}")
