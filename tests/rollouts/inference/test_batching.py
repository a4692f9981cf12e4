"""Batches of requests, compared with the network's outputs for each request."""

from types import SimpleNamespace

import numpy as np
import pytest

from hotloop.envs import make_vec
from hotloop.policies import ActingPolicy, PolicySnapshot, actor, actor_critic
from hotloop.policies.heads import Greedy
from hotloop.rollouts.inference.batching import run_network, split_requests


@pytest.mark.parametrize("sizes", [(3,), (2, 1, 4)])
@pytest.mark.parametrize("memory", [None, "gru:4"])
@pytest.mark.parametrize("has_value", [True, False])
def test_each_request_gets_its_own_outputs(sizes, memory, has_value):
    envs = make_vec("CartPole-v1", 1)
    layers = {"hidden_sizes": (8,), "memory": memory}
    network = actor_critic(envs, **layers) if has_value else actor(envs, Greedy(), **layers)
    envs.close()
    policy = ActingPolicy(network, PolicySnapshot(3, network.initial_parameters(1)))
    rng = np.random.default_rng(0)
    requests = [
        SimpleNamespace(
            obs=rng.normal(size=(size, 4)).astype(np.float32),
            memory=rng.normal(size=(size, network.memory_size)).astype(np.float32),
        )
        for size in sizes
    ]
    before = [request.memory.copy() for request in requests]
    for request in requests:
        request.memory.flags.writeable = False  # as arrays from Ray's store
    batch = run_network(policy, [x.obs for x in requests], [x.memory for x in requests])
    for request, states, outputs in zip(requests, before, batch, strict=True):
        np.testing.assert_array_equal(request.memory, states)
        next_memory = states if memory else None
        head, value = policy.head_and_value(request.obs, None, next_memory)
        np.testing.assert_allclose(outputs.head, head, rtol=1e-5, atol=1e-6)
        assert (outputs.value is None) == (not has_value)
        if has_value:
            np.testing.assert_allclose(outputs.value, value, rtol=1e-5, atol=1e-6)
        assert (outputs.memory is None) == (memory is None)
        if memory:
            np.testing.assert_allclose(outputs.memory, next_memory, rtol=1e-5, atol=1e-6)


def test_requests_for_the_first_publication_form_a_batch():
    requests = [(5, "a"), (4, "b"), (5, "c"), (6, "d")]
    batch, others = split_requests(requests, lambda request: request[0])
    assert batch == [(5, "a"), (5, "c")]
    assert others == [(4, "b"), (6, "d")]
