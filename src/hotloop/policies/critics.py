"""Critics for continuous actions: an ensemble of functions of observations and actions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from hotloop.envs.spaces import ActionSpec, ObsSpec, Spaces
from hotloop.errors import ConfigError, SpaceError
from hotloop.policies.encoders import Encoder, choose_encoder, make_encoder
from hotloop.policies.heads.base import num_action_values
from hotloop.policies.heads.bounded import check_bounded
from hotloop.policies.initialization import uniform_parameters
from hotloop.policies.recurrent_layer import RecurrentLayer, parse_memory
from hotloop.policies.spec import check_not_empty, check_sizes, is_built_in
from hotloop.policies.user_modules import UserModule, find_module
from hotloop.types import Array

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from hotloop.ops.products import Precision
    from hotloop.policies.checked_modules import CheckedModule

    CriticValues = Callable[..., Tensor]


@dataclass(frozen=True, kw_only=True)
class Critics(ABC):
    """K action-value functions of observations and actions; `LearnedCritics` computes them.

    Attributes:
        obs_spec: the observations.
        action_spec: the actions, continuous and bounded.
        count: K.
        num_outputs: M, the number of outputs of each critic, such as the quantiles of the return.

    Raises:
        SpaceError: the spaces are empty, actions are not continuous and bounded, or the encoder
            does not support the observations.
        ConfigError, ShapeError: `count` or `num_outputs` is not positive, there is no hidden layer
            or one of width 0, or the user's module can't be trained as it is.
    """

    obs_spec: ObsSpec
    action_spec: ActionSpec
    count: int = 2
    num_outputs: int = 1

    def __post_init__(self) -> None:
        for name in ("count", "num_outputs"):
            if getattr(self, name) < 1:
                raise ConfigError(f"`{name}` must be positive, got {getattr(self, name)}")
        check_not_empty(self)
        check_bounded(self.action_spec)
        self.parameter_shapes()  # raises early if the layers are invalid

    @property
    def memory_size(self) -> int:
        """Return M, the size of the hidden state of one sequence; 0 if they are not recurrent."""
        return 0

    @abstractmethod
    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return shapes by name, in order."""

    @abstractmethod
    def initial_parameters(self, seed: int) -> dict[str, Array]:
        """Return float32 arrays by name. They differ from an actor's of the same seed."""

    @abstractmethod
    def make_forward(self, precision: Precision, device: torch.device | str) -> CriticValues:
        """Return a function for the values of the first k critics, (k, B), or (k, B, M) if M > 1.

        Its arguments are parameters by name, observations, (B, *obs_shape), actions in [−1, 1],
        (B, A), and k. Recurrent critics also need a hidden state, (S, M), and episode starts,
        (L, S); then the last B rows of the observations have actions.
        """


