"""Gymnasium's environments and vector environments."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from hotloop.profiler.collect.hooks.wrapping import facts, wrap_subclasses


def _environments(module: ModuleType) -> None:
    wrap_subclasses(module.Env, {"step": "env_step", "reset": "env_reset"})


def _vector_environments(module: ModuleType) -> None:
    names = {"step": "vector_step", "reset": "vector_reset"}
    wrap_subclasses(module.VectorEnv, names, before=note_size)


def note_size(envs: Any, *_: Any, **__: Any) -> None:
    """How many environments are stepped at once."""
    try:
        size = float(getattr(envs, "num_envs", 1))
    except Exception:  # a property of somebody's: what it raises is none of the program's business
        return
    if size > facts.get("num_envs", 0.0):
        facts["num_envs"] = size


CALLBACKS = {
    "gymnasium.core": _environments,
    "gymnasium.vector.vector_env": _vector_environments,
}
