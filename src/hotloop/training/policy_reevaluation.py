"""Reevaluation of older fragments with the newest policy, for off-policy corrections."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch

from hotloop.base.transfer import to_host
from hotloop.policies import ActingPolicy
from hotloop.policies.forward import LearnedNetwork
from hotloop.types import Array, Fragment

Send = Callable[[Mapping[str, Array]], Mapping[str, torch.Tensor]]
"""A function that returns arrays as tensors on the learner's device."""


class PolicyReevaluation(NamedTuple):
    """The newest policy's estimates for a fragment.

    Attributes:
        log_prob: log π(action | obs), float32, (T, N).
        value: V(obs), float32, (T, N).
        next_value: V(next_obs), float32, (T, N). At the end of an episode it is the acting policy's
            estimate, since the hidden state of a recurrent network is not available there.
        age: the age of the acting policy in versions, int64, (T, N).
    """

    log_prob: Array
    value: Array
    next_value: Array
    age: Array


def ages(fragments: Sequence[Fragment], version: int) -> Array:
    """Return the versions between the acting policy and `version` at each step, int64, (Σ T,)."""
    return version - np.concatenate(
        [
            np.full(x.num_steps, x.policy_version) if x.versions is None else x.versions
            for x in fragments
        ]
    )


def reevaluate(
    fragments: Sequence[Fragment],
    nets: LearnedNetwork,
    params: torch.Tensor,
    policy: ActingPolicy,
    version: int,
    send: Send,
) -> list[PolicyReevaluation]:
    """Return the newest policy's estimates for each fragment.

    Fragments of equal length share one forward pass, instead of one for each worker. Fragments of
    the newest policy itself keep their estimates.

    Args:
        fragments: fragments of T steps of N environments each.
        nets: the policy and value network.
        params: its current parameters, (P,).
        policy: the acting policy, which scales observations.
        version: the version of the parameters.
        send: a function that copies arrays to the learner's device.
    """
    results: dict[int, PolicyReevaluation] = {}
    old: dict[int, list[int]] = {}  # indices of older policies' fragments, by number of steps
    for k, fragment in enumerate(fragments):
        age = np.broadcast_to(ages([fragment], version)[:, None], fragment.reward.shape)
        if age.any():
            old.setdefault(fragment.num_steps, []).append(k)
        else:
            results[k] = PolicyReevaluation(
                fragment.log_prob, fragment.value, fragment.next_value, age
            )
    for indices in old.values():
        group = [fragments[k] for k in indices]
        ends = np.cumsum([fragment.num_envs for fragment in group])[:-1]
        log_prob, value = (
            np.split(x, ends, axis=1) for x in _forward(group, nets, params, policy, send)
        )
        for k, fragment, log_probs, values in zip(indices, group, log_prob, value, strict=True):
            ends = fragment.terminated | fragment.truncated
            next_value = np.where(ends | ~fragment.valid, fragment.next_value, values[1:])
            age = np.broadcast_to(ages([fragment], version)[:, None], ends.shape)
            results[k] = PolicyReevaluation(log_probs[:-1], values[:-1], next_value, age)
    return [results[k] for k in range(len(fragments))]


def _forward(
    fragments: Sequence[Fragment],
    nets: LearnedNetwork,
    params: torch.Tensor,
    policy: ActingPolicy,
    send: Send,
) -> tuple[Array, Array]:
    """Return log-probabilities and values for fragments of T steps, each (T + 1, Σ N)."""
    obs = _join_environments([np.concatenate([x.obs, x.last_obs[None]]) for x in fragments])
    action = _join_environments([x.action for x in fragments])
    action = np.concatenate([action, np.zeros_like(action[:1])])
    shape = obs.shape[:2]
    inputs: dict[str, Array] = {}
    if nets.network.action_spec.is_masked:
        mask = _join_environments([np.concatenate([x.mask, x.last_mask[None]]) for x in fragments])
        inputs["mask"] = mask.reshape(-1, mask.shape[-1])
    if nets.network.memory_size:
        begins = np.zeros(shape, np.bool_)
        begins[1:] = _join_environments([x.terminated | x.truncated | ~x.valid for x in fragments])
        memory = np.concatenate([x.memory[0] for x in fragments])
        inputs |= {"memory": memory, "begins": begins.reshape(-1)}
    inputs["obs"] = policy.scaled(obs.reshape(-1, *obs.shape[2:]))
    inputs["action"] = action.reshape(-1, *action.shape[2:])
    with torch.no_grad():
        tensors = send({name: np.ascontiguousarray(x) for name, x in inputs.items()})
        log_prob, _, value = nets.evaluate(params, **tensors)
        return to_host(log_prob).reshape(shape), to_host(value).reshape(shape)


def _join_environments(arrays: Sequence[Array]) -> Array:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays, axis=1)
