"""Samplers by name: hotloop's workers and other libraries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol

from bench.measuring import Missing
from bench.rollouts.environments import UNEVEN
from bench.rollouts.peers import EnvPoolAsync, envpool_sync, gymnasium_async, sb3
from hotloop.policies.heads import Greedy


class Sampler(Protocol):
    """Interface of a sampler."""

    num_envs: int

    def advance(self) -> int:
        """Collect a batch; return its number of transitions."""
        ...

    def close(self) -> None:
        """Close the sampler."""
        ...


class HotloopSampler:
    """hotloop's workers, or the same environments inline, with a tiny policy.

    Args:
        env: id of the environment.
        workers: W.
        per_worker: environments per worker.
        num_steps: T.
        method: `barrier`, `variable`, `async`, `barrier overlap`, `variable overlap`, `inline`,
            `async fragments` (whole fragments with APPO's age limit), or `async random` (uniform
            actions without a network). The prefix `ray ` uses actors of the connected Ray.
        env_kwargs: arguments of the environment.
        minimum: minimum transitions per call with `async`.
    """

    def __init__(
        self,
        env: str,
        *,
        workers: int,
        per_worker: int,
        num_steps: int,
        method: str,
        env_kwargs: Mapping[str, Any],
        minimum: int,
    ) -> None:
        from hotloop.envs import EnvSpec, make_vec
        from hotloop.policies import (
            ActingPolicy,
            EpsilonGreedy,
            PolicySnapshot,
            actor,
            actor_critic,
        )
        from hotloop.rollouts import CollectionOptions, InlineEnvironments
        from hotloop.rollouts.processes.pool import WorkerPool

        self.num_envs = workers * per_worker
        spec = EnvSpec(env, env_kwargs, stagger=self.num_envs)
        if method == "inline":
            environments: Any = InlineEnvironments(
                [
                    make_vec(replace(spec, first_env=worker * per_worker), per_worker)
                    for worker in range(workers)
                ]
            )
        elif method.startswith("ray "):
            from bench.rollouts.clusters import make_environments as make_ray_environments

            method = method.removeprefix("ray ")
            environments = make_ray_environments(spec, workers=workers, per_worker=per_worker)
        else:
            environments = WorkerPool(spec, num_workers=workers, envs_per_worker=per_worker)
        schedule, _, extra = method.replace("inline", "barrier").partition(" ")
        if extra == "random":
            network = actor(environments, Greedy(), hidden_sizes=(16,))
            exploration = EpsilonGreedy(start=1.0, end=1.0)
        else:
            network, exploration = actor_critic(environments, hidden_sizes=(16,)), None
        self._params = network.initial_parameters(0)
        self._snapshot = PolicySnapshot
        self._version = 0
        plan: Any = {
            "num_steps": num_steps,
            "seed": 0,
            "schedule": schedule,
            "min_transitions": minimum,
        }
        if extra == "fragments":
            from hotloop.algorithms import appo

            plan |= {"in_fragments": True, "max_policy_age": appo.Config().max_policy_age}
        self.environments = environments
        self.rollout = environments.rollout(
            ActingPolicy(network, PolicySnapshot(0, self._params), exploration=exploration),
            CollectionOptions(**plan, overlap=extra == "overlap"),
        )

    def advance(self) -> int:
        """Collect and publish a snapshot."""
        fragments = self.rollout.collect()
        self.rollout.pop_episodes()
        self._version += 1
        self.rollout.publish(self._snapshot(self._version, self._params))
        return sum(int(fragment.valid.sum()) for fragment in fragments)

    def close(self) -> None:
        """Stop the workers."""
        self.rollout.close()


def make_sampler(
    method: str,
    *,
    env: str,
    workers: int,
    per_worker: int,
    num_steps: int,
    env_kwargs: Mapping[str, Any],
    act_s: float = 0.0,
) -> Sampler:
    """Return a sampler by name.

    Raises:
        Missing: the sampler's library is not installed.
    """
    num_envs = workers * per_worker
    if method == "envpool async":
        return EnvPoolAsync(num_envs)
    peers = {"sb3": sb3, "gymnasium": gymnasium_async, "envpool": envpool_sync}
    if method.startswith("rllib"):
        from bench.rollouts.clusters import RLlib

        try:
            waits = method == "rllib"
            return RLlib(env_kwargs, workers=workers, num_steps=num_steps, waits=waits)
        except ImportError:
            raise Missing("not installed") from None
    if method in peers:
        try:
            return peers[method](env, num_envs, env_kwargs, act_s)
        except ImportError:
            raise Missing("not installed") from None
    return HotloopSampler(
        env,
        workers=workers,
        per_worker=per_worker,
        num_steps=num_steps,
        method=method,
        env_kwargs=env_kwargs,
        minimum=num_envs if env == UNEVEN else num_steps * num_envs,
    )
