"""A body of multilayer perceptrons: an encoder, and linear layers to the head and the value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from hotloop.envs.spaces import ObsSpec
from hotloop.errors import ConfigError
from hotloop.policies.encoders import ENCODERS
from hotloop.policies.heads import Head
from hotloop.policies.initialization import orthogonal_parameters, uniform_parameters
from hotloop.policies.registry import find
from hotloop.policies.twin import Activation, TwinLayers
from hotloop.types import Array

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from hotloop.ops.products import Precision
    from hotloop.policies.layers import Arithmetic


@dataclass(frozen=True, kw_only=True)
class Perceptrons:
    """A perceptron for the head, and another one for the value where there is one.

    Attributes:
        encoder: of the observation, a name in `ENCODERS`; all layers share it.
        hidden_sizes: widths of the hidden layers.
        activation: after each hidden layer.
        shared_trunk: one set of hidden layers for head and value, and not one for each.
        initialization: `orthogonal` weights with gains √2, 0.01 for the head's and 1 for the
            value's, and zero biases: Huang et al. 2022, "The 37 Implementation Details of Proximal
            Policy Optimization"; `uniform`: weights and biases in ±1/√inputs, as `torch.nn.Linear`.

    Raises:
        ConfigError: a width or a name is none.
    """

    kind: ClassVar[str] = "perceptrons"

    encoder: str = "flatten"
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

    @property
    def name(self) -> str:
        """Return what messages call it."""
        return self.kind

    def build(self, obs_spec: ObsSpec, head: Head, has_value: bool) -> PerceptronLayers:
        """Return the layers for these observations and this head."""
        return PerceptronLayers(self, obs_spec, head, has_value)

    def to_json(self) -> dict[str, Any]:
        """Return all fields as values that `json.dumps` takes."""
        return {"kind": self.kind, **asdict(self), "hidden_sizes": list(self.hidden_sizes)}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Perceptrons:
        """Return what `to_json` wrote."""
        rest = {name: value for name, value in fields.items() if name != "kind"}
        return cls(**{**rest, "hidden_sizes": tuple(fields["hidden_sizes"])})


class PerceptronLayers:
    """The layers of `Perceptrons`, once observations and head are known; see `Layers`.

    They are called `trunk.k`, `policy.k` and `value.k`. Weights are (inputs, outputs), so that
    `obs @ weight` is a layer.
    """

    def __init__(self, body: Perceptrons, obs_spec: ObsSpec, head: Head, has_value: bool) -> None:
        self._body = body
        self._head = head
        self._encoder = find(ENCODERS, "encoder", body.encoder)(obs_spec)
        self._hidden_sizes = head.hidden_sizes(body.hidden_sizes)
        num_hidden = len(self._hidden_sizes)
        self._trunk = [f"trunk.{k}" for k in range(num_hidden)] if body.shared_trunk else []
        self._branches = {
            part: [f"{part}.{k}" for k in range(num_hidden + 1 - len(self._trunk))]
            for part in (("policy", "value") if has_value else ("policy",))
        }
        self.twin = None
        if self._encoder.acts_without_torch:
            value = self._layers("value") if has_value else []
            self.twin = TwinLayers(body.activation, self._layers("policy"), value)

    def plain_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return shapes by name, in order, of what gives the outputs itself (`Head.fold`)."""
        shapes = self._encoder.parameter_shapes()
        for part in self._branches:
            outputs = self._head.size if part == "policy" else 1
            widths = pairwise([self._encoder.num_features, *self._hidden_sizes, outputs])
            for layer, shape in zip(self._layers(part), widths, strict=True):
                shapes[f"{layer}.weight"] = shape  # a trunk's are written twice
                shapes[f"{layer}.bias"] = shape[1:]
        return shapes

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """See `Layers`."""
        return self._head.learned_shapes(self.plain_shapes())

    def initial_parameters(self, seed: int) -> dict[str, Array]:
        """See `Layers`."""
        is_orthogonal = self._body.initialization == "orthogonal"
        generator = np.random.default_rng(seed if is_orthogonal else (seed, 0))
        encoder = self._encoder.initial_parameters(generator)
        rest = {name: x for name, x in self.parameter_shapes().items() if name not in encoder}
        if is_orthogonal:
            gains = {"policy": 0.01, "value": 1.0}
            last = {f"{self._layers(part)[-1]}.weight": gains[part] for part in self._branches}
            return {**encoder, **orthogonal_parameters(rest, generator, last)}
        return {**encoder, **uniform_parameters(rest, generator)}

    def outputs(
        self, params: Mapping[str, Tensor], obs: Tensor, arithmetic: Arithmetic
    ) -> tuple[Tensor, Tensor | None]:
        """Return the head, (B, H), and the value, (B,), of parameters as `plain_shapes` has them.

        Args:
            params: float32, by name.
            obs: (B, *obs_shape).
            arithmetic: the operations to compute by.
        """
        activation = arithmetic.activations[self._body.activation]

        def linear(layer: str, inputs: Tensor) -> Tensor:
            return arithmetic.linear(inputs, params[f"{layer}.weight"], params[f"{layer}.bias"])

        features = self._encoder.features(params, obs)
        for layer in self._trunk:
            features = activation(linear(layer, features))
        outputs: list[Tensor] = []
        for layers in self._branches.values():
            hidden = features
            for layer in layers[:-1]:
                hidden = activation(linear(layer, hidden))
            outputs.append(linear(layers[-1], hidden))
        return outputs[0], outputs[1].squeeze(-1) if len(outputs) > 1 else None

    def learned(
        self, precision: Precision, device: torch.device | str
    ) -> Callable[[Mapping[str, Tensor], Tensor], tuple[Tensor, Tensor | None]]:
        """See `Layers`."""
        from hotloop.policies.layers import learning_arithmetic

        return partial(self.outputs, arithmetic=learning_arithmetic(precision))

    def torch_module(self) -> tuple[nn.Module, Mapping[str, Tensor]]:
        """See `Layers`."""
        from hotloop.policies.layers import PerceptronModule

        module = PerceptronModule(self)
        return module, module.by_name

    def _layers(self, part: str) -> list[str]:
        """Return the names of all layers from the features to the `policy`'s or `value`'s last."""
        return self._trunk + self._branches[part]


def check_sizes(hidden_sizes: tuple[int, ...]) -> None:
    """Refuse hidden layers without a width.

    Raises:
        ConfigError: there is one.
    """
    if any(size < 1 for size in hidden_sizes):
        raise ConfigError(f"`hidden_sizes` must be positive, got {hidden_sizes}")
