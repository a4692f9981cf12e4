"""Publishing: copies in memory that stays where it is."""

import numpy as np
import pytest
import torch

from hotloop.learner.publish import Publisher
from hotloop.policies import ObsScale
from hotloop.policies.parameters import ParameterLayout

LAYOUT = ParameterLayout({"a": (2, 3), "b": (), "c": (4,)})


def copies(snapshot):
    return {name: x.copy() for name, x in snapshot.params.items()}


def arrays(flat):
    return {name: x.numpy() for name, x in LAYOUT.unpack(flat).items()}


def assert_equal(params, other):
    assert params.keys() == other.keys()
    for name, x in params.items():
        np.testing.assert_array_equal(x, other[name], name)


@pytest.fixture
def params():
    return torch.arange(11.0)


def test_what_is_published_stays_when_the_state_moves_on(params):
    snapshot = Publisher(LAYOUT, params).publish(3)
    assert snapshot.version == 3
    assert snapshot.obs_scale is None
    before = copies(snapshot)
    assert_equal(before, arrays(torch.arange(11.0)))
    assert {x.dtype for x in snapshot.params.values()} == {np.dtype(np.float32)}
    params.add_(100.0)
    assert_equal(snapshot.params, before)


def test_the_next_publish_overwrites_it(params):
    publisher = Publisher(LAYOUT, params)
    first = publisher.publish(1)
    params.mul_(-1.0)
    second = publisher.publish(2)
    assert (first.version, second.version) == (1, 2)
    assert_equal(second.params, arrays(-torch.arange(11.0)))
    for name, x in first.params.items():
        assert x is second.params[name]  # who acts reads this memory, and need not be told
        assert not np.shares_memory(x, params.numpy())


def test_what_is_kept_stays(params):
    publisher = Publisher(LAYOUT, params)
    scale = ObsScale(np.zeros(3, np.float32), np.ones(3, np.float32), 10.0)
    published = publisher.publish(5, scale)
    kept = publisher.kept(published)
    assert (kept.version, kept.obs_scale) == (5, scale)
    before = copies(kept)
    assert_equal(before, published.params)
    params.add_(1.0)
    later = publisher.publish(6)
    assert_equal(kept.params, before)
    for name, x in later.params.items():
        assert not np.array_equal(x, before[name])
        assert not np.shares_memory(x, kept.params[name])


def test_a_vector_that_is_being_differentiated_is_published_too(params):
    params.requires_grad_()
    snapshot = Publisher(LAYOUT, params).publish(0)
    assert_equal(snapshot.params, arrays(torch.arange(11.0)))
