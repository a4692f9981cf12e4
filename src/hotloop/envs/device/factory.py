"""Creation of device environments from ids or factories, and the errors for unknown names."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from hotloop.base.importing import describe_exception, import_module_of
from hotloop.base.redaction import redacted_options
from hotloop.envs.checks import describe_value
from hotloop.envs.device.protocol import DeviceVectorEnv
from hotloop.envs.device.specs import missing_library
from hotloop.envs.spec import EnvSpec
from hotloop.errors import (
    ConfigError,
    EnvironmentFailure,
    HotloopError,
    UnknownNameError,
    nearest,
)

if TYPE_CHECKING:
    import torch

    from hotloop.envs.device.host import HostVectorEnv

DeviceFactory = Callable[..., DeviceVectorEnv]

_PACKAGE = __package__
# Module and function of built-in environments, by id.
_BUILT_IN = {"hotloop:CartPole": (f"{_PACKAGE}.cartpole", "make_cartpole")}
# Module and function of environment libraries, by the prefix of ids.
_LIBRARIES = {
    "gymnax": (f"{_PACKAGE}.gymnax", "make_gymnax"),
    "brax": (f"{_PACKAGE}.brax", "make_brax"),
    "playground": (f"{_PACKAGE}.brax", "make_playground"),
}
_REQUIRED_PARAMETERS = ("num_envs", "device")


def is_on_device(spec: EnvSpec, *, may_import: bool = True) -> bool:
    """Return whether environments step on a device.

    Args:
        spec: the environments. A factory makes device environments if it has the required
            parameters `num_envs` and `device`. This check imports its module.
        may_import: whether modules may be imported. If not, named factories count as host ones.
    """
    if isinstance(spec.env, str):
        prefix = spec.env.partition(":")[0]
        if ":" not in spec.env or spec.is_envpool or spec.pettingzoo_module:
            return False
        if prefix == "hotloop" or prefix in _LIBRARIES:
            return True
        if not may_import:
            return False
    return _find_custom_factory(spec) is not None


def make_device_vec(
    env: EnvSpec | str | DeviceFactory, num_envs: int, device: torch.device
) -> DeviceVectorEnv:
    """Return N environments on a device.

    Args:
        env: `hotloop:CartPole`, `gymnax:Id`, `brax:name`, `playground:name`, or a factory or its
            name `module:factory`, called as `factory(num_envs=…, device=…, **env_kwargs)`; or an
            `EnvSpec` of one of them, of which `env` and `env_kwargs` count.
        num_envs: N.
        device: device of the environments and their tensors.

    Raises:
        UnknownNameError: there is no such environment.
        MissingExtraError: a library that the environment needs is not installed.
        ConfigError: `env_kwargs` are invalid, or the factory returns another type, number or
            device of environments.
        SpaceError: an observation or action space is not supported.
        EnvironmentFailure: the factory raised.
    """
    spec = EnvSpec.of(env)
    kwargs = dict(spec.env_kwargs)
    name = spec.env if isinstance(spec.env, str) else spec.name.rpartition(":")[2]
    factory = _find_factory(spec)
    kwargs_text = f" with env_kwargs {redacted_options(kwargs)}" if kwargs else ""
    try:
        envs = factory(num_envs=num_envs, device=device, **kwargs)
    except HotloopError:
        raise
    except (Exception, SystemExit) as error:
        kind = ConfigError if kwargs and isinstance(error, TypeError) else EnvironmentFailure
        raise kind(
            f"{name}: making {num_envs:,} environments on {device}{kwargs_text} raised "
            f"{describe_exception(error)}"
        ) from error
    if not isinstance(envs, DeviceVectorEnv):
        raise ConfigError(
            f"{name}: a factory with `num_envs` and `device` must return a DeviceVectorEnv, got "
            f"{describe_value(envs)} without {_missing_members(envs)}: see `hotloop.envs.device`"
        )
    if envs.num_envs != num_envs:
        raise ConfigError(
            f"{name}: `num_envs` is {num_envs}, but the factory makes {envs.num_envs}: return "
            "`num_envs` environments"
        )
    if not _is_same_device(envs.device, device):
        raise ConfigError(
            f"{name}: environments must be on the learner's device, {device}, but their tensors "
            f"are on {envs.device}: train with `device` '{envs.device}', or create them on {device}"
        )
    return envs


def make_host_vec(spec: EnvSpec, num_envs: int) -> HostVectorEnv:
    """Return N environments on the CPU with NumPy arrays, for evaluations. See `make_vec`.

    Raises:
        ConfigError: `action_masks` or `log_info` is set, but device environments have no `info`.
    """
    if spec.action_masks or spec.log_info:
        option = "`action_masks`" if spec.action_masks else "`log_info`"
        raise ConfigError(
            f"{option} needs `info`, which environments on the device do not have: leave it out"
        )
    import torch

    from hotloop.envs.device.host import HostVectorEnv

    return HostVectorEnv(make_device_vec(spec, num_envs, torch.device("cpu")), spec)


def _find_factory(spec: EnvSpec) -> DeviceFactory:
    env = spec.env
    if isinstance(env, str):
        prefix, _, name = env.partition(":")
        if env in _BUILT_IN:
            return _import_factory(env, *_BUILT_IN[env])
        if prefix == "hotloop":
            hint = nearest(env, _BUILT_IN) or f": hotloop has {', '.join(_BUILT_IN)}"
            raise UnknownNameError(f"there is no environment '{env}'{hint}")
        if prefix in _LIBRARIES:
            return partial(_import_factory(env, *_LIBRARIES[prefix]), name)
    factory = _find_custom_factory(spec)
    if factory is None:
        raise ConfigError(
            f"a factory of environments on the device must take `num_envs` and `device`, got "
            f"{describe_value(env)}: give it both parameters, without defaults"
        )
    return factory


def _import_factory(env: str, module: str, name: str) -> DeviceFactory:
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "jax"):
            raise
        packages = "'hotloop[train]'" if error.name == "torch" else "jax"
        raise missing_library(env, error, packages) from error


def _find_custom_factory(spec: EnvSpec) -> DeviceFactory | None:
    """Return the factory of device environments, None if `spec.env` is not such a factory."""
    factory: Any = spec.env
    if isinstance(spec.env, str):
        name = spec.env.rpartition(":")[2]
        try:
            factory = getattr(import_module_of(spec.env), name, None)
        except Exception:  # `make_env` raises a better error later
            return None
    try:
        parameters = inspect.signature(factory).parameters
    except (TypeError, ValueError):
        return None
    for name in _REQUIRED_PARAMETERS:
        parameter = parameters.get(name)
        if parameter is None or name in spec.env_kwargs or parameter.default is not parameter.empty:
            return None
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            return None
    return factory


def _missing_members(envs: object) -> str:
    names = ("num_envs", "obs_spec", "action_spec", "device", "reset", "step", "state", "load")
    return ", ".join(f"`{name}`" for name in (*names, "close") if not hasattr(envs, name))


def _is_same_device(first: torch.device, second: torch.device) -> bool:
    """Return whether two devices are the same. A device without an index has index 0."""
    return (first.type, first.index or 0) == (second.type, second.index or 0)
