"""Batches of requests to one network, in the inference process and in Ray's inference actors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeVar

import numpy as np

from hotloop.policies import ActingPolicy
from hotloop.timing import span
from hotloop.types import Array


class NetworkInputs(Protocol):
    """The inputs of the network in a request."""

    @property
    def obs(self) -> Array:
        """Raw observations, (B, *obs_shape)."""
        ...

    @property
    def memory(self) -> Array | None:
        """Hidden states, float32, (B, M). They do not change."""
        ...


class NetworkOutputs(NamedTuple):
    """The outputs of the network for a request.

    Attributes:
        head: Outputs of the head, float32, (B, H).
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
    """Return the requests for the first one's publication, which form a batch, and the others."""
    first = publication(requests[0])
    batch = [request for request in requests if publication(request) == first]
    return batch, [request for request in requests if publication(request) != first]


def run_network(policy: ActingPolicy, requests: Sequence[NetworkInputs]) -> list[NetworkOutputs]:
    """Run the network for all requests as one batch, and return the outputs of each."""
    obs, memory = requests[0].obs, None
    if len(requests) > 1:
        with span("copy_obs", kind="transfer"):
            obs = np.concatenate([request.obs for request in requests])
    if policy.memory_size:  # a copy, since the network changes it
        memory = np.concatenate([x.memory for x in requests if x.memory is not None])
    with span("forward"):
        head, value = policy.head_and_value(obs, None, memory)
    outputs: list[NetworkOutputs] = []
    start = 0
    for request in requests:
        rows = slice(start, start := start + len(request.obs))
        outputs.append(
            NetworkOutputs(
                head[rows],
                None if value is None else value[rows],
                None if memory is None else memory[rows],
            )
        )
    return outputs
