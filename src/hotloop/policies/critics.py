"""Critics of continuous actions: several action-value functions side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from hotloop.envs.spaces import ActionSpec, ObsSpec, Spaces
from hotloop.errors import ConfigError
from hotloop.policies.encoders import ENCODERS
from hotloop.policies.heads.base import num_action_values
from hotloop.policies.heads.bounded import check_bounded
from hotloop.policies.initialization import uniform_parameters
from hotloop.policies.modules import Module, find_module
from hotloop.policies.network import check_not_empty
from hotloop.policies.perceptrons import check_sizes
from hotloop.policies.registry import find
from hotloop.types import Array

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from hotloop.ops.products import Precision


class CriticLayers(Protocol):
    """What computes the values, once the spaces are known."""

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return shapes by name, in order."""
        ...

    def initial_parameters(self, seed: int) -> dict[str, Array]:
        """Return float32 arrays by name; other numbers than an actor's of the same seed."""
        ...

    def learned(
        self, precision: Precision, device: torch.device | str
    ) -> Callable[[Mapping[str, Tensor], Tensor, Tensor, int], Tensor]:
        """Return what gives the first k critics' values, (k, B).

        Its arguments are parameters by name, observations, (B, *obs_shape), actions in [−1, 1],
        (B, A), and k.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class StackedPerceptrons:
    """Perceptrons of one shape, computed as one batched product a layer.

    Attributes:
        encoder: of the observation, a name in `ENCODERS`; all critics share it.
        hidden_sizes: widths of the hidden layers, at least one; each ends in a ReLU.
        layer_norm: normalise each hidden layer before its activation (Ba et al. 2016,
            arXiv:1607.06450).

    Raises:
        ConfigError: there is no hidden layer, or one without a width.
    """

    encoder: str = "flatten"
    hidden_sizes: tuple[int, ...]
    layer_norm: bool = False

    def __post_init__(self) -> None:
        check_sizes(self.hidden_sizes)
        if not self.hidden_sizes:
            raise ConfigError("`hidden_sizes` must name at least one hidden layer, got none")

    def build_critics(self, spaces: Spaces, count: int) -> StackedLayers:
        """Return the layers for these spaces."""
        return StackedLayers(self, spaces, count)


class StackedLayers:
    """The layers of `StackedPerceptrons`, `critic.k`, once the spaces are known.

    Two products of 256×256 by 256×256 keep two cores busy with one of them each, and cost one
    launch; their first layers, which see the same inputs, are one product K times as wide.
    """

    def __init__(self, body: StackedPerceptrons, spaces: Spaces, count: int) -> None:
        self._body, self._count = body, count
        self._encoder = find(ENCODERS, "encoder", body.encoder)(spaces.obs_spec)
        self._num_inputs = self._encoder.num_features + num_action_values(spaces.action_spec)

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """See `CriticLayers`: weights are (K, inputs, outputs), the first's (inputs, K·outputs).

        The first layer's outputs lie side by side, critic after critic.
        """
        count, shapes = self._count, self._encoder.parameter_shapes()
        inputs = self._num_inputs
        for k, outputs in enumerate(self._body.hidden_sizes):
            wide = k == 0
            shapes[f"critic.{k}.weight"] = (
                (inputs, count * outputs) if wide else (count, inputs, outputs)
            )
            shapes[f"critic.{k}.bias"] = (count * outputs,) if wide else (count, 1, outputs)
            if self._body.layer_norm:
                shapes[f"critic.{k}.scale"] = (count, 1, outputs)
                shapes[f"critic.{k}.shift"] = (count, 1, outputs)
            inputs = outputs
        last = len(self._body.hidden_sizes)
        shapes[f"critic.{last}.weight"] = (count, inputs, 1)
        shapes[f"critic.{last}.bias"] = (count, 1, 1)
        return shapes

    def initial_parameters(self, seed: int) -> dict[str, Array]:
        """See `CriticLayers`: weights and biases in ±1/√inputs; scales 1 and shifts 0."""
        generator = np.random.default_rng((seed, 1))
        encoder = self._encoder.initial_parameters(generator)
        rest = {name: x for name, x in self.parameter_shapes().items() if name not in encoder}
        return {**encoder, **uniform_parameters(rest, generator)}

    def learned(
        self, precision: Precision, device: torch.device | str
    ) -> Callable[[Mapping[str, Tensor], Tensor, Tensor, int], Tensor]:
        """See `CriticLayers`."""
        return partial(self._values, precision)

    def _values(
        self,
        precision: Precision,
        params: Mapping[str, Tensor],
        obs: Tensor,
        action: Tensor,
        count: int,
    ) -> Tensor:
        import torch
        from torch.nn.functional import layer_norm

        from hotloop.policies.layers import dense

        inputs = torch.cat([self._encoder.features(params, obs), action], 1)
        if count < self._count:
            params = self._first(params, count)
        sizes = self._body.hidden_sizes
        wide = dense(inputs, params["critic.0.weight"], params["critic.0.bias"], precision)
        hidden = wide.view(len(inputs), count, -1).transpose(0, 1)
        for k in range(len(sizes)):
            if k:
                weight, bias = params[f"critic.{k}.weight"], params[f"critic.{k}.bias"]
                hidden = dense(hidden, weight, bias, precision)
            if self._body.layer_norm:
                hidden = layer_norm(hidden, hidden.shape[-1:])
                hidden = hidden * params[f"critic.{k}.scale"] + params[f"critic.{k}.shift"]
            hidden = torch.relu(hidden)
        last = f"critic.{len(sizes)}"
        # A product with one column is a sum that fuses with what stands around it.
        values = (hidden * params[f"{last}.weight"].transpose(1, 2)).sum(-1)
        return values + params[f"{last}.bias"][:, :, 0]

    def _first(self, params: Mapping[str, Tensor], count: int) -> dict[str, Tensor]:
        """Return the first critics' parameters."""
        width = count * self._body.hidden_sizes[0]
        wide = ("critic.0.weight", "critic.0.bias")
        return {
            name: x[..., :width] if name in wide else x[:count]
            for name, x in params.items()
            if name.startswith("critic.")
        }


