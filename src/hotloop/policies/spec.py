"""The description of a network that acts: spaces, layers or a user's module, a head."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeGuard

from hotloop.envs.spaces import ActionSpec, ObsSpec, Spaces
from hotloop.errors import (
    CheckpointError,
    ConfigError,
    HotloopError,
    MissingExtraError,
    SpaceError,
    UnknownNameError,
    nearest,
    shortened,
)
from hotloop.policies import noisy_layers
from hotloop.policies.encoders import ENCODERS, choose_encoder, describe_choice
from hotloop.policies.forward_numpy import Activation
from hotloop.policies.heads import Head, head_for, head_from_json, head_to_json
from hotloop.policies.heads.base import num_action_values
from hotloop.policies.layers import Layers
from hotloop.policies.user_modules import UserModule, find_module
from hotloop.types import Array

if TYPE_CHECKING:
    from hotloop.policies.checked_modules import CheckedModule


# Names of the fields of hotloop's layers, in the order of `config.json`.
_LAYER_FIELDS = (
    "encoder",
    "layer_norm",
    "memory",
    "hidden_sizes",
    "activation",
    "noisy_std",
    "shared_trunk",
    "initialization",
)


@dataclass(frozen=True, kw_only=True)
class Network:
    """A network that acts: it returns a head, (B, H), and optionally a value, (B,).

    The layers are an encoder, a recurrent layer, if any, and a perceptron for the head and, if any,
    another one for the value. A user's module takes the place of all of them.

    Attributes:
        obs_spec: the observations.
        action_spec: the actions.
        head: the head, bound to the actions.
        has_value: whether there is a value function.
        module: the user's module, which ignores the attributes below; None: hotloop's layers.
        encoder: encoder of the observation, a name in `ENCODERS`; all layers share it.
        layer_norm: whether to normalize the features of an encoder of images.
        memory: recurrent layer after the encoder, see `parse_memory`; None: no recurrent layer.
        hidden_sizes: widths of the hidden layers that follow.
        activation: activation after each hidden layer.
        noisy_std: σ₀ of noisy layers after the encoder, see `noisy_layers`; None: plain layers.
        shared_trunk: whether head and value share their hidden layers.
        initialization: `orthogonal` weights with gains √2, 0.01 for the head's and 1 for the
            value's, and zero biases: Huang et al. 2022, "The 37 Implementation Details of Proximal
            Policy Optimization"; `uniform`: weights and biases in ±1/√inputs, as `torch.nn.Linear`.

    Raises:
        SpaceError: the spaces are empty, or the layers or the head do not support them.
        UnknownNameError: there is no such encoder.
        ConfigError, ShapeError: a width is not positive, a name is unknown, or the user's module
            can't be trained as it is.
    """

    obs_spec: ObsSpec
    action_spec: ActionSpec
    head: Head
    has_value: bool
    module: UserModule | None = None
    encoder: str = "flatten"
    layer_norm: bool = False
    memory: str | None = None
    hidden_sizes: tuple[int, ...] = (64, 64)
    activation: Activation = "tanh"
    noisy_std: float | None = None
    shared_trunk: bool = False
    initialization: Literal["orthogonal", "uniform"] = "orthogonal"

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
        if self.noisy_std is not None and not 0.0 < self.noisy_std < math.inf:
            raise ConfigError(f"`noisy_std` must be positive and finite, got {self.noisy_std}")
        if not isinstance(self.has_value, bool):
            raise ConfigError(f"`has_value` must be True or False, got {self.has_value!r:.80}")
        check_not_empty(self)
        if not isinstance(self.head, Head):
            raise ConfigError(
                f"`head` must be a value such as `Greedy()`, got {shortened(repr(self.head))}"
            )
        object.__setattr__(self, "head", self.head.bind(self.action_spec))
        _ = self.layers  # build them now, to raise early if they are invalid

    @cached_property
    def layers(self) -> Layers | CheckedModule:
        """Return the layers or the module that computes its outputs."""
        if self.module is None:
            return Layers(self)
        return self.module.build(self.obs_spec, self.head, self.has_value)

    @property
    def name(self) -> str:
        """Return the name of the encoder or of the user's module."""
        return self.encoder if self.module is None else self.module.name

    @property
    def head_size(self) -> int:
        """Return H, the width of the head."""
        return self.head.size

    @property
    def memory_size(self) -> int:
        """Return M, the size of the hidden state of one environment; 0 if it is not recurrent."""
        return 0 if self.layers.recurrent_layer is None else self.layers.recurrent_layer.size

    @property
    def acts_without_torch(self) -> bool:
        """Return whether it acts on NumPy alone."""
        return self.layers.numpy_layers is not None

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the learned parameters by name, in order."""
        shapes = self.head.learned_shapes(self.layers.shapes)
        return shapes if self.noisy_std is None else noisy_layers.noisy_shapes(shapes)

    def initial_parameters(self, seed: int) -> dict[str, Array]:
        """Return float32 arrays by name, a function of the seed."""
        shapes = self.head.learned_shapes(self.layers.shapes)
        params = self.layers.initial_parameters(seed, shapes)
        if self.noisy_std is not None:
            params |= noisy_layers.initial_noise(shapes, self.noisy_std)
        return params

    def fold(self, params: Mapping[str, Any], noise: Any = None) -> dict[str, Any]:
        """Return the layers that act, tensors or arrays by name.

        Args:
            params: the learned parameters, by name.
            noise: noise of noisy layers, (K,), such as the parameter `noise`. None: the means.
        """
        if self.noisy_std is not None:
            params = noisy_layers.apply_noise(params, noise)
        return self.head.fold(dict(params))

    def describe_interface(self) -> str:
        """Return how the network reads bytes and scales actions, a line each, or ""."""
        lines = [] if self.module else [describe_choice(self.obs_spec, self.encoder)]
        lines.append(self.head.describe_actions())
        return "\n".join(filter(None, lines))

    def to_json(self) -> dict[str, Any]:
        """Return plain lists and numbers. `network_from_json` is the inverse."""
        body: dict[str, Any] = {"kind": "perceptrons"}
        body |= {name: getattr(self, name) for name in _LAYER_FIELDS}
        body["hidden_sizes"] = list(self.hidden_sizes)
        for name in ("memory", "noisy_std"):  # the format of versions without these fields
            if body[name] is None:
                del body[name]
        return {
            "obs_spec": self.obs_spec.to_json(),
            "action_spec": self.action_spec.to_json(),
            "body": body if self.module is None else self.module.to_json(),
            "head": head_to_json(self.head),
            "has_value": self.has_value,
        }

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Network:
        """Return the network that `to_json` wrote. Raises like the class and `find_module`."""
        body: dict[str, Any] = dict(fields["body"])
        if body.pop("kind") == "module":
            body = {"module": find_module(body["name"])}
        else:
            body["hidden_sizes"] = tuple(body["hidden_sizes"])
        return cls(
            obs_spec=ObsSpec.from_json(fields["obs_spec"]),
            action_spec=ActionSpec.from_json(fields["action_spec"]),
            head=head_from_json(fields["head"]),
            has_value=fields["has_value"],
            **body,
        )


def network_from_json(fields: dict[str, Any]) -> Network:
    """Return the network that `Network.to_json` wrote.

    Raises:
        CheckpointError: it can't be built again.
        MissingExtraError: torch is not installed, and it is a user's module.
    """
    if fields["obs_spec"].get("mask_size"):
        raise CheckpointError(
            "an earlier version of hotloop trained this policy with action masks inside its "
            "observations: train it again"
        )
    try:
        return Network.from_json(fields)
    except MissingExtraError:
        raise
    except HotloopError as error:
        raise CheckpointError(
            f"the policy's network can't be built again ({shortened(str(error))}): make it "
            "importable, as a class or function of a module, such as `my_nets:Net`"
        ) from error


def actor_critic(
    spaces: Spaces,
    *,
    hidden_sizes: tuple[int, ...] = (64, 64),
    activation: Activation = "tanh",
    shared_trunk: bool = False,
    layer_norm: bool = False,
    memory: str | None = None,
    network: str | Callable[..., Any] | None = None,
) -> Network:
    """Return a policy and a value function.

    The head holds the logits of discrete actions, or the means of a diagonal Gaussian for
    continuous ones, scaled to bounds that are far from [−1, 1]. Its log standard deviation,
    `policy.log_std`, is the same in all states.

    Args:
        spaces: the observations and actions.
        hidden_sizes: widths of the hidden layers, for the policy and for the value.
        activation: activation after each hidden layer.
        shared_trunk: whether policy and value share their hidden layers.
        layer_norm: whether to normalize the features of an encoder of images.
        memory: recurrent layer after the encoder, shared by policy and value, such as `lstm:128` or
            `gru:64`; None: no recurrent layer.
        network: encoder before the hidden layers, `perceptron`, or a name in `ENCODERS`; None:
            `nature` for images, `impala` for small ones, else `perceptron`. Or the user's network
            in place of all layers: `module:Class`, or a class or function, called as
            `network(obs_shape, head_size)`. It returns a `torch.nn.Module` whose `forward` takes
            observations, (B, *obs_shape), and returns the head, (B, H), and the value, (B,) or
            (B, 1). Observations are float32; bytes stay uint8 unless they are scaled.

    Raises:
        SpaceError: the spaces are empty, or the network does not support the observations.
        ConfigError, UnknownNameError, ShapeError, MissingExtraError: `network` can't be used.
    """
    return _make_network(
        spaces,
        head_for(spaces.action_spec),
        network,
        has_value=True,
        layer_norm=layer_norm,
        memory=memory,
        hidden_sizes=hidden_sizes,
        activation=activation,
        shared_trunk=shared_trunk,
        initialization="orthogonal",
    )


def actor(
    spaces: Spaces,
    head: Head,
    *,
    hidden_sizes: tuple[int, ...] = (256, 256),
    activation: Activation = "relu",
    layer_norm: bool = False,
    memory: str | None = None,
    noisy_std: float | None = None,
    network: str | Callable[..., Any] | None = None,
) -> Network:
    """Return a policy without a value function, for learning from replay.

    Args:
        spaces: the observations and actions.
        head: the head, such as `SquashedGaussian()` or one of the user's.
        hidden_sizes: widths of the hidden layers. The last one of `Dueling` is that of each stream.
        activation: activation after each hidden layer.
        layer_norm: see `actor_critic`.
        memory: see `actor_critic`.
        noisy_std: see `Network`.
        network: see `actor_critic`. The `forward` of the user's network returns the head alone.

    Raises:
        SpaceError: the head does not support the actions, or see `actor_critic`.
        ConfigError, UnknownNameError, ShapeError, MissingExtraError: `network` can't be used.
    """
    return _make_network(
        spaces,
        head,
        network,
        has_value=False,
        layer_norm=layer_norm,
        memory=memory,
        hidden_sizes=hidden_sizes,
        activation=activation,
        noisy_std=noisy_std,
        initialization="uniform",
    )


def _make_network(
    spaces: Spaces,
    head: Head,
    network: str | Callable[..., Any] | None,
    *,
    has_value: bool,
    **layers: Any,
) -> Network:
    """Return a network of an encoder and `layers`, or of the user's module."""
    if network is None:
        layers["encoder"] = choose_encoder(spaces.obs_spec)
    elif is_built_in(network):
        layers["encoder"] = encoder_name(network)
    elif layers["memory"] is None:
        layers = {"module": find_module(network)}
    else:
        raise ConfigError(
            "`memory` adds a recurrent layer to hotloop's own networks, got a custom `network`: "
            "leave out `memory` or `network`"
        )
    return Network(
        obs_spec=spaces.obs_spec,
        action_spec=spaces.action_spec,
        head=head,
        has_value=has_value,
        **layers,
    )


