"""A body of multilayer perceptrons: an encoder, and linear layers to the head and the value."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from hotloop.envs.spaces import ObsSpec
from hotloop.errors import ConfigError
from hotloop.policies.encoders import make_encoder
from hotloop.policies.heads import Head
from hotloop.policies.initialization import orthogonal_parameters, uniform_parameters
from hotloop.policies.memory import Memory, parse_memory
from hotloop.policies.twin import Activation
from hotloop.types import Array

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from hotloop.ops.products import Precision
    from hotloop.policies.operations import Operations


# Drawn by themselves: the last one goes with the bias.
_MEMORY_PARTS = ("memory.features.weight", "memory.weight")


@dataclass(frozen=True, kw_only=True)
class Perceptrons:
    """A perceptron for the head, and another one for the value where there is one.

    Attributes:
        encoder: of the observation, a name in `ENCODERS`; all layers share it.
        layer_norm: normalise what an encoder of images gives.
        memory: a recurrent layer behind the encoder, see `parse_memory`; None: nothing is
            remembered.
        hidden_sizes: widths of the hidden layers behind them.
        activation: after each hidden layer.
        shared_trunk: one set of hidden layers for head and value, and not one for each.
        initialization: `orthogonal` weights with gains √2, 0.01 for the head's and 1 for the
            value's, and zero biases: Huang et al. 2022, "The 37 Implementation Details of Proximal
            Policy Optimization"; `uniform`: weights and biases in ±1/√inputs, as `torch.nn.Linear`.

    Raises:
        ConfigError: a width or a name is none.
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
        """Return all fields as values that `json.dumps` takes."""
        told = {"kind": "perceptrons", **asdict(self), "hidden_sizes": list(self.hidden_sizes)}
        if self.memory is None:  # as it was written before there was memory
            del told["memory"]
        return told


