"""Environments of Brax and of MuJoCo Playground, `brax:halfcheetah`, `playground:CheetahRun`.

Both have `reset(key)` and `step(state, action)`, and a state with `obs`, `reward` and `done`. The
libraries' wrappers are not used: they reset automatically, always to the same first state, and hide
the last observation.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import jax  # pyright: ignore[reportMissingImports]
import torch

from hotloop.envs.device.jax_envs import JaxEnvironment, JaxVectorEnv, unsupported_space
from hotloop.envs.device.specs import box_actions, missing_library
from hotloop.errors import ConfigError, UnknownNameError, nearest

# Number of steps after which initial states are regenerated. In between, all episodes of an
# environment begin in the same state.
INITIAL_STATE_INTERVAL = 16


def make_brax(
    name: str,
    *,
    num_envs: int,
    device: torch.device,
    max_episode_steps: int = 1_000,
    **kwargs: Any,
) -> JaxVectorEnv:
    """Return N environments of Brax. Their constructor takes `kwargs`, such as `backend`.

    Raises:
        UnknownNameError, MissingExtraError: the environment or Brax does not exist.
        ConfigError, SpaceError: see `wrap_env` and `JaxVectorEnv`.
    """
    try:
        # Type checkers would resolve `import brax` to this file.
        envs: Any = import_module("brax.envs")
    except ImportError as error:
        raise missing_library(f"brax:{name}", error, "brax") from error
    known = envs._envs
    if name not in known:
        raise UnknownNameError(f"Brax has no environment '{name}'{nearest(name, known)}")
    env = envs.get_environment(name, **kwargs)
    return JaxVectorEnv(wrap_env(env, f"brax:{name}", max_episode_steps), num_envs, device)


def make_playground(
    name: str,
    *,
    num_envs: int,
    device: torch.device,
    max_episode_steps: int | None = None,
    **overrides: Any,
) -> JaxVectorEnv:
    """Return N environments of MuJoCo Playground. `overrides` change their configuration.

    Raises:
        UnknownNameError, MissingExtraError: the environment or Playground does not exist.
        ConfigError, SpaceError: see `wrap_env` and `JaxVectorEnv`.
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
    return JaxVectorEnv(wrap_env(env, f"playground:{name}", max_episode_steps), num_envs, device)


def wrap_env(env: Any, name: str, max_episode_steps: int) -> JaxEnvironment:
    """Return an environment of Brax or Playground, without wrappers, as functions.

    Raises:
        ConfigError: `max_episode_steps` is less than 1.
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

    initial_state = jax.eval_shape(env.reset, jax.random.PRNGKey(0))
    if isinstance(initial_state.obs, Mapping) and "state" not in initial_state.obs:
        parts = ", ".join(f"'{part}'" for part in initial_state.obs)
        raise unsupported_space(name, f"its observations have several parts ({parts})")
    return JaxEnvironment(
        name=name,
        reset=reset,
        step=step,
        obs_shape=tuple(_policy_obs(initial_state.obs).shape),
        action_spec=box_actions(-1.0, 1.0, (int(env.action_size),)),
        max_episode_steps=max_episode_steps,
        initial_state_interval=INITIAL_STATE_INTERVAL,
    )


def _policy_obs(obs: Any) -> Any:
    return obs["state"] if isinstance(obs, Mapping) else obs
