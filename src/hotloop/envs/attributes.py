"""Attributes and methods of single environments, as in Gymnasium's vector environments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hotloop.errors import ConfigError, EnvironmentFailure


def call_each(envs: Sequence[Any], name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
    """Return each environment's result of a method, or the value of an attribute.

    Raises:
        ConfigError: an environment has no such attribute.
        EnvironmentFailure: the environments are closed.
    """
    if not envs:
        raise EnvironmentFailure(f"`{name}` needs environments, but they are closed")
    values = [_read(env, name) for env in envs]
    return tuple(value(*args, **kwargs) if callable(value) else value for value in values)


def set_each(envs: Sequence[Any], name: str, values: Any, num_envs: int) -> None:
    """Set an attribute in each environment.

    Args:
        envs: the environments. Each has `num_envs / len(envs)` rows.
        name: name of the attribute. The wrapper that has it gets it, or else the outermost one.
        values: a list or tuple with a value for each row, or one value for all.
        num_envs: number of rows.

    Raises:
        ConfigError: the number of values is wrong.
        EnvironmentFailure: the environments are closed.
    """
    if not envs:
        raise EnvironmentFailure(f"`{name}` needs environments, but they are closed")
    row_values = values_by_row(values, num_envs)
    num_rows = num_envs // len(envs)
    for env, value in zip(envs, row_values[::num_rows], strict=True):
        if hasattr(env, "set_wrapper_attr"):
            env.set_wrapper_attr(name, value)
        else:
            setattr(env.unwrapped if hasattr(env.unwrapped, name) else env, name, value)


def values_by_row(values: Any, num_envs: int) -> Sequence[Any]:
    """Return one value for each row: those of a list or tuple, or the same for all.

    Raises:
        ConfigError: the number of values is wrong.
    """
    if not isinstance(values, (list, tuple)):
        return [values] * num_envs
    if len(values) != num_envs:
        raise ConfigError(
            f"`values` must be one value, or a list of {num_envs}, got {len(values)}: pass one for "
            "each environment"
        )
    return values


def _read(env: Any, name: str) -> Any:
    try:
        if hasattr(env, "get_wrapper_attr"):
            return env.get_wrapper_attr(name)
        return getattr(env.unwrapped if hasattr(env.unwrapped, name) else env, name)
    except AttributeError as error:
        raise ConfigError(
            f"the environment {env} has no attribute `{name}`: check its spelling"
        ) from error
