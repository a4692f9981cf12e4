"""Environments of gymnax, `gymnax:CartPole-v1`, without its automatic resets.

Lange 2022, "gymnax: A JAX-based Reinforcement Learning Environment Library". Its own `step` resets
ended episodes and, before version 1, reports the time limit as a termination.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch

from hotloop.envs.device.jax_envs import JaxEnvironment, JaxVectorEnv, unsupported_space
from hotloop.envs.device.specs import box_actions, discrete_actions, missing_library
from hotloop.envs.spaces import ActionSpec
from hotloop.errors import ConfigError, UnknownNameError, nearest


def make_gymnax(name: str, *, num_envs: int, device: torch.device, **params: Any) -> JaxVectorEnv:
    """Return N environments of gymnax. `params` are fields of its `EnvParams`.

    Raises:
        UnknownNameError, MissingExtraError: the environment or gymnax does not exist.
        ConfigError: it has no such parameter, or JAX does not support the device.
        SpaceError: its spaces are not supported.
    """
    try:
        gymnax: Any = import_module("gymnax")  # `import` would confuse type checkers
    except ImportError as error:
        raise missing_library(f"gymnax:{name}", error, "gymnax") from error
    known = gymnax.registered_envs
    if name not in known:
        raise UnknownNameError(f"gymnax has no environment '{name}'{nearest(name, known)}")
    env, defaults = gymnax.make(name)
    unknown = [param for param in params if not hasattr(defaults, param)]
    if unknown:
        raise ConfigError(
            f"gymnax:{name} has no parameter `{unknown[0]}`{nearest(unknown[0], vars(defaults))}"
        )
    env_params = defaults.replace(**params)
    return JaxVectorEnv(wrap_env(env, env_params, f"gymnax:{name}"), num_envs, device)


def wrap_env(env: Any, params: Any, name: str) -> JaxEnvironment:
    """Return an environment of `gymnax.make` as functions, or raise SpaceError."""

    def reset(key: Any) -> tuple[Any, Any]:
        obs, state = env.reset_env(key, params)
        return state, obs

    def step(key: Any, state: Any, action: Any) -> tuple[Any, Any, Any, Any, Any]:
        obs, state, reward, done, _ = env.step_env(key, state, action, params)
        terminated, truncated = _split_done(env, params, state, done)
        return state, obs, reward, terminated, truncated

    space = env.observation_space(params)
    if not isinstance(getattr(space, "shape", None), tuple):
        raise unsupported_space(name, f"its observations are a {type(space).__name__}")
    return JaxEnvironment(
        name=name,
        reset=reset,
        step=step,
        obs_shape=tuple(space.shape),
        action_spec=_action_spec(env.action_space(params), name),
    )


def _split_done(env: Any, params: Any, state: Any, done: Any) -> tuple[Any, Any]:
    """Return `done` of a step, whose state is `state`, as terminations and truncations."""
    if hasattr(env, "is_truncated"):  # since version 1, `done` is a termination
        return done, env.is_truncated(state, params)
    limit = getattr(params, "max_steps_in_episode", None)
    if limit is None or not hasattr(state, "time"):
        return done, done & False
    endless = params.replace(max_steps_in_episode=2**30)
    terminated = done & env.is_terminal(state, endless)
    return terminated, done & ~terminated & (state.time >= limit)


def _action_spec(space: Any, name: str) -> ActionSpec:
    if hasattr(space, "n"):
        return discrete_actions(int(space.n))
    if hasattr(space, "low") and hasattr(space, "high"):
        return box_actions(space.low, space.high, tuple(space.shape))
    raise unsupported_space(name, f"its actions are a {type(space).__name__}")
