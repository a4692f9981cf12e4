"""One description of every network that acts: spaces, a body, a head."""

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
from hotloop.policies.encoders import ENCODERS, choose_encoder
from hotloop.policies.heads import HEADS, Exploration, Head
from hotloop.policies.heads.base import num_action_values
from hotloop.policies.modules import Module, find_module
from hotloop.policies.perceptrons import PerceptronLayers, Perceptrons
from hotloop.policies.registry import find
from hotloop.policies.twin import Activation
from hotloop.types import Array

if TYPE_CHECKING:
    from hotloop.policies.checked_modules import CheckedModule

_HEAD_OF_ACTIONS = {
    "discrete": "categorical",
    "multi_discrete": "multi_categorical",
    "box": "gaussian",
}


@dataclass(frozen=True, kw_only=True)
class Network:
    """A network that acts: it gives a head, (B, H), and maybe a value, (B,).

    Attributes:
        obs_spec: what is observed.
        action_spec: what is done.
        body: its layers, or the user's module.
        head: what the numbers in the head mean, a name in `HEADS`.
        has_value: whether there is a value function beside it.

    Raises:
        SpaceError: the spaces are empty, or the body or the head is not for them.
        UnknownNameError: there is no such head or encoder.
        ConfigError, ShapeError: the user's module can't be trained as it is.
    """

    obs_spec: ObsSpec
    action_spec: ActionSpec
    body: Perceptrons | Module
    head: str
    has_value: bool

    def __post_init__(self) -> None:
        check_not_empty(self)
        _ = self.layers  # made once, here: what is wrong with them is said at once

    @cached_property
    def layers(self) -> PerceptronLayers | CheckedModule:
        """Return what computes its outputs."""
        return self.body.build(self.obs_spec.unmasked, self._head, self.has_value)

    @property
    def head_size(self) -> int:
        """Return H, the width of the head."""
        return self._head.size

    @property
    def memory_size(self) -> int:
        """Return M, how many numbers it remembers of each environment; 0: nothing."""
        return 0 if self.layers.memory is None else self.layers.memory.size

    @property
    def acts_without_torch(self) -> bool:
        """Return whether it acts on NumPy alone."""
        return self.layers.twin is not None

    def make_head(self, exploration: Exploration | None = None) -> Head:
        """Return a new head, which explores like that; None: not at all."""
        head = find(HEADS, "head", self.head)(self.action_spec, exploration)
        head.is_masked = self.obs_spec.mask_size > 0
        return head

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return shapes by name, in order, of what is learned."""
        return self._head.learned_shapes(self.layers.shapes)

    def initial_parameters(self, seed: int) -> dict[str, Array]:
        """Return float32 arrays by name; the same seed gives the same ones."""
        return self.layers.initial_parameters(seed, self.parameter_shapes())

    @cached_property
    def _head(self) -> Head:
        return self.make_head()

    def to_json(self) -> dict[str, Any]:
        """Return plain lists and numbers; `network_from_json` is the inverse."""
        return {
            "obs_spec": self.obs_spec.to_json(),
            "action_spec": self.action_spec.to_json(),
            "body": self.body.to_json(),
            "head": self.head,
            "has_value": self.has_value,
        }

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Network:
        """Return what `to_json` wrote; raise as the class and `find_module` do."""
        body = dict(fields["body"])
        if body.pop("kind") == "module":
            made = find_module(body["name"])
        else:
            made = Perceptrons(**{**body, "hidden_sizes": tuple(body["hidden_sizes"])})
        return cls(
            obs_spec=ObsSpec.from_json(fields["obs_spec"]),
            action_spec=ActionSpec.from_json(fields["action_spec"]),
            body=made,
            head=fields["head"],
            has_value=fields["has_value"],
        )


def network_from_json(fields: dict[str, Any]) -> Network:
    """Return the network that `Network.to_json` wrote.

    Raises:
        CheckpointError: it can't be made again.
        MissingExtraError: torch is not installed, and it is a user's module.
    """
    try:
        return Network.from_json(fields)
    except MissingExtraError:
        raise
    except HotloopError as error:
        raise CheckpointError(
            f"the policy's network can't be made again ({error}): make it importable, as a class "
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

    The head gives logits of discrete actions, and the means of a diagonal Gaussian of continuous
    ones, whose log standard deviation is the parameter `policy.log_std`, the same in all states.

    Args:
        spaces: what is observed and done.
        hidden_sizes: widths of the hidden layers, of the policy and of the value.
        activation: after each hidden layer.
        shared_trunk: one set of hidden layers for both.
        layer_norm: normalise what an encoder of images gives.
        memory: a recurrent layer behind the encoder, which policy and value share, such as
            `lstm:128` or `gru:64`; None: nothing is remembered.
        network: what stands before the hidden layers, `perceptron`, or a name in `ENCODERS`; None:
            `nature` of images, `impala` of small ones, else `perceptron`. Or the user's own, in
            place of all layers: `module:Class`, or a class or function, called as
            `network(obs_shape, head_size)`. It gives a `torch.nn.Module` whose `forward` takes
            observations, (B, *obs_shape), and returns the head, (B, H), and the value, (B,) or
            (B, 1). Observations are float32; bytes stay uint8 unless they are scaled.

    Raises:
        SpaceError: the spaces are empty, or observations are not for this network.
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
        head=_HEAD_OF_ACTIONS[spaces.action_spec.kind],
        has_value=True,
    )


def actor(
    spaces: Spaces,
    head: str,
    *,
    hidden_sizes: tuple[int, ...] = (256, 256),
    activation: Activation = "relu",
    layer_norm: bool = False,
    memory: str | None = None,
    network: str | Callable[..., Any] | None = None,
) -> Network:
    """Return a policy without a value function, as what learns from replay has it.

    Args:
        spaces: what is observed and done.
        head: a name in `HEADS`: `squashed_gaussian`, `deterministic`, `greedy`, `dueling`, …
        hidden_sizes: widths of the hidden layers; the last of `dueling` is for each stream.
        activation: after each hidden layer.
        layer_norm: as in `actor_critic`.
        memory: as in `actor_critic`.
        network: as in `actor_critic`; the `forward` of the user's own returns the head alone.

    Raises:
        SpaceError: the head is not for these actions, or as `actor_critic` says.
        ConfigError, UnknownNameError, ShapeError, MissingExtraError: `head` or `network` can't be
            used.
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
) -> Perceptrons | Module:
    """Return the user's own module, or perceptrons with these layers behind an encoder."""
    if network is None:
        return Perceptrons(encoder=choose_encoder(spaces.obs_spec), **layers)
    if is_built_in(network):
        return Perceptrons(encoder=encoder_of(network), **layers)
    if layers.get("memory") is not None:
        raise ConfigError(
            "`memory` is of hotloop's own networks, and a network of your own has layers of its "
            "own: leave one of both out"
        )
    return find_module(network)


def is_built_in(network: object) -> TypeGuard[str]:
    """Return whether it is the name of one of hotloop's own, and not of a `module:Class`."""
    return isinstance(network, str) and ":" not in network


def encoder_of(network: str) -> str:
    """Return the encoder that a word means.

    Raises:
        UnknownNameError: none.
    """
    known = {"perceptron": "flatten", **{name: name for name in ENCODERS if name != "flatten"}}
    if network not in known:
        raise UnknownNameError(
            f"there is no network '{network}'{nearest(network, known)}: there are "
            f"{', '.join(known)}; for your own, write `module:name`, such as `my_nets:Net`"
        )
    return known[network]


def check_not_empty(spaces: Spaces) -> None:
    """Raise `SpaceError` where observations or actions are without a number."""
    sizes = {
        "observations": math.prod(spaces.obs_spec.shape),
        "actions": num_action_values(spaces.action_spec),
    }
    for what, size in sizes.items():
        if size == 0:
            raise SpaceError(f"{what} must hold a number, got a space of none: widen it")
