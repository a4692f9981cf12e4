"""Batches of requests to one network, in the inference process and in Ray's inference actors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from hotloop.policies import ActingPolicy
from hotloop.timing import span
from hotloop.types import Array


class NetworkOutputs(NamedTuple):
    """The outputs of the network for a request.

    Attributes:
        head: Inputs of the action distribution, float32, (B, H).
        value: Values, float32, (B,). None: there is no value function.
        memory: Next hidden states, float32, (B, M). None: there are none.
    """

    head: Array
    value: Array | None
    memory: Array | None


_RequestT = TypeVar("_RequestT")


def split_requests(
    requests: Sequence[_RequestT], publication: Callable[[_RequestT], int]
) -> tuple[list[_RequestT], list[_RequestT]]:
    """Return the requests with the first one's publication, for a batch, and the others."""
    first = publication(requests[0])
    batch = [request for request in requests if publication(request) == first]
    return batch, [request for request in requests if publication(request) != first]


def run_network(
    policy: ActingPolicy, obs: Sequence[Array], memories: Sequence[Array | None]
) -> list[NetworkOutputs]:
    """Run the network for all requests as one batch, and return the outputs of each.

    Args:
        policy: Acting policy.
        obs: Raw observations of each request, (B, *obs_shape).
        memories: Hidden states of each request, float32, (B, M), or None. They do not change.
    """
    if not obs:
        return []
    batch, memory = obs[0], None
    if len(obs) > 1:
        with span("copy_obs", kind="transfer"):
            batch = np.concatenate(obs)
    if policy.memory_size:  # a copy, since the network changes it
        memory = np.concatenate([states for states in memories if states is not None])
    with span("forward"):
        head, value = policy.head_and_value(batch, None, memory)
    outputs: list[NetworkOutputs] = []
    start = 0
    for part in obs:
        rows = slice(start, start := start + len(part))
        outputs.append(
            NetworkOutputs(
                head[rows],
                None if value is None else value[rows],
                None if memory is None else memory[rows],
            )
        )
    return outputs
