"""A body of the user's own: any `torch.nn.Module`, by name or factory.

    class Net(nn.Module):
        def __init__(self, obs_shape, head_size): ...
        def forward(self, obs): return head, value  # (B, H), and (B,) or (B, 1)

Nothing here imports torch before a module is used.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Any, ClassVar

from hotloop.envs.checks import describe_exception
from hotloop.envs.spaces import ObsSpec, Spaces
from hotloop.errors import ConfigError, MissingExtraError, UnknownNameError, nearest
from hotloop.policies.heads import Head

if TYPE_CHECKING:
    from hotloop.policies.checked_modules import ModuleCritics, ModuleLayers


@dataclass(frozen=True)
class Module:
    """What a user's module is made by; it learns and acts through torch.

    Attributes:
        factory: makes the module; called as `factory(obs_shape, head_size)`, for a critic
            `factory(obs_shape, action_size)`.
        name: of the factory, `module:Class`, by which it is found again.
    """

    kind: ClassVar[str] = "module"

    factory: Callable[..., Any] = field(repr=False)
    name: str

    def build(self, obs_spec: ObsSpec, head: Head, has_value: bool) -> ModuleLayers:
        """Return the module for these observations and this head.

        Raises:
            ConfigError: the factory or the module raised, or the module can't be trained as it is.
            ShapeError: `forward` gives something else than a head, and a value where there is one.
        """
        from hotloop.policies.checked_modules import ModuleLayers

        return ModuleLayers(self, obs_spec, head, has_value)

    def build_critics(self, spaces: Spaces, count: int) -> ModuleCritics:
        """Return `count` modules that tell what actions are worth; raise as `build` does."""
        from hotloop.policies.checked_modules import ModuleCritics

        return ModuleCritics(self, spaces, count)

    def to_json(self) -> dict[str, Any]:
        """Return values that `json.dumps` takes."""
        return {"kind": self.kind, "name": self.name}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Module:
        """Return what `to_json` wrote.

        Raises:
            UnknownNameError, ConfigError, MissingExtraError: as `find_module` does.
        """
        name = fields["name"]
        if ":" not in name or "<" in name:
            raise UnknownNameError(f"'{name}' is not the name of something that can be imported")
        return find_module(name)


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
    factory = _resolve(network) if isinstance(network, str) else network
    if isinstance(factory, torch.nn.Module) or not callable(factory):
        raise ConfigError(
            f"`network` must be a class or a function that makes a module, got a "
            f"{type(factory).__name__}: pass what makes it, so that a seed can decide its weights"
        )
    return Module(factory, network if isinstance(network, str) else _name(factory))


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
