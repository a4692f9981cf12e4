"""Vector environments of other libraries: in lock-step, and EnvPool."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from bench.measuring import Missing
from bench.rollouts.environments import CARTPOLE, UNEVEN, Uneven

_ACTIONS_AHEAD = 4_096


class Lockstep:
    """A vector environment that is stepped with precomputed actions.

    Args:
        step: method `step` of the vector environment.
        close: method `close` of the vector environment.
        num_envs: N.
        act_s: seconds of sleep per step in place of a policy.
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
        """Step all environments."""
        if self._act_s:
            time.sleep(self._act_s)
        self._step(self._actions[self._number % _ACTIONS_AHEAD])
        self._number += 1
        return self.num_envs

    def close(self) -> None:
        """Close the environments."""
        self._close()


def env_maker(env: str, env_kwargs: Mapping[str, Any]) -> Callable[[], Any]:
    """Return a function that makes one environment."""
    import gymnasium

    if env == UNEVEN:
        return lambda: Uneven(**env_kwargs)
    return lambda: gymnasium.make(env, **env_kwargs)


def sb3(env: str, num_envs: int, env_kwargs: Mapping[str, Any], act_s: float) -> Lockstep:
    """Return Stable-Baselines3's processes, forked because two dozen torch imports need 5 GB."""
    from stable_baselines3.common.vec_env import (  # pyright: ignore[reportMissingImports]
        SubprocVecEnv,
    )

    envs = SubprocVecEnv([env_maker(env, env_kwargs)] * num_envs, start_method="fork")
    envs.reset()
    return Lockstep(envs.step, envs.close, num_envs, act_s)


def gymnasium_async(
    env: str, num_envs: int, env_kwargs: Mapping[str, Any], act_s: float
) -> Lockstep:
    """Return Gymnasium's processes."""
    from gymnasium.vector import AsyncVectorEnv

    envs = AsyncVectorEnv([env_maker(env, env_kwargs)] * num_envs)
    envs.reset(seed=0)
    return Lockstep(envs.step, envs.close, num_envs, act_s)


def _envpool(num_envs: int, batch_size: int) -> Any:
    try:
        import envpool  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise Missing("not installed") from None
    return envpool.make(
        CARTPOLE, env_type="gymnasium", num_envs=num_envs, batch_size=batch_size, num_threads=2
    )


def envpool_sync(env: str, num_envs: int, env_kwargs: Mapping[str, Any], act_s: float) -> Lockstep:
    """Return EnvPool's threads with all environments in a step."""
    envs = _envpool(num_envs, num_envs)
    envs.reset()
    return Lockstep(envs.step, envs.close, num_envs, act_s)


class EnvPoolAsync:
    """EnvPool's threads with the first half of the environments that is ready."""

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs
        self._envs = _envpool(num_envs, num_envs // 2)
        self._envs.async_reset()
        actions = np.random.default_rng(0).integers(0, 2, (_ACTIONS_AHEAD, num_envs // 2))
        self._actions, self._number = actions, 0

    def advance(self) -> int:
        """Receive observations and send actions."""
        *_, info = self._envs.recv()
        self._envs.send(self._actions[self._number % _ACTIONS_AHEAD], info["env_id"])
        self._number += 1
        return self.num_envs // 2

    def close(self) -> None:
        """Close the environments."""
        self._envs.close()
