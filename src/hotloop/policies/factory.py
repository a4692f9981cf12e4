"""Networks of the user's own by name or factory, and all networks from a checkpoint."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import reduce
from typing import TYPE_CHECKING, Any

from hotloop.envs.checks import describe_exception
from hotloop.envs.spaces import ActionSpec, ObsSpec
from hotloop.errors import (
    CheckpointError,
    ConfigError,
    HotloopError,
    MissingExtraError,
    UnknownNameError,
    nearest,
)
from hotloop.policies.actor_critic import ActorCritic
from hotloop.policies.actors import Actor
from hotloop.policies.protocol import Network

if TYPE_CHECKING:
    from hotloop.policies.modules import ModuleActorCritic


def make_network(
    network: str | Callable[..., Any], obs_spec: ObsSpec, action_spec: ActionSpec
) -> ModuleActorCritic:
    """A network of the user's own; it learns and acts through torch.

    Args:
        network: `module:Class`, or a class or function, called as `network(obs_shape, head_size)`.
            It gives a `torch.nn.Module` whose `forward` takes observations, (B, *obs_shape), and
            returns the head (logits, or the means of continuous actions), (B, H), and the value,
            (B,) or (B, 1).
        obs_spec: what is observed. Observations are float32; bytes stay uint8 unless they are
            scaled (`ObsScale`).
        action_spec: what is done.

    Raises:
        UnknownNameError: there is no such module or class.
        ConfigError: the factory or the module raised, or the module can't be trained as it is.
        ShapeError: `forward` gives something else than a head and a value.
        SpaceError: observations or actions are empty.
        MissingExtraError: torch is not installed.
    """
    try:
        import torch

        from hotloop.policies.modules import ModuleActorCritic
    except ImportError as error:
        raise MissingExtraError(
            "a network of your own needs torch, which is not installed: "
            "pip install 'hotloop[train]'"
        ) from error
    factory = _resolve(network) if isinstance(network, str) else network
    if isinstance(factory, torch.nn.Module) or not callable(factory):
        raise ConfigError(
            f"`network` must be a class or a function that makes a module, got a "
            f"{type(factory).__name__}: pass what makes it, so that a seed can decide its weights"
        )
    name = network if isinstance(network, str) else _name(factory)
    return ModuleActorCritic(factory=factory, name=name, obs_spec=obs_spec, action_spec=action_spec)


def network_from_json(fields: dict[str, Any]) -> Network:
    """The inverse of every network's `to_json`.

    Raises:
        CheckpointError: a network of the user's own can't be made again.
        MissingExtraError: torch is not installed, and it is such a network.
    """
    if "actor" in fields:
        return Actor.from_json(fields)
    if "network" not in fields:
        return ActorCritic.from_json(fields)
    name = fields["network"]
    obs_spec = ObsSpec.from_json(fields["obs_spec"])
    action_spec = ActionSpec.from_json(fields["action_spec"])
    try:
        if ":" not in name or "<" in name:
            raise UnknownNameError(f"'{name}' is not the name of something that can be imported")
        return make_network(name, obs_spec, action_spec)
    except MissingExtraError:
        raise
    except HotloopError as error:
        raise CheckpointError(
            f"the policy's network can't be made again ({error}): make it importable, as a class "
            "or function of a module, such as `my_nets:Net`"
        ) from error


def _name(factory: Callable[..., Any]) -> str:
    """`module:Class`; of what has no name of its own (a functools.partial), its type's."""
    if hasattr(factory, "__qualname__") and hasattr(factory, "__module__"):
        return f"{factory.__module__}:{factory.__qualname__}"
    return type(factory).__name__


def _resolve(network: str) -> Any:
    module_name, _, name = network.partition(":")
    if not module_name or not name:
        raise UnknownNameError(
            f"there is no network '{network}': write `module:Class`, such as `my_nets:Net`"
        )
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise _import_failed(network, error) from error
        raise UnknownNameError(
            f"network '{network}': there is no module '{module_name}' (no '{error.name}'): check "
            "its spelling, and that it is installed or on PYTHONPATH"
        ) from error
    except Exception as error:
        raise _import_failed(network, error) from error
    try:
        return reduce(getattr, name.split("."), module)
    except AttributeError as error:
        raise UnknownNameError(
            f"network '{network}': '{module_name}' has no '{name}'{nearest(name, vars(module))}"
        ) from error


def _import_failed(network: str, error: Exception) -> ConfigError:
    return ConfigError(f"network '{network}': importing it raised {describe_exception(error)}")
