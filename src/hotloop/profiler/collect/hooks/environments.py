"""Hooks for Gymnasium environments and vector environments."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from hotloop.profiler.collect.hooks.wrapping import facts, wrap_subclasses


def _hook_environments(module: ModuleType) -> None:
    wrap_subclasses(module.Env, {"step": "env_step", "reset": "env_reset"})


def _hook_vector_environments(module: ModuleType) -> None:
    names = {"step": "vector_step", "reset": "vector_reset"}
    wrap_subclasses(module.VectorEnv, names, before=record_num_envs)


def record_num_envs(envs: Any, *_: Any, **__: Any) -> None:
    """Store the number of environments per step, if it is the largest so far."""
    try:
        size = float(getattr(envs, "num_envs", 1))
    except Exception:  # a user's property may raise anything, which must not reach the program
        return
    if size > facts.get("num_envs", 0.0):
        facts["num_envs"] = size


CALLBACKS = {
    "gymnasium.core": _hook_environments,
    "gymnasium.vector.vector_env": _hook_vector_environments,
}
