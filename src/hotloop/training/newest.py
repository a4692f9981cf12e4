"""Estimates of the newest policy for what older ones have done."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch

from hotloop.policies import ActingPolicy
from hotloop.policies.learned import LearnedNetwork
from hotloop.training.streams import ages
from hotloop.types import Array, Fragment


class Newest(NamedTuple):
    """A fragment, as the policy that is learned sees it now.

    Attributes:
        log_prob: log π(action | obs), float32, (T, N).
        value: V(obs), float32, (T, N).
        next_value: V(next_obs), float32, (T, N). Where an episode ended it is the estimate of the
            policy that acted: what a network with memory would have remembered there is gone.
        age: how many versions ago the policy acted, int64, (T, N).
    """

    log_prob: Array
    value: Array
    next_value: Array
    age: Array


def newest(
    fragment: Fragment,
    nets: LearnedNetwork,
    params: torch.Tensor,
    policy: ActingPolicy,
    version: int,
) -> Newest:
    """Return what the learned network says of a fragment.

    Args:
        fragment: T steps of N environments.
        nets: policy and value.
        params: as they are now, (P,).
        policy: scales observations.
        version: of these parameters.
    """
    num_steps, num_envs = fragment.num_steps, fragment.num_envs
    obs = np.concatenate([fragment.obs, fragment.last_obs[None]])
    action = np.concatenate([fragment.action, np.zeros_like(fragment.action[:1])])
    ended = fragment.terminated | fragment.truncated
    sequences: tuple[Any, ...] = ()
    if nets.network.memory_size:
        begins = np.zeros((num_steps + 1, num_envs), np.bool_)
        begins[1:] = ended | ~fragment.valid
        sequences = fragment.memory[0], begins.reshape(-1)
    obs = policy.scaled(obs.reshape(-1, *obs.shape[2:]))
    given = (obs, action.reshape(-1, *action.shape[2:]), *sequences)
    with torch.no_grad():
        tensors = [torch.from_numpy(np.ascontiguousarray(x)).to(params.device) for x in given]
        log_prob, _, value = nets.evaluate(params, *tensors)
        log_prob, value = (
            x.cpu().numpy().reshape(num_steps + 1, num_envs) for x in (log_prob, value)
        )
    next_value = np.where(ended | ~fragment.valid, fragment.next_value, value[1:])
    age = np.broadcast_to(ages([fragment], version)[:, None], (num_steps, num_envs))
    return Newest(log_prob[:-1], value[:-1], next_value, age)
