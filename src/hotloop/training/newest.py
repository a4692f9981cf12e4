"""Estimates of the newest policy for what older ones have done."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch

from hotloop.policies import ActingPolicy
from hotloop.policies.learned import LearnedNetwork
from hotloop.training.streams import ages
from hotloop.types import Array, Fragment

Send = Callable[[Mapping[str, Array]], Mapping[str, torch.Tensor]]
"""Return arrays as tensors on the learner's device, as `Learner.sent` does."""


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
    fragments: Sequence[Fragment],
    nets: LearnedNetwork,
    params: torch.Tensor,
    policy: ActingPolicy,
    version: int,
    send: Send,
) -> list[Newest]:
    """Return what the learned network says of fragments.

    Those of one length are looked at side by side: one forward pass, not one for each worker. What
    the newest policy itself has done is known already.

    Args:
        fragments: of T steps of N environments each.
        nets: policy and value.
        params: as they are now, (P,).
        policy: scales observations.
        version: of these parameters.
        send: copies to the learner's device.
    """
    told: dict[int, Newest] = {}
    old: dict[int, list[int]] = {}  # their places, by length
    for k, fragment in enumerate(fragments):
        age = np.broadcast_to(ages([fragment], version)[:, None], fragment.reward.shape)
        if age.any():
            old.setdefault(fragment.num_steps, []).append(k)
        else:
            told[k] = Newest(fragment.log_prob, fragment.value, fragment.next_value, age)
    for places in old.values():
        some = [fragments[k] for k in places]
        ends = np.cumsum([fragment.num_envs for fragment in some])[:-1]
        log_prob, value = (
            np.split(x, ends, axis=1) for x in _said(some, nets, params, policy, send)
        )
        for k, fragment, of_action, of_obs in zip(places, some, log_prob, value, strict=True):
            ended = fragment.terminated | fragment.truncated
            following = np.where(ended | ~fragment.valid, fragment.next_value, of_obs[1:])
            age = np.broadcast_to(ages([fragment], version)[:, None], ended.shape)
            told[k] = Newest(of_action[:-1], of_obs[:-1], following, age)
    return [told[k] for k in range(len(fragments))]


def _said(
    fragments: Sequence[Fragment],
    nets: LearnedNetwork,
    params: torch.Tensor,
    policy: ActingPolicy,
    send: Send,
) -> tuple[Array, Array]:
    """Return log-probabilities and values of fragments of T steps side by side, (T + 1, Σ N)."""
    obs = _side_by_side([np.concatenate([x.obs, x.last_obs[None]]) for x in fragments])
    action = _side_by_side([x.action for x in fragments])
    action = np.concatenate([action, np.zeros_like(action[:1])])
    shape = obs.shape[:2]
    sequences: dict[str, Array] = {}
    if nets.network.memory_size:
        begins = np.zeros(shape, np.bool_)
        begins[1:] = _side_by_side([x.terminated | x.truncated | ~x.valid for x in fragments])
        memory = np.concatenate([x.memory[0] for x in fragments])
        sequences = {"memory": memory, "begins": begins.reshape(-1)}
    obs = policy.scaled(obs.reshape(-1, *obs.shape[2:]))
    inputs = {"obs": obs, "action": action.reshape(-1, *action.shape[2:]), **sequences}
    with torch.no_grad():
        tensors = send({name: np.ascontiguousarray(x) for name, x in inputs.items()})
        log_prob, _, value = nets.evaluate(params, *tensors.values())
        return log_prob.cpu().numpy().reshape(shape), value.cpu().numpy().reshape(shape)


def _side_by_side(arrays: Sequence[Array]) -> Array:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays, axis=1)
