"""The contract between the stages of the loop: what a rollout hands to a learner.

Legend of shapes, used in every docstring:

    T   num_steps, steps in one fragment
    N   num_envs, environments side by side
    B   batch_size, transitions in one gradient step
    A   action dimension, or number of actions

Rollouts are time-major. Index `t` is one transition: `obs[t]`, `action[t]`, and what they led to:
`reward[t]`, `terminated[t]`, `truncated[t]`, `next_obs[t]`. `next_obs[t]` is the *true* successor,
also where the environment was reset afterwards; `obs[t + 1]` is what the policy saw next.
Termination stops the bootstrap, truncation does not; either ends the recursion of the advantages.

Rewards, values, log-probabilities and advantages are float32; flags are bool.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import DTypeLike

Array = np.ndarray


class StepArrays(NamedTuple):
    """Where a vector environment writes one step of N environments, in place.

    Attributes:
        next_obs: (N, *obs_shape), the true successor of what was acted on.
        reward: float32, (N,).
        terminated: bool, (N,).
        truncated: bool, (N,).
        valid: bool, (N,). False where the step was no transition but the reset that an environment
            with next-step autoreset spends a call on; such a row must not be learned from.
        obs: (N, *obs_shape), what to act on next: `next_obs`, or the first observation of the next
            episode where this one ended.
    """

    next_obs: Array
    reward: Array
    terminated: Array
    truncated: Array
    valid: Array
    obs: Array


# The fields of a fragment that have a row for each step.
PER_STEP = (
    *("obs", "action", "reward", "terminated", "truncated", "valid", "next_obs"),
    *("value", "next_value", "log_prob", "memory"),
)


@dataclass(slots=True)
class Fragment:
    """T steps of N environments, time-major.

    Attributes:
        obs: (T, N, *obs_shape), raw, as the environment gave it.
        action: (T, N, *action_shape), as the policy drew it (a box action is not clipped yet).
        reward: float32, (T, N).
        terminated: bool, (T, N).
        truncated: bool, (T, N).
        valid: bool, (T, N), see `StepArrays.valid`.
        next_obs: (T, N, *obs_shape), the true successors.
        value: float32, (T, N), V(obs) under the policy that acted.
        next_value: float32, (T, N), V(next_obs) under the policy that acted; 0 where terminated.
        log_prob: float32, (T, N), log π(action | obs) under the policy that acted.
        last_obs: (N, *obs_shape), what to act on after the last step.
        memory: float32, (T, N, M), what the network remembered before each step, 0 where an episode
            begins; M is its `memory_size`, 0 of a network without memory.
        last_memory: (N, M), what it remembers after the last step, 0 where the episode ended.
        policy_version: version of the policy that acted; the oldest one, if it changed on the way.
        versions: int64, (T,), that of each row; None: all the same.
        first_env: number of its first environment, counted over all workers.
        restarted_envs: environments, 0 … N − 1, whose first row here follows on nothing: the
            episode that the rows before belong to was lost.
    """

    obs: Array
    action: Array
    reward: Array
    terminated: Array
    truncated: Array
    valid: Array
    next_obs: Array
    value: Array
    next_value: Array
    log_prob: Array
    last_obs: Array
    memory: Array
    last_memory: Array
    policy_version: int = 0
    first_env: int = 0
    restarted_envs: tuple[int, ...] = ()
    versions: Array | None = None

    @classmethod
    def allocate(
        cls,
        num_steps: int,
        num_envs: int,
        *,
        obs_shape: tuple[int, ...],
        obs_dtype: DTypeLike,
        action_shape: tuple[int, ...],
        action_dtype: DTypeLike,
        memory_size: int = 0,
        first_env: int = 0,
        zeros: Callable[[tuple[int, ...], DTypeLike], Array] = np.zeros,
    ) -> Fragment:
        """Storage for `num_steps` × `num_envs` transitions, zeroed, or wherever `zeros` puts it."""
        steps = (num_steps, num_envs)
        obs = zeros((num_steps + 1, num_envs, *obs_shape), obs_dtype)
        memory = zeros((num_steps + 1, num_envs, memory_size), np.float32)
        fragment = cls(
            obs=obs[:-1],
            action=zeros((*steps, *action_shape), action_dtype),
            reward=zeros(steps, np.float32),
            terminated=zeros(steps, np.bool_),
            truncated=zeros(steps, np.bool_),
            valid=zeros(steps, np.bool_),
            next_obs=zeros((*steps, *obs_shape), obs_dtype),
            value=zeros(steps, np.float32),
            next_value=zeros(steps, np.float32),
            log_prob=zeros(steps, np.float32),
            last_obs=obs[-1],
            memory=memory[:-1],
            last_memory=memory[-1],
            first_env=first_env,
        )
        if zeros is np.zeros:
            fragment.valid.fill(True)
        return fragment

    def rows(self, start: int, stop: int) -> Fragment:
        """Steps `start` … `stop` − 1, as views."""
        per_step = {name: getattr(self, name)[start:stop] for name in PER_STEP}
        return Fragment(
            **per_step,
            last_obs=self.obs[stop] if stop < self.num_steps else self.last_obs,
            last_memory=self.memory[stop] if stop < self.num_steps else self.last_memory,
            policy_version=self.policy_version,
            first_env=self.first_env,
            restarted_envs=self.restarted_envs if start == 0 else (),
            versions=None if self.versions is None else self.versions[start:stop],
        )

    @property
    def num_steps(self) -> int:
        """T."""
        return self.reward.shape[0]

    @property
    def num_envs(self) -> int:
        """N."""
        return self.reward.shape[1]

    def step_arrays(self) -> list[StepArrays]:
        """One set of views per step, made once, so that the loop makes none."""
        following = [*self.obs[1:], self.last_obs]
        return [
            StepArrays(
                self.next_obs[t],
                self.reward[t],
                self.terminated[t],
                self.truncated[t],
                self.valid[t],
                following[t],
            )
            for t in range(self.num_steps)
        ]


# The numbers of an episode that has none.
NO_INFO: Mapping[str, float] = MappingProxyType({})


class Episode(NamedTuple):
    """A finished episode.

    Attributes:
        env: which environment, 0 … N − 1 (counted over all workers).
        episode: which episode of that environment, from 0.
        undiscounted_return: sum of its raw rewards.
        length: its transitions.
        info: the environment's own numbers of it, by name, see `hotloop.envs.numbers`.
    """

    env: int
    episode: int
    undiscounted_return: float
    length: int
    info: Mapping[str, float] = NO_INFO


class RunningEpisode(NamedTuple):
    """An episode that has begun and not ended, and what brings a fresh environment to where it is.

    Attributes:
        episode: which episode of its environment, from 0.
        actions: (L, *action_shape), what the policy drew in its L steps so far.
        obs_hash: of the observation to act on next, see `hotloop.envs.obs_hash`.
    """

    episode: int
    actions: Array
    obs_hash: str
