"""Device environments by id or factory, and the errors for names that lead nowhere."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from hotloop.envs.checks import describe_value
from hotloop.envs.device.protocol import DeviceVectorEnv
from hotloop.envs.seeding import Stream
from hotloop.errors import (
    ConfigError,
    EnvironmentFailure,
    HotloopError,
    MissingExtraError,
    UnknownNameError,
    nearest,
)
from hotloop.importing import describe_exception, name_of

if TYPE_CHECKING:
    import torch

    from hotloop.envs.device.host import HostVectorEnv

DeviceFactory = Callable[..., DeviceVectorEnv]

_HERE = "hotloop.envs.device"
# Our own, by id.
_OWN = {"hotloop:CartPole": (f"{_HERE}.cartpole", "make_cartpole")}
# Libraries of environments, by what ids begin with.
_LIBRARIES = {
    "gymnax": (f"{_HERE}.gymnax", "make_gymnax"),
    "brax": (f"{_HERE}.brax", "make_brax"),
    "playground": (f"{_HERE}.brax", "make_playground"),
}
_TAKES = ("num_envs", "device")


def is_on_device(
    env: str | Callable[..., Any],
    env_kwargs: Mapping[str, Any] | None = None,
    *,
    may_import: bool = True,
) -> bool:
    """Whether these environments step on a device.

    Args:
        env: an id, `module:factory`, or a factory. A factory makes such environments if it must be
            given `num_envs` and `device`; its module is imported to see.
        env_kwargs: what it is given besides.
        may_import: whether a module may be; if not, what it holds counts as none.
    """
    if isinstance(env, str):
        prefix = env.partition(":")[0]
        if ":" not in env or prefix == "envpool":
            return False
        if prefix == "hotloop" or prefix in _LIBRARIES:
            return True
        if not may_import:
            return False
    return _users_factory(env, env_kwargs or {}) is not None


def make_device_vec(
    env: str | Callable[..., Any],
    num_envs: int,
    device: torch.device,
    env_kwargs: Mapping[str, Any] | None = None,
) -> DeviceVectorEnv:
    """N environments on a device.

    Args:
        env: `hotloop:CartPole`, `gymnax:Id`, `brax:name`, `playground:name`, or a factory, perhaps
            as `module:factory`, called as `factory(num_envs=…, device=…, **env_kwargs)`.
        num_envs: N.
        device: where they and their tensors are.
        env_kwargs: for the factory, or the library's environment.

    Raises:
        UnknownNameError: there is no such environment.
        MissingExtraError: a library that it needs is not installed.
        ConfigError: `env_kwargs` do not fit, the factory makes something else, or on another
            device.
        SpaceError: an observation or action space is not supported.
        EnvironmentFailure: making them raised.
    """
    kwargs = dict(env_kwargs or {})
    name = env if isinstance(env, str) else name_of(env).rpartition(":")[2]
    factory = _found(env, kwargs)
    given = f" with env_kwargs {kwargs}" if kwargs else ""
    try:
        made = factory(num_envs=num_envs, device=device, **kwargs)
    except HotloopError:
        raise
    except Exception as error:
        kind = ConfigError if kwargs and isinstance(error, TypeError) else EnvironmentFailure
        raise kind(
            f"{name}: making {num_envs:,} environments on {device}{given} raised "
            f"{describe_exception(error)}"
        ) from error
    if not isinstance(made, DeviceVectorEnv):
        raise ConfigError(
            f"{name}: a factory with `num_envs` and `device` must return a DeviceVectorEnv, got "
            f"{describe_value(made)} without {_lacking(made)}: see `hotloop.envs.device`"
        )
    if made.num_envs != num_envs:
        raise ConfigError(
            f"{name}: `num_envs` is {num_envs}, but the factory makes {made.num_envs}: make as "
            "many as are asked for"
        )
    if not _is_same(made.device, device):
        raise ConfigError(
            f"{name}: environments must be on the learner's device, {device}, but their tensors "
            f"are on {made.device}: train with `device` '{made.device}', or make them on {device}"
        )
    return made


def make_host_vec(
    env: str | Callable[..., Any],
    num_envs: int,
    *,
    env_kwargs: Mapping[str, Any] | None,
    seed: int,
    first_env: int,
    stream: Stream,
    action_masks: bool,
    log_info: Sequence[str],
) -> HostVectorEnv:
    """N environments on the CPU whose arrays are NumPy's: to evaluate in; see `make_vec`.

    Raises:
        ConfigError: they have no masks, and no `info`.
    """
    if action_masks or log_info:
        what = "`action_masks`" if action_masks else "`log_info`"
        raise ConfigError(
            f"{what} is read from `info`, and environments on the device have none: leave it out"
        )
    import torch

    from hotloop.envs.device.host import HostVectorEnv

    made = make_device_vec(env, num_envs, torch.device("cpu"), env_kwargs)
    return HostVectorEnv(made, seed=seed, first_env=first_env, stream=stream)


def missing_library(env: str, error: ImportError, packages: str) -> MissingExtraError:
    """What to raise where a library of environments can't be imported.

    Args:
        env: what needs it.
        error: of the import.
        packages: that bring it.
    """
    return MissingExtraError(
        f"environments such as '{env}' need a library that can't be imported ({error}): "
        f"pip install {packages}"
    )


def _found(env: str | Callable[..., Any], kwargs: Mapping[str, Any]) -> DeviceFactory:
    if isinstance(env, str):
        prefix, _, name = env.partition(":")
        if env in _OWN:
            return _imported(env, *_OWN[env])
        if prefix == "hotloop":
            hint = nearest(env, _OWN) or f": there is {', '.join(_OWN)}"
            raise UnknownNameError(f"there is no environment '{env}'{hint}")
        if prefix in _LIBRARIES:
            return partial(_imported(env, *_LIBRARIES[prefix]), name)
    factory = _users_factory(env, kwargs)
    if factory is None:
        raise ConfigError(
            f"a factory of environments on the device must take `num_envs` and `device`, got "
            f"{describe_value(env)}: give it both parameters, without defaults"
        )
    return factory


def _imported(env: str, module: str, name: str) -> DeviceFactory:
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "jax"):
            raise
        packages = "'hotloop[train]'" if error.name == "torch" else "jax"
        raise missing_library(env, error, packages) from error


def _users_factory(
    env: str | Callable[..., Any], kwargs: Mapping[str, Any]
) -> DeviceFactory | None:
    """What makes environments on a device, if this does."""
    factory: Any = env
    if isinstance(env, str):
        module, _, name = env.rpartition(":")
        try:
            factory = getattr(importlib.import_module(module), name, None)
        except Exception:  # who makes single environments of it says what is wrong
            return None
    try:
        parameters = inspect.signature(factory).parameters
    except (TypeError, ValueError):
        return None
    for name in _TAKES:
        parameter = parameters.get(name)
        if parameter is None or name in kwargs or parameter.default is not parameter.empty:
            return None
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            return None
    return factory


def _lacking(made: object) -> str:
    names = ("num_envs", "obs_spec", "action_spec", "device", "reset", "step", "state", "load")
    return ", ".join(f"`{name}`" for name in (*names, "close") if not hasattr(made, name))


def _is_same(one: torch.device, other: torch.device) -> bool:
    """Whether two devices are one; without a number it is the first."""
    return (one.type, one.index or 0) == (other.type, other.index or 0)