def is_built_in(network: object) -> TypeGuard[str]:
    """Return whether `network` names a network of hotloop, not a `module:Class`."""
    return isinstance(network, str) and ":" not in network


def is_encoder(network: object) -> bool:
    """Return whether `network` is the name of an encoder, see `encoder_name`."""
    return isinstance(network, str) and network in _encoder_names()


def encoder_name(network: str) -> str:
    """Return the name of the encoder for a value of the option `network`.

    Raises:
        UnknownNameError: there is no such network.
    """
    known = _encoder_names()
    if network not in known:
        raise UnknownNameError(
            f"there is no network '{network}'{nearest(network, known)}: there are "
            f"{', '.join(known)}; for your own, write `module:name`, such as `my_nets:Net`"
        )
    return known[network]


def _encoder_names() -> dict[str, str]:
    """Return the names of encoders by the value of the option `network`."""
    return {"perceptron": "flatten", **{name: name for name in ENCODERS if name != "flatten"}}


def check_not_empty(spaces: Spaces) -> None:
    """Raise `SpaceError` if observations or actions hold no number."""
    sizes = {
        "observations": math.prod(spaces.obs_spec.shape),
        "actions": num_action_values(spaces.action_spec),
    }
    for name, size in sizes.items():
        if size == 0:
            raise SpaceError(f"{name} must hold a number, got an empty space: widen it")


def check_sizes(hidden_sizes: tuple[int, ...]) -> None:
    """Raise `ConfigError` if the width of a hidden layer is not positive."""
    if any(size < 1 for size in hidden_sizes):
        raise ConfigError(f"`hidden_sizes` must be positive, got {hidden_sizes}")
