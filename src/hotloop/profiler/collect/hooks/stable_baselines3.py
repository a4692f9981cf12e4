"""Hooks for Stable-Baselines3 vector environments, loops, buffers, policies and loggers."""

from __future__ import annotations

from types import ModuleType

from hotloop.profiler.collect.hooks.environments import record_num_envs
from hotloop.profiler.collect.hooks.wrapping import wrap, wrap_subclasses


def _hook_vector_environments(module: ModuleType) -> None:
    names = {"step": "vector_step", "reset": "vector_reset"}
    wrap_subclasses(module.VecEnv, names, before=record_num_envs)


def _hook_algorithms(module: ModuleType) -> None:
    wrap_subclasses(
        module.BaseAlgorithm,
        {"train": "update", "collect_rollouts": "collect", "_setup_learn": "set_up"},
    )


def _hook_buffers(module: ModuleType) -> None:
    wrap_subclasses(module.BaseBuffer, {"sample": "replay_sample", "add": "replay_add"})


def _hook_policies(module: ModuleType) -> None:
    wrap_subclasses(module.BasePolicy, {"predict": "act"})
    wrap(module.ActorCriticPolicy, "forward", "act")


def _hook_logger(module: ModuleType) -> None:
    wrap(module.Logger, "dump", "logging")


_COMMON = "stable_baselines3.common"
CALLBACKS = {
    f"{_COMMON}.vec_env.base_vec_env": _hook_vector_environments,
    f"{_COMMON}.base_class": _hook_algorithms,
    f"{_COMMON}.buffers": _hook_buffers,
    f"{_COMMON}.policies": _hook_policies,
    f"{_COMMON}.logger": _hook_logger,
}
