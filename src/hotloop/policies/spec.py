"""Descriptions of networks that act: spaces, a body, a head."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeGuard

from hotloop.envs.spaces import ActionSpec, ObsSpec, Spaces
from hotloop.errors import (
    CheckpointError,
    ConfigError,
    HotloopError,
    MissingExtraError,
    SpaceError,
    UnknownNameError,
    nearest,
)
from hotloop.policies.encoders import ENCODERS, choose_encoder, describe_choice
from hotloop.policies.forward_numpy import Activation
from hotloop.policies.heads import Head, head_for, head_from_json, head_to_json
from hotloop.policies.heads.base import num_action_values
from hotloop.policies.perceptrons import PerceptronLayers, Perceptrons
from hotloop.policies.user_modules import UserModule, find_module
from hotloop.types import Array

if TYPE_CHECKING:
    from hotloop.policies.checked_modules import CheckedModule


@dataclass(frozen=True, kw_only=True)
class Network:
    """A network that acts: it returns a head, (B, H), and optionally a value, (B,).

    Attributes:
        obs_spec: the observations.
        action_spec: the actions.
        body: its layers, or the user's module.
        head: the head, bound to the actions.
        has_value: whether there is a value function.

    Raises:
        SpaceError: the spaces are empty, or the body or the head does not support them.
        UnknownNameError: there is no such encoder.
        ConfigError, ShapeError: the user's module can't be trained as it is.
    """

    obs_spec: ObsSpec
    action_spec: ActionSpec
    body: Perceptrons | UserModule
    head: Head
    has_value: bool

    def __post_init__(self) -> None:
        check_not_empty(self)
        object.__setattr__(self, "head", self.head.bind(self.action_spec))
        _ = self.layers  # built once; raises early if they are invalid

    @cached_property
    def layers(self) -> PerceptronLayers | CheckedModule:
        """Return the layers or the module that computes its outputs."""
        return self.body.build(self.obs_spec, self.head, self.has_value)

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
        return self.head.learned_shapes(self.layers.shapes)

    def initial_parameters(self, seed: int) -> dict[str, Array]:
        """Return float32 arrays by name, a function of the seed."""
        return self.layers.initial_parameters(seed, self.parameter_shapes())

    def describe_interface(self) -> str:
        """Return how the network reads bytes and scales actions, a line each, or ""."""
        encoder = getattr(self.body, "encoder", None)
        lines = [] if encoder is None else [describe_choice(self.obs_spec, encoder)]
        lines.append(self.head.describe_actions())
        return "\n".join(filter(None, lines))

    def to_json(self) -> dict[str, Any]:
        """Return plain lists and numbers. `network_from_json` is the inverse."""
        return {
            "obs_spec": self.obs_spec.to_json(),
            "action_spec": self.action_spec.to_json(),
            "body": self.body.to_json(),
            "head": head_to_json(self.head),
            "has_value": self.has_value,
        }

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Network:
        """Return the network that `to_json` wrote. Raises like the class and `find_module`."""
        body = dict(fields["body"])
        if body.pop("kind") == "module":
            network_body = find_module(body["name"])
        else:
            network_body = Perceptrons(**{**body, "hidden_sizes": tuple(body["hidden_sizes"])})
        return cls(
            obs_spec=ObsSpec.from_json(fields["obs_spec"]),
            action_spec=ActionSpec.from_json(fields["action_spec"]),
            body=network_body,
            head=head_from_json(fields["head"]),
            has_value=fields["has_value"],
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
            f"the policy's network can't be built again ({error}): make it importable, as a class "
            "or function of a module, such as `my_nets:Net`"
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
    body = _body(
        spaces,
        network,
        layer_norm=layer_norm,
        memory=memory,
        hidden_sizes=hidden_sizes,
        activation=activation,
        shared_trunk=shared_trunk,
        initialization="orthogonal",
    )
    return Network(
        obs_spec=spaces.obs_spec,
        action_spec=spaces.action_spec,
        body=body,
        head=head_for(spaces.action_spec),
        has_value=True,
    )


def actor(
    spaces: Spaces,
    head: Head,
    *,
    hidden_sizes: tuple[int, ...] = (256, 256),
    activation: Activation = "relu",
    layer_norm: bool = False,
    memory: str | None = None,
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
        network: see `actor_critic`. The `forward` of the user's network returns the head alone.

    Raises:
        SpaceError: the head does not support the actions, or see `actor_critic`.
        ConfigError, UnknownNameError, ShapeError, MissingExtraError: `network` can't be used.
    """
    body = _body(
        spaces,
        network,
        layer_norm=layer_norm,
        memory=memory,
        hidden_sizes=hidden_sizes,
        activation=activation,
        initialization="uniform",
    )
    return Network(
        obs_spec=spaces.obs_spec,
        action_spec=spaces.action_spec,
        body=body,
        head=head,
        has_value=False,
    )


def _body(
    spaces: Spaces, network: str | Callable[..., Any] | None, **layers: Any
) -> Perceptrons | UserModule:
    """Return the user's module, or an encoder with perceptrons of these options."""
    if network is None:
        return Perceptrons(encoder=choose_encoder(spaces.obs_spec), **layers)
    if is_built_in(network):
        return Perceptrons(encoder=encoder_name(network), **layers)
    if layers.get("memory") is not None:
        raise ConfigError(
            "`memory` adds a recurrent layer to hotloop's own networks, got a custom `network`: "
            "leave out `memory` or `network`"
        )
    return find_module(network)


def is_built_in(network: object) -> TypeGuard[str]:
    """Return whether `network` names a network of hotloop, not a `module:Class`."""
    return isinstance(network, str) and ":" not in network


def encoder_name(network: str) -> str:
    """Return the name of the encoder for a value of the option `network`.

    Raises:
        UnknownNameError: there is no such network.
    """
    known = {"perceptron": "flatten", **{name: name for name in ENCODERS if name != "flatten"}}
    if network not in known:
        raise UnknownNameError(
            f"there is no network '{network}'{nearest(network, known)}: there are "
            f"{', '.join(known)}; for your own, write `module:name`, such as `my_nets:Net`"
        )
    return known[network]


def check_not_empty(spaces: Spaces) -> None:
    """Raise `SpaceError` if observations or actions hold no number."""
    sizes = {
        "observations": math.prod(spaces.obs_spec.shape),
        "actions": num_action_values(spaces.action_spec),
    }
    for name, size in sizes.items():
        if size == 0:
            raise SpaceError(f"{name} must hold a number, got an empty space: widen it")
