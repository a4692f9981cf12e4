"""Networks from the user: any `torch.nn.Module`, by name or factory.

    class Net(nn.Module):
        def __init__(self, obs_shape, head_size): ...
        def forward(self, obs): return head, value  # (B, H), and (B,) or (B, 1)

This file imports torch only when a module is used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hotloop.base.importing import import_object, importable_name
from hotloop.envs.spaces import ObsSpec
from hotloop.errors import ConfigError, UnknownNameError, requires_extra
from hotloop.policies.heads import Head

if TYPE_CHECKING:
    from hotloop.policies.checked_modules import CheckedModule


@dataclass(frozen=True)
class UserModule:
    """A user's module that learns and acts through torch, given by its factory.

    Attributes:
        factory: class or function that returns the module, called as `factory(obs_shape,
            head_size)`, for a critic `factory(obs_shape, action_size)`.
        name: name of the factory, `module:Class`, for importing it again.
    """

    factory: Callable[..., Any] = field(repr=False)
    name: str

    def build(self, obs_spec: ObsSpec, head: Head, has_value: bool) -> CheckedModule:
        """Return the module for these observations and this head.

        Raises:
            ConfigError: the factory or the module raised, or the module can't be trained as it is.
            ShapeError: `forward` does not return a head, and a value if `has_value`.
        """
        from hotloop.policies.checked_modules import CheckedModule

        if head.needs_perceptrons:
            raise ConfigError(
                f"network '{self.name}': this head needs hotloop's layers, but a custom module "
                f"computes {head.description} with other layers: omit the head or `network`"
            )
        module = CheckedModule(
            self.factory,
            self.name,
            arguments={"obs_shape": obs_spec.shape, "head_size": head.size},
            inputs={"observations": (obs_spec.shape, obs_spec.dtype)},
            outputs={
                "head": ((head.size,), head.description),
                **({"value": ((), "")} if has_value else {}),
            },
        )
        for name in head.learned_shapes({}):
            if name in module.shapes:
                raise ConfigError(
                    f"network '{self.name}': its parameter `{name}` has the name of one that "
                    "hotloop adds: leave it out, or rename it"
                )
        return module

    def to_json(self) -> dict[str, Any]:
        """Return values for `json.dumps`."""
        return {"kind": "module", "name": self.name}


def find_module(network: str | Callable[..., Any]) -> UserModule:
    """Return the user's network.

    Args:
        network: `module:Class`, or a class or function that returns a `torch.nn.Module`.

    Raises:
        UnknownNameError: there is no such module or class.
        ConfigError: it can't be imported, or is not callable.
        MissingExtraError: torch is not installed.
    """
    with requires_extra("a network of your own needs torch", "train"):
        import torch
    name = network if isinstance(network, str) else importable_name(network)
    if isinstance(network, str):
        if "<" in name:
            raise UnknownNameError(f"'{name}' can't be imported: it must be a name in a module")
        network = import_object(name, kind="network", example="my_nets:Net")
    if isinstance(network, torch.nn.Module) or not callable(network):
        raise ConfigError(
            f"`network` must be a class or a function that returns a module, got a "
            f"{type(network).__name__}: pass its class, so that the seed determines the weights"
        )
    return UserModule(network, name)
