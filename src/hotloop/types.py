"""The data that rollouts pass to learners.

The docstrings use these symbols for shapes:

    T   num_steps, steps in one fragment
    N   num_envs, environments stepped together
    B   batch_size, transitions in one gradient step
    A   action dimension, or number of actions

Rollouts are time-major. Index `t` is one transition: `obs[t]` and `action[t]` led to `reward[t]`,
`terminated[t]`, `truncated[t]` and `next_obs[t]`. `next_obs[t]` is the *true* successor, even if
the environment was reset afterwards. `obs[t + 1]` is the next input of the policy. Termination
stops the bootstrap, truncation does not. Both end the recursion of the advantages.

Rewards, values, log-probabilities and advantages are float32; flags are bool.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

Array = np.ndarray


class StepArrays(NamedTuple):
    """Output arrays for one step of N environments. A vector environment writes into them in place.

    Attributes:
        next_obs: (N, *obs_shape), the true successors.
        reward: float32, (N,).
        terminated: bool, (N,).
        truncated: bool, (N,).
        valid: bool, (N,). False if the call was not a transition but the reset of an environment
            with next-step autoreset. Such a row must not be used for learning.
        obs: (N, *obs_shape), the next input of the policy: `next_obs`, or the first observation of
            the next episode if this one ended.
        next_mask: bool, (N, M), the discrete actions that `next_obs` allows, see
            `hotloop.envs.masks`. All after a termination. M = 0 without action masks.
        mask: bool, (N, M), the actions that `obs` allows.
    """

    next_obs: Array
    reward: Array
    terminated: Array
    truncated: Array
    valid: Array
    obs: Array
    next_mask: Array
    mask: Array


# The fields of `Fragment` with one row per step.
PER_STEP = (
    *("obs", "mask", "action", "reward", "terminated", "truncated", "valid"),
    *("next_obs", "next_mask", "value", "next_value", "log_prob", "memory"),
)
# The fields that continue one of these after the last step.
AFTER_LAST_STEP = {"last_obs": "obs", "last_mask": "mask", "last_memory": "memory"}


@dataclass(slots=True)
class Fragment:
    """T steps of N environments, time-major: arrays, or tensors of environments on a device.

    Attributes:
        obs: (T, N, *obs_shape), raw, as returned by the environment.
        mask: bool, (T, N, M), the discrete actions that `obs` allows. M = 0 without action masks.
        action: (T, N, *action_shape), as sampled by the policy (Box actions are not clipped yet).
        reward: float32, (T, N).
        terminated: bool, (T, N).
        truncated: bool, (T, N).
        valid: bool, (T, N), see `StepArrays.valid`.
        next_obs: (T, N, *obs_shape), the true successors.
        next_mask: bool, (T, N, M), see `StepArrays.next_mask`.
        value: float32, (T, N), V(obs) of the acting policy.
        next_value: float32, (T, N), V(next_obs) of the acting policy, 0 if terminated.
        log_prob: float32, (T, N), log π(action | obs) of the acting policy.
        last_obs: (N, *obs_shape), the policy's input after the last step.
        last_mask: bool, (N, M), the actions that `last_obs` allows.
        memory: float32, (T, N, H), the hidden state of a recurrent network before each step, 0 at
            episode starts. H is the network's `memory_size`, 0 without recurrence.
        last_memory: (N, H), the hidden state after the last step, 0 if the episode ended.
        policy_version: Version of the policy that acted, or the oldest one if it changed.
        versions: int64, (T,), the policy version of each row. None if all are `policy_version`.
        first_env: Index of the first environment, counted over all workers.
        restarted_envs: Environments, 0 … N − 1, that were restarted before the first row. Their
            previous episode was lost.
    """

    obs: Array
    mask: Array
    action: Array
    reward: Array
    terminated: Array
    truncated: Array
    valid: Array
    next_obs: Array
    next_mask: Array
    value: Array
    next_value: Array
    log_prob: Array
    last_obs: Array
    last_mask: Array
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
        mask_size: int = 0,
        memory_size: int = 0,
        first_env: int = 0,
        zeros: Callable[[tuple[int, ...], DTypeLike], Array] = np.zeros,
    ) -> Fragment:
        """Allocate zeroed arrays for `num_steps` × `num_envs` transitions, by means of `zeros`."""
        steps = (num_steps, num_envs)
        obs = zeros((num_steps + 1, num_envs, *obs_shape), obs_dtype)
        mask = zeros((num_steps + 1, num_envs, mask_size), np.bool_)
        memory = zeros((num_steps + 1, num_envs, memory_size), np.float32)
        fragment = cls(
            obs=obs[:-1],
            mask=mask[:-1],
            action=zeros((*steps, *action_shape), action_dtype),
            reward=zeros(steps, np.float32),
            terminated=zeros(steps, np.bool_),
            truncated=zeros(steps, np.bool_),
            valid=zeros(steps, np.bool_),
            next_obs=zeros((*steps, *obs_shape), obs_dtype),
            next_mask=zeros((*steps, mask_size), np.bool_),
            value=zeros(steps, np.float32),
            next_value=zeros(steps, np.float32),
            log_prob=zeros(steps, np.float32),
            last_obs=obs[-1],
            last_mask=mask[-1],
            memory=memory[:-1],
            last_memory=memory[-1],
            first_env=first_env,
        )
        if zeros is np.zeros:
            fragment.valid.fill(True)
        return fragment

    def rows(self, start: int, stop: int) -> Fragment:
        """Return the steps `start` … `stop` − 1 as views."""
        per_step = {name: getattr(self, name)[start:stop] for name in PER_STEP}
        return Fragment(
            **per_step,
            **self.after(stop),
            policy_version=self.policy_version,
            first_env=self.first_env,
            restarted_envs=self.restarted_envs if start == 0 else (),
            versions=None if self.versions is None else self.versions[start:stop],
        )

    def after(self, stop: int) -> dict[str, Array]:
        """Return the fields of `AFTER_LAST_STEP` for the rows before `stop`, as views."""
        return {
            last: getattr(self, name)[stop] if stop < self.num_steps else getattr(self, last)
            for last, name in AFTER_LAST_STEP.items()
        }

    @property
    def num_steps(self) -> int:
        """The number of steps, T."""
        return self.reward.shape[0]

    @property
    def num_envs(self) -> int:
        """The number of environments, N."""
        return self.reward.shape[1]

    @property
    def all_valid(self) -> bool:
        """Whether every row is a transition, as always with environments on a device."""
        return not isinstance(self.valid, np.ndarray) or bool(self.valid.all())

    def valid_rows(self, steps: Any) -> Any:
        """Return the transitions, (B, …), of arrays or tensors for each row, (T, N, …)."""
        flat = steps.reshape(-1, *steps.shape[2:])
        return flat if self.all_valid else flat[self.valid.reshape(-1)]

    def step_arrays(self) -> list[StepArrays]:
        """Return the views of each step, so that the loop does not create them."""
        following = [*self.obs[1:], self.last_obs]
        following_masks = [*self.mask[1:], self.last_mask]
        return [
            StepArrays(
                self.next_obs[t],
                self.reward[t],
                self.terminated[t],
                self.truncated[t],
                self.valid[t],
                following[t],
                self.next_mask[t],
                following_masks[t],
            )
            for t in range(self.num_steps)
        ]


def transition_bytes(obs_bytes: int = 1, action_bytes: int = 8) -> int:
    """Return the size of a transition in a `Fragment`, without hidden states."""
    return 2 * obs_bytes + action_bytes + 4 * 4 + 3  # four float32 and three bools


# `Episode.info` without metrics.
NO_INFO: Mapping[str, float] = MappingProxyType({})


class Episode(NamedTuple):
    """An episode that ended, or that was cut.

    Attributes:
        env: Index of the environment, counted over all workers.
        episode: Index of the episode within its environment, from 0.
        undiscounted_return: The sum of raw rewards, or the return that the environment records.
        length: The number of transitions, or the length that the environment records.
        info: Metrics of the environment by name, see `hotloop.envs.episode_metrics`.
        is_cut: Whether an evaluation or a video cut the episode before its end.
    """

    env: int
    episode: int
    undiscounted_return: float
    length: int
    info: Mapping[str, float] = NO_INFO
    is_cut: bool = False


class RunningEpisode(NamedTuple):
    """An unfinished episode. Replaying its actions brings a new environment to the same state.

    Attributes:
        episode: Index of the episode within its environment, from 0.
        actions: (L, *action_shape), the policy's actions in the L steps so far.
        obs_hash: Hash of the policy's next observation, see `hotloop.envs.obs_hash`.
    """

    episode: int
    actions: Array
    obs_hash: str