class PerceptronLayers:
    """The layers of `Perceptrons`, once observations and head are known.

    They are called `trunk.k`, `policy.k` and `value.k`. Weights are (inputs, outputs), so that
    `obs @ weight` is a layer.

    Attributes:
        memory: the recurrent layer; None: there is none.
        shapes: of the parameters that give the outputs themselves (`Head.fold`), by name, in order.
        num_features: F, that the encoder gives.
        activation: after each layer but the last.
        names: of the layers from the features, or the memory, to the last, of the `policy`, and of
            the `value` where there is one.
    """

    def __init__(self, body: Perceptrons, obs_spec: ObsSpec, head: Head, has_value: bool) -> None:
        self.activation: Activation = body.activation
        self._initialization = body.initialization
        self._encoder = make_encoder(body.encoder, obs_spec, layer_norm=body.layer_norm)
        self.memory: Memory | None = None if body.memory is None else parse_memory(body.memory)
        self.num_features = self._encoder.num_features
        sizes = head.hidden_sizes(body.hidden_sizes)
        self._trunk = [f"trunk.{k}" for k in range(len(sizes))] if body.shared_trunk else []
        self.names = {
            part: self._trunk + [f"{part}.{k}" for k in range(len(sizes) + 1 - len(self._trunk))]
            for part in (("policy", "value") if has_value else ("policy",))
        }
        self.shapes = self._encoder.parameter_shapes()
        width = self.num_features
        if self.memory is not None:
            self.shapes |= self.memory.parameter_shapes(width)
            width = self.memory.num_units
        for part, names in self.names.items():
            outputs = head.size if part == "policy" else 1
            widths = pairwise([width, *sizes, outputs])
            for layer, shape in zip(names, widths, strict=True):
                self.shapes[f"{layer}.weight"] = shape  # a trunk's are written twice
                self.shapes[f"{layer}.bias"] = shape[1:]

    @property
    def num_encoder_products(self) -> int:
        """Return how often the encoder multiplies something of an observation by a parameter."""
        return self._encoder.num_products

    @property
    def twin(self) -> PerceptronLayers | None:
        """Return the layers that NumPy computes; None: they act through torch."""
        return self if self._encoder.acts_without_torch else None

    def initial_parameters(
        self, seed: int, shapes: Mapping[str, tuple[int, ...]]
    ) -> dict[str, Array]:
        """Return float32 arrays by name, of what is learned (`Head.learned_shapes`)."""
        is_orthogonal = self._initialization == "orthogonal"
        generator = np.random.default_rng(seed if is_orthogonal else (seed, 0))
        drawn = dict(self._drawn_shapes(shapes))
        if is_orthogonal:
            gains = {"policy": 0.01, "value": 1.0}
            given = {f"{names[-1]}.weight": gains[part] for part, names in self.names.items()}
            given |= dict.fromkeys(_MEMORY_PARTS, 1.0)
            params = orthogonal_parameters(drawn, generator, given)
        else:
            params = uniform_parameters(drawn, generator)
        if self.memory is not None:
            weight = np.concatenate([params.pop(name) for name in _MEMORY_PARTS])
            params["memory.weight"] = weight
            params["memory.bias"] += self.memory.first_bias()
        return params

    def _drawn_shapes(
        self, shapes: Mapping[str, tuple[int, ...]]
    ) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Yield shapes by name, with what the memory does with features and output apart."""
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
        """Return the head, (B, H), and, where there is one, the value, (B,).

        Args:
            params: float32, by name, as `shapes` has them.
            obs: (B, *obs_shape).
            operations: that layers are made of.
            memory: of a network with memory, float32, (S, M): what it remembers before the first
                step of S sequences.
            begins: bool, (L, S), where L steps of each begin an episode; B is L · S, and rows come
                step by step. None: B is S, one step of each, and what is remembered after it,
                (S, M), comes last of all.
        """
        activation = operations.tanh if self.activation == "tanh" else lambda x: x.relu()

        def layer(name: str, inputs: Tensor) -> Tensor:
            return operations.linear(inputs, params[f"{name}.weight"], params[f"{name}.bias"])

        from hotloop.policies import recurrence

        features = self._encoder.features(params, obs, operations)
        following: tuple[Tensor, ...] = ()
        if self.memory is not None:
            assert memory is not None
            weight = params["memory.weight"]
            recurrent = weight[self.num_features :]
            features = operations.linear(
                features, weight[: self.num_features], params["memory.bias"]
            )
            if begins is None:
                following = (recurrence.step(self.memory.kind, features, recurrent, memory),)
                features = following[0][:, : self.memory.num_units]
            else:
                features = features.unflatten(0, begins.shape)
                features = recurrence.unroll(self.memory, features, recurrent, memory, begins)
                features = features.flatten(0, 1)
        for name in self._trunk:
            features = activation(layer(name, features))
        outputs: list[Tensor] = []
        for names in self.names.values():
            hidden = features
            for name in names[len(self._trunk) : -1]:
                hidden = activation(layer(name, hidden))
            outputs.append(layer(names[-1], hidden))
        return outputs[0], *(value.squeeze(-1) for value in outputs[1:]), *following

    def learned(
        self, precision: Precision, device: torch.device | str
    ) -> Callable[..., tuple[Tensor, ...]]:
        """Return what is differentiated: `outputs` of parameters, observations and memory."""
        from hotloop.policies.layers import learned_operations

        operations = learned_operations(precision)

        def learned(
            params: Mapping[str, Tensor], obs: Tensor, *sequences: Tensor
        ) -> tuple[Tensor, ...]:
            return self.outputs(params, obs, operations, *sequences)

        return learned

    def torch_module(self) -> tuple[nn.Module, Mapping[str, Tensor]]:
        """Return a new module that gives head, or head and value, and its parameters by name."""
        from hotloop.policies.layers import PerceptronModule

        module = PerceptronModule(self)
        return module, module.by_name


def check_sizes(hidden_sizes: tuple[int, ...]) -> None:
    """Raise `ConfigError` where a hidden layer has no width."""
    if any(size < 1 for size in hidden_sizes):
        raise ConfigError(f"`hidden_sizes` must be positive, got {hidden_sizes}")