@dataclass(frozen=True, kw_only=True)
class Critics:
    """K action-value functions of observations and actions; `LearnedCritics` computes them.

    Attributes:
        obs_spec: what is observed.
        action_spec: what is done, within bounds.
        body: their layers, or the user's module.
        count: K.

    Raises:
        SpaceError: the spaces are empty, actions are not continuous and bounded, or observations
            are not for this encoder.
        ConfigError, ShapeError: `count` is not positive, or the user's module can't be trained as
            it is.
    """

    obs_spec: ObsSpec
    action_spec: ActionSpec
    body: StackedPerceptrons | Module
    count: int = 2

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ConfigError(f"`count` must be positive, got {self.count}")
        check_not_empty(self)
        check_bounded(self.action_spec)
        _ = self.layers  # made once, here: what is wrong with them is said at once

    @cached_property
    def layers(self) -> CriticLayers:
        """Return what computes the values."""
        return self.body.build_critics(self, self.count)

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return shapes by name, in order."""
        return self.layers.parameter_shapes()

    def initial_parameters(self, seed: int) -> dict[str, Array]:
        """Return float32 arrays by name; other numbers than an actor's of the same seed."""
        return self.layers.initial_parameters(seed)


def critics(
    spaces: Spaces,
    *,
    hidden_sizes: tuple[int, ...] = (256, 256),
    layer_norm: bool = False,
    count: int = 2,
    module: str | Callable[..., Any] | None = None,
) -> Critics:
    """Return K action-value functions of one shape.

    Args:
        spaces: what is observed and done.
        hidden_sizes: widths of the hidden layers, at least one.
        layer_norm: normalise each hidden layer before its activation.
        count: K.
        module: the user's own, in place of these layers: `module:Class`, or a class or function,
            called as `module(obs_shape, action_size)`, K times with different seeds. It gives a
            `torch.nn.Module` whose `forward` takes observations, (B, *obs_shape), and actions in
            [−1, 1], (B, A), and returns their values, (B,) or (B, 1).

    Raises:
        SpaceError: as `Critics` says.
        ConfigError, UnknownNameError, ShapeError, MissingExtraError: `module` can't be used, or
            there is no hidden layer.
    """
    layers = StackedPerceptrons(hidden_sizes=hidden_sizes, layer_norm=layer_norm)
    return Critics(
        obs_spec=spaces.obs_spec,
        action_spec=spaces.action_spec,
        body=layers if module is None else find_module(module),
        count=count,
    )
