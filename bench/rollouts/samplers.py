"""Samplers by name: hotloop's workers, and the peers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from bench.measuring import Missing
from bench.rollouts.environments import UNEVEN
from bench.rollouts.peers import EnvPoolAsync, envpool_sync, gymnasium_async, sb3


class Sampler(Protocol):
    """Something that collects."""

    num_envs: int

    def advance(self) -> int:
        """Collect what it gives at once: how many transitions that were."""
        ...

    def close(self) -> None:
        """End it."""
        ...


class Hotloop:
    """Workers, or the same environments inline, with the tiniest policy.

    Args:
        env: an id.
        workers: W.
        per_worker: environments of each.
        num_steps: T.
        how: `barrier`, `variable`, `async`, `barrier overlap`, `variable overlap`, `inline`;
            `async fragments`, whole ones, as old as APPO's defaults allow; or `async random`,
            uniform actions that no network is asked for. Any of workers after `ray `: by actors of
            the Ray that is connected to.
        env_kwargs: for the environment.
        minimum: async: transitions of a call, at least.
    """

    def __init__(
        self,
        env: str,
        *,
        workers: int,
        per_worker: int,
        num_steps: int,
        how: str,
        env_kwargs: Mapping[str, Any],
        minimum: int,
    ) -> None:
        from hotloop.envs import make_vec
        from hotloop.policies import (
            ActingPolicy,
            Exploration,
            PolicySnapshot,
            actor,
            actor_critic,
        )
        from hotloop.rollouts import CollectionOptions, InlineEnvironments
        from hotloop.rollouts.workers.pool import WorkerPool

        self.num_envs = workers * per_worker
        made: dict[str, Any] = {"env_kwargs": dict(env_kwargs), "stagger": self.num_envs}
        if how == "inline":
            environments: Any = InlineEnvironments(
                [
                    make_vec(env, per_worker, first_env=worker * per_worker, **made)
                    for worker in range(workers)
                ]
            )
        elif how.startswith("ray "):
            from bench.rollouts.clusters import environments as on_ray

            how = how.removeprefix("ray ")
            environments = on_ray(env, workers=workers, per_worker=per_worker, **made)
        else:
            environments = WorkerPool(env, num_workers=workers, envs_per_worker=per_worker, **made)
        schedule, _, extra = how.replace("inline", "barrier").partition(" ")
        if extra == "random":
            network = actor(environments, "greedy", hidden_sizes=(16,))
            exploration = Exploration(epsilon=(1.0, 1.0))
        else:
            network, exploration = actor_critic(environments, hidden_sizes=(16,)), None
        self._params = network.initial_parameters(0)
        self._snapshot = PolicySnapshot
        self._version = 0
        plan: Any = {"num_steps": num_steps, "seed": 0, "schedule": schedule, "minimum": minimum}
        if extra == "fragments":
            from hotloop.algorithms import appo

            plan |= {"in_fragments": True, "max_policy_age": appo.Config().max_policy_age}
        self.environments = environments
        self.rollout = environments.rollout(
            ActingPolicy(network, PolicySnapshot(0, self._params), exploration=exploration),
            CollectionOptions(**plan, overlap=extra == "overlap"),
        )

    def advance(self) -> int:
        """Collect, and publish."""
        fragments = self.rollout.collect()
        self.rollout.pop_episodes()
        self._version += 1
        self.rollout.publish(self._snapshot(self._version, self._params))
        return sum(int(fragment.valid.sum()) for fragment in fragments)

    def close(self) -> None:
        """End the workers."""
        self.rollout.close()


def make_sampler(
    how: str,
    *,
    env: str,
    workers: int,
    per_worker: int,
    num_steps: int,
    env_kwargs: Mapping[str, Any],
    act_s: float = 0.0,
) -> Sampler:
    """The sampler of a name.

    Raises:
        Missing: its library is not installed.
    """
    num_envs = workers * per_worker
    if how == "envpool async":
        return EnvPoolAsync(num_envs)
    peers = {"sb3": sb3, "gymnasium": gymnasium_async, "envpool": envpool_sync}
    if how.startswith("rllib"):
        from bench.rollouts.clusters import RLlib

        try:
            waits = how == "rllib"
            return RLlib(env_kwargs, workers=workers, num_steps=num_steps, waits=waits)
        except ImportError:
            raise Missing("not installed") from None
    if how in peers:
        try:
            return peers[how](env, num_envs, env_kwargs, act_s)
        except ImportError:
            raise Missing("not installed") from None
    return Hotloop(
        env,
        workers=workers,
        per_worker=per_worker,
        num_steps=num_steps,
        how=how,
        env_kwargs=env_kwargs,
        minimum=num_envs if env == UNEVEN else num_steps * num_envs,
    )