@dataclass(frozen=True, kw_only=True)
class StackedCritics(Critics):
    """Perceptrons of one shape, computed as one batched product per layer.

    A batch of two 256×256 by 256×256 products keeps two cores busy and costs one launch. The first
    layers of all critics have the same inputs and are one product, K times as wide.

    Attributes:
        encoder: encoder of the observation, a name in `ENCODERS`; all critics share it.
        hidden_sizes: widths of the hidden layers, at least one, each followed by a ReLU.
        layer_norm: whether to normalize each hidden layer before its activation (Ba et al. 2016,
            arXiv:1607.06450).
        memory: recurrent layer of the observations, see `parse_memory`, which all critics share;
            None: no recurrent layer.
    """

    encoder: str
    hidden_sizes: tuple[int, ...]
    layer_norm: bool = False
    memory: str | None = None

    def __post_init__(self) -> None:
        check_sizes(self.hidden_sizes)
        if not self.hidden_sizes:
            raise ConfigError("`hidden_sizes` must name at least one hidden layer, got none")
        super().__post_init__()

    @cached_property
    def _encoder(self) -> Encoder:
        return make_encoder(self.encoder, self.obs_spec)

    @cached_property
    def _recurrent_layer(self) -> RecurrentLayer | None:
        return None if self.memory is None else parse_memory(self.memory)

    @property
    def memory_size(self) -> int:
        return 0 if self._recurrent_layer is None else self._recurrent_layer.size

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return shapes: weights are (K, inputs, outputs), in the first layer (inputs, K·outputs).

        The outputs of the first layer are concatenated, critic after critic.
        """
        count, shapes = self.count, self._encoder.parameter_shapes()
        width = self._encoder.num_features
        if self._recurrent_layer is not None:
            shapes |= self._recurrent_layer.parameter_shapes(width)
            width = self._recurrent_layer.num_units
        first = width + num_action_values(self.action_spec)
        widths = (first, *self.hidden_sizes, self.num_outputs)
        for k, (inputs, outputs) in enumerate(pairwise(widths)):
            shapes[f"critic.{k}.weight"] = (count, inputs, outputs)
            shapes[f"critic.{k}.bias"] = (count, 1, outputs)
            if self.layer_norm and k < len(self.hidden_sizes):
                shapes[f"critic.{k}.scale"] = (count, 1, outputs)
                shapes[f"critic.{k}.shift"] = (count, 1, outputs)
        wide = count * self.hidden_sizes[0]
        shapes["critic.0.weight"], shapes["critic.0.bias"] = (first, wide), (wide,)
        return shapes

    def initial_parameters(self, seed: int) -> dict[str, Array]:
        """Return weights and biases in ±1/√inputs, scales 1 and shifts 0."""
        generator = np.random.default_rng((seed, 1))
        params = uniform_parameters(self.parameter_shapes(), generator)
        if self._recurrent_layer is not None:
            params["memory.bias"] += self._recurrent_layer.initial_bias()
        return params

    def make_forward(self, precision: Precision, device: torch.device | str) -> CriticValues:
        import torch
        from torch.nn.functional import layer_norm

        from hotloop.policies import recurrence
        from hotloop.policies.forward import differentiable_operations, linear

        recurrent_layer = self._recurrent_layer
        encoder, sizes, width = self._encoder, self.hidden_sizes, self.hidden_sizes[0]
        has_norm, total, has_one_output = self.layer_norm, self.count, self.num_outputs == 1
        operations = differentiable_operations(precision)

        def values(
            params: Mapping[str, Tensor],
            obs: Tensor,
            action: Tensor,
            count: int,
            *sequences: Tensor,
        ) -> Tensor:
            def part(name: str) -> Tensor:
                x = params[f"critic.{name}"]
                if count == total:
                    return x
                return x[..., : count * width] if name in ("0.weight", "0.bias") else x[:count]

            features = encoder.features(params, obs, operations)
            if recurrent_layer is not None:
                features = recurrence.unroll_features(
                    recurrent_layer, operations, params, features, *sequences
                )[-len(action) :]
            inputs = torch.cat([features, action], 1)
            wide = linear(inputs, part("0.weight"), part("0.bias"), precision)
            hidden = wide.view(len(inputs), count, -1).transpose(0, 1)
            for k in range(len(sizes)):
                if k:
                    hidden = linear(hidden, part(f"{k}.weight"), part(f"{k}.bias"), precision)
                if has_norm:
                    hidden = layer_norm(hidden, hidden.shape[-1:])
                    hidden = hidden * part(f"{k}.scale") + part(f"{k}.shift")
                hidden = torch.relu(hidden)
            weight, bias = part(f"{len(sizes)}.weight"), part(f"{len(sizes)}.bias")
            if not has_one_output:
                return linear(hidden, weight, bias, precision)
            # A product with one column, written as a sum, fuses with the operations around it.
            return (hidden * weight.transpose(1, 2)).sum(-1) + bias[:, :, 0]

        return values


@dataclass(frozen=True, kw_only=True)
class ModuleCritics(Critics):
    """K modules of the user, with parameters named `critic.k.…`.

    Attributes:
        body: factory of the modules.
    """

    body: UserModule

    @cached_property
    def _module(self) -> CheckedModule:
        from hotloop.policies.checked_modules import CheckedModule

        obs, size = self.obs_spec, num_action_values(self.action_spec)
        outputs = {} if self.num_outputs == 1 else {"num_outputs": self.num_outputs}
        return CheckedModule(
            self.body.factory,
            self.body.name,
            arguments={"obs_shape": obs.shape, "action_size": size, **outputs},
            inputs={"observations": (obs.shape, obs.dtype), "actions": ((size,), "float32")},
            outputs={"values": ((self.num_outputs,), "")} if outputs else {"value": ((), "")},
        )

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        shapes = self._module.shapes.items()
        return {f"critic.{k}.{name}": x for k in range(self.count) for name, x in shapes}

    def initial_parameters(self, seed: int) -> dict[str, Array]:
        """Return float32 arrays by name, each critic constructed with its own seed."""
        seeds = np.random.SeedSequence((seed, 1)).generate_state(self.count)
        return {
            f"critic.{k}.{name}": x
            for k, critic_seed in enumerate(seeds.tolist())
            for name, x in self._module.initial_parameters(critic_seed, self._module.shapes).items()
        }

    def make_forward(self, precision: Precision, device: torch.device | str) -> CriticValues:
        import torch

        function, names = self._module.make_forward(precision, device), list(self._module.shapes)

        def values(params: Mapping[str, Tensor], obs: Tensor, action: Tensor, count: int) -> Tensor:
            critic_params = [
                {name: params[f"critic.{k}.{name}"] for name in names} for k in range(count)
            ]
            return torch.stack([function(critic, obs, action)[0] for critic in critic_params])

        return values


def critics(
    spaces: Spaces,
    *,
    hidden_sizes: tuple[int, ...] = (256, 256),
    layer_norm: bool = False,
    memory: str | None = None,
    count: int = 2,
    num_outputs: int = 1,
    network: str | Callable[..., Any] | None = None,
    module: str | Callable[..., Any] | None = None,
) -> Critics:
    """Return K action-value functions of one shape.

    Args:
        spaces: the observations and actions.
        hidden_sizes: widths of the hidden layers, at least one.
        layer_norm: whether to normalize each hidden layer before its activation.
        memory: see `StackedCritics`. The user's modules have no recurrent layer.
        count: K.
        num_outputs: M, the number of outputs of each critic.
        network: the actor's option. Images, as its encoder reads bytes, raise an error.
        module: the user's own network in place of these layers: `module:Class`, or a class or
            function, called as `module(obs_shape, action_size)`, K times with different seeds. The
            `forward` of the returned `torch.nn.Module` takes observations, (B, *obs_shape), and
            actions in [−1, 1], (B, A), and returns their values, (B,) or (B, 1). If M > 1, it is
            called as `module(obs_shape, action_size, num_outputs)` and returns (B, M).

    Raises:
        SpaceError, ConfigError, ShapeError: see `Critics`.
        UnknownNameError, MissingExtraError: `module` can't be used.
    """
    common = {
        "obs_spec": spaces.obs_spec,
        "action_spec": spaces.action_spec,
        "count": count,
        "num_outputs": num_outputs,
    }
    if module is not None:
        if memory is not None:
            raise ConfigError(
                "`memory` adds a recurrent layer to hotloop's own critics, got a custom `module`: "
                "leave out one of them"
            )
        return ModuleCritics(**common, body=find_module(module))
    advice = "choose `network` 'perceptron' to read them as numbers, use ppo, or pass networks of "
    check_numbers(spaces, network, advice + "your own (`network` and `critic_network`)")
    return StackedCritics(
        **common,
        encoder="flatten",
        hidden_sizes=hidden_sizes,
        layer_norm=layer_norm,
        memory=memory,
    )


def check_numbers(spaces: Spaces, network: str | Callable[..., Any] | None, advice: str) -> None:
    """Raise SpaceError, with this advice, if `network` or its default reads images as such."""
    spec = spaces.obs_spec
    has_bytes = any(part.byte_bounds is not None for part in spec.layout)
    reads_images = has_bytes if is_built_in(network) else choose_encoder(spec) != "flatten"
    if reads_images and network != "perceptron":
        raise SpaceError(
            "critics of continuous actions take numbers, but these observations hold images: "
            + advice
        )
