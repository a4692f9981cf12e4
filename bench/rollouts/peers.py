"""The peers that rollouts are measured against: vector environments in lock-step, and EnvPool."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from bench.measuring import Missing
from bench.rollouts.environments import CARTPOLE, UNEVEN, Uneven

_ACTIONS_AHEAD = 4_096


class Lockstep:
    """A vector environment, stepped with actions that were drawn ahead.

    Args:
        step: the vector environment's.
        close: likewise.
        num_envs: N.
        act_s: seconds that a policy takes for each step; slept.
    """

    def __init__(
        self,
        step: Callable[[Any], Any],
        close: Callable[[], None],
        num_envs: int,
        act_s: float = 0.0,
    ) -> None:
        self.num_envs = num_envs
        self._step, self._close, self._act_s = step, close, act_s
        self._actions = np.random.default_rng(0).integers(0, 2, (_ACTIONS_AHEAD, num_envs))
        self._number = 0

    def advance(self) -> int:
        """One step of all."""
        if self._act_s:
            time.sleep(self._act_s)
        self._step(self._actions[self._number % _ACTIONS_AHEAD])
        self._number += 1
        return self.num_envs

    def close(self) -> None:
        """End it."""
        self._close()


def single(env: str, env_kwargs: Mapping[str, Any]) -> Callable[[], Any]:
    """What makes one environment, as its users would."""
    import gymnasium

    if env == UNEVEN:
        return lambda: Uneven(**env_kwargs)
    return lambda: gymnasium.make(env, **env_kwargs)


def sb3(env: str, num_envs: int, env_kwargs: Mapping[str, Any], act_s: float) -> Lockstep:
    """Stable-Baselines3's processes; forked, since two dozen that import torch need 5 GB."""
    from stable_baselines3.common.vec_env import (  # pyright: ignore[reportMissingImports]
        SubprocVecEnv,
    )

    made = SubprocVecEnv([single(env, env_kwargs)] * num_envs, start_method="fork")
    made.reset()
    return Lockstep(made.step, made.close, num_envs, act_s)


def gymnasium_async(
    env: str, num_envs: int, env_kwargs: Mapping[str, Any], act_s: float
) -> Lockstep:
    """Gymnasium's processes."""
    from gymnasium.vector import AsyncVectorEnv

    made = AsyncVectorEnv([single(env, env_kwargs)] * num_envs)
    made.reset(seed=0)
    return Lockstep(made.step, made.close, num_envs, act_s)


def _envpool(num_envs: int, batch_size: int) -> Any:
    try:
        import envpool  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise Missing("not installed") from None
    return envpool.make(
        CARTPOLE, env_type="gymnasium", num_envs=num_envs, batch_size=batch_size, num_threads=2
    )


def envpool_sync(env: str, num_envs: int, env_kwargs: Mapping[str, Any], act_s: float) -> Lockstep:
    """EnvPool's threads, all environments in a step."""
    made = _envpool(num_envs, num_envs)
    made.reset()
    return Lockstep(made.step, made.close, num_envs, act_s)


class EnvPoolAsync:
    """EnvPool's threads, whichever half of the environments is first."""

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs
        self._made = _envpool(num_envs, num_envs // 2)
        self._made.async_reset()
        actions = np.random.default_rng(0).integers(0, 2, (_ACTIONS_AHEAD, num_envs // 2))
        self._actions, self._number = actions, 0

    def advance(self) -> int:
        """Receive, and send."""
        *_, info = self._made.recv()
        self._made.send(self._actions[self._number % _ACTIONS_AHEAD], info["env_id"])
        self._number += 1
        return self.num_envs // 2

    def close(self) -> None:
        """End it."""
        self._made.close()
