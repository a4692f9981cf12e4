"""Stable-Baselines3: its vector environments, loops, buffers, policies and loggers."""

from __future__ import annotations

from types import ModuleType

from hotloop.profiler.collect.hooks.environments import note_size
from hotloop.profiler.collect.hooks.wrapping import wrap, wrap_subclasses


def _vector_environments(module: ModuleType) -> None:
    names = {"step": "vector_step", "reset": "vector_reset"}
    wrap_subclasses(module.VecEnv, names, before=note_size)


def _algorithms(module: ModuleType) -> None:
    wrap_subclasses(
        module.BaseAlgorithm,
        {"train": "update", "collect_rollouts": "collect", "_setup_learn": "set_up"},
    )


def _buffers(module: ModuleType) -> None:
    wrap_subclasses(module.BaseBuffer, {"sample": "replay_sample", "add": "replay_add"})


def _policies(module: ModuleType) -> None:
    wrap_subclasses(module.BasePolicy, {"predict": "act"})
    wrap(module.ActorCriticPolicy, "forward", "act")


def _logger(module: ModuleType) -> None:
    wrap(module.Logger, "dump", "logging")


_COMMON = "stable_baselines3.common"
CALLBACKS = {
    f"{_COMMON}.vec_env.base_vec_env": _vector_environments,
    f"{_COMMON}.base_class": _algorithms,
    f"{_COMMON}.buffers": _buffers,
    f"{_COMMON}.policies": _policies,
    f"{_COMMON}.logger": _logger,
}
