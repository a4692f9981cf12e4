"""A body of the user's own: any `torch.nn.Module`, by name or factory.

    class Net(nn.Module):
        def __init__(self, obs_shape, head_size): ...
        def forward(self, obs): return head, value  # (B, H), and (B,) or (B, 1)

Nothing here imports torch before a module is used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hotloop.envs.spaces import ObsSpec
from hotloop.errors import ConfigError, MissingExtraError, UnknownNameError
from hotloop.importing import import_object, name_of
from hotloop.policies.heads import Head

if TYPE_CHECKING:
    from hotloop.policies.checked_modules import CheckedModule


@dataclass(frozen=True)
class Module:
    """What a user's module is made by; it learns and acts through torch.

    Attributes:
        factory: makes the module; called as `factory(obs_shape, head_size)`, for a critic
            `factory(obs_shape, action_size)`.
        name: of the factory, `module:Class`, by which it is found again.
    """

    factory: Callable[..., Any] = field(repr=False)
    name: str

    def build(self, obs_spec: ObsSpec, head: Head, has_value: bool) -> CheckedModule:
        """Return the module for these observations and this head.

        Raises:
            ConfigError: the factory or the module raised, or the module can't be trained as it is.
            ShapeError: `forward` gives something else than a head, and a value where there is one.
        """
        from hotloop.policies.checked_modules import CheckedModule

        if head.needs_perceptrons:
            raise ConfigError(
                f"network '{self.name}': this head's layers are hotloop's own, and a module gives "
                f"{head.description} by itself: leave one of both out"
            )
        module = CheckedModule(
            self,
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
        """Return values that `json.dumps` takes."""
        return {"kind": "module", "name": self.name}


def find_module(network: str | Callable[..., Any]) -> Module:
    """Return a network of the user's own.

    Args:
        network: `module:Class`, or a class or function that makes a `torch.nn.Module`.

    Raises:
        UnknownNameError: there is no such module or class.
        ConfigError: it can't be imported, or makes no module.
        MissingExtraError: torch is not installed.
    """
    try:
        import torch
    except ImportError as error:
        raise MissingExtraError(
            "a network of your own needs torch, which is not installed: "
            "pip install 'hotloop[train]'"
        ) from error
    name = network if isinstance(network, str) else name_of(network)
    if isinstance(network, str):
        if "<" in name:
            raise UnknownNameError(f"'{name}' is not the name of something that can be imported")
        network = import_object(name, kind="network", example="my_nets:Net")
    if isinstance(network, torch.nn.Module) or not callable(network):
        raise ConfigError(
            f"`network` must be a class or a function that makes a module, got a "
            f"{type(network).__name__}: pass what makes it, so that a seed can decide its weights"
        )
    return Module(network, name)
