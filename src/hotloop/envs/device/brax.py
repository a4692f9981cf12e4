"""Environments of Brax and of MuJoCo Playground, `brax:halfcheetah`, `playground:CheetahRun`.

Both are `reset(key)` and `step(state, action)` with a state that holds `obs`, `reward` and `done`.
They are taken bare, without the libraries' wrappers: those reset by themselves, to one and the same
first state, and hide the last observation.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import jax  # pyright: ignore[reportMissingImports]
import torch

from hotloop.envs.device.factory import missing_library
from hotloop.envs.device.jax_envs import JaxEnvironment, JaxVectorEnv, unsupported
from hotloop.envs.device.specs import box_actions
from hotloop.errors import ConfigError, UnknownNameError, nearest

# First states are made anew after so many steps: some episodes of an environment that end within
# them begin alike.
STEPS_OF_FIRST = 16


def make_brax(
    name: str,
    *,
    num_envs: int,
    device: torch.device,
    max_episode_steps: int = 1_000,
    **kwargs: Any,
) -> JaxVectorEnv:
    """Return N environments of Brax.

    Args:
        name: as Brax calls it.
        num_envs: N.
        device: where they are.
        max_episode_steps: after which an episode is truncated.
        **kwargs: of the environment's constructor, such as `backend`.

    Raises:
        UnknownNameError, MissingExtraError: there is no such environment, or no Brax.
        ConfigError: JAX does not know the device, or an episode has no step.
        SpaceError: its spaces are not supported.
    """
    try:
        # By name: type checkers take this file for the library's.
        envs: Any = import_module("brax.envs")
    except ImportError as error:
        raise missing_library(f"brax:{name}", error, "brax") from error
    known = envs._envs
    if name not in known:
        raise UnknownNameError(f"Brax has no environment '{name}'{nearest(name, known)}")
    env = envs.get_environment(name, **kwargs)
    return JaxVectorEnv(described(env, f"brax:{name}", max_episode_steps), num_envs, device)


def make_playground(
    name: str,
    *,
    num_envs: int,
    device: torch.device,
    max_episode_steps: int | None = None,
    **overrides: Any,
) -> JaxVectorEnv:
    """Return N environments of MuJoCo Playground.

    Args:
        name: as Playground calls it.
        num_envs: N.
        device: where they are.
        max_episode_steps: after which an episode is truncated; None: as its configuration says.
        **overrides: of its configuration.

    Raises:
        UnknownNameError, MissingExtraError: there is no such environment, or no Playground.
        ConfigError: JAX does not know the device, or an episode has no step.
        SpaceError: its spaces are not supported.
    """
    try:
        from mujoco_playground import registry  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise missing_library(f"playground:{name}", error, "playground") from error
    if name not in registry.ALL_ENVS:
        hint = nearest(name, registry.ALL_ENVS)
        raise UnknownNameError(f"MuJoCo Playground has no environment '{name}'{hint}")
    env = registry.load(name, config_overrides=overrides or None)
    if max_episode_steps is None:
        max_episode_steps = int(registry.get_default_config(name).episode_length)
    return JaxVectorEnv(described(env, f"playground:{name}", max_episode_steps), num_envs, device)


def described(env: Any, name: str, max_episode_steps: int) -> JaxEnvironment:
    """Return such an environment as functions.

    Args:
        env: bare.
        name: what messages call it.
        max_episode_steps: after which an episode is truncated.

    Raises:
        ConfigError: an episode has no step.
        SpaceError: its spaces are not supported.
    """
    if max_episode_steps < 1:
        raise ConfigError(
            f"{name}: `max_episode_steps` must be at least 1, got {max_episode_steps}"
        )

    def reset(key: Any) -> tuple[Any, Any]:
        state = env.reset(key)
        return state, _policy_obs(state.obs)

    def step(key: Any, state: Any, action: Any) -> tuple[Any, Any, Any, Any, Any]:
        state = env.step(state, action)
        terminated = state.done > 0.5
        return state, _policy_obs(state.obs), state.reward, terminated, terminated & False

    first = jax.eval_shape(env.reset, jax.random.PRNGKey(0))
    if isinstance(first.obs, Mapping) and "state" not in first.obs:
        parts = ", ".join(f"'{part}'" for part in first.obs)
        raise unsupported(name, f"its observations are of several parts ({parts})")
    return JaxEnvironment(
        name=name,
        reset=reset,
        step=step,
        obs_shape=tuple(_policy_obs(first.obs).shape),
        action_spec=box_actions(-1.0, 1.0, (int(env.action_size),)),
        max_episode_steps=max_episode_steps,
        steps_of_first=STEPS_OF_FIRST,
    )


def _policy_obs(obs: Any) -> Any:
    """Return what the policy sees: of several parts the one that Playground calls `state`."""
    return obs["state"] if isinstance(obs, Mapping) else obs
