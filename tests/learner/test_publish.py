"""Publishing: copies in memory that stays where it is."""

import contextlib
import dataclasses

import numpy as np
import pytest
import torch

from hotloop.learner.graphs import no_synchronisation
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


# --- overlapped ----------------------------------------------------------------------------------


class Delayed:
    """A device whose copies end when somebody waits for them: until then their memory is NaN."""

    def __init__(self, monkeypatch):
        self.begun, self.ended = 0, 0
        send = Publisher._send
        monkeypatch.setattr(Publisher, "_send", lambda *args: self.delayed(send(*args)))

    def delayed(self, sent):
        self.begun += 1
        content = sent.host.clone()
        sent.host.fill_(torch.nan)
        return dataclasses.replace(sent, mark=_Mark(self, sent.host, content))


class _Mark:
    def __init__(self, device, host, content):
        self.device, self.host, self.content = device, host, content

    def wait(self):
        self.device.ended += 1
        self.host.copy_(self.content)


def test_what_acts_is_one_publish_old_and_the_newest_is_not_waited_for(params, monkeypatch):
    device = Delayed(monkeypatch)
    publisher = Publisher(LAYOUT, params, overlap=True)
    scales = [ObsScale(np.zeros(3, np.float32), np.ones(3, np.float32), 1.0 + k) for k in range(6)]
    first = publisher.publish(0, scales[0])
    assert (first.version, first.obs_scale) == (0, scales[0])  # there is none before it
    assert (device.begun, device.ended) == (1, 1)
    for version in range(1, 6):
        params.fill_(version)
        snapshot = publisher.publish(version, scales[version])
        before = version - 1
        # Parameters and the scale that belongs to them, in memory that stays.
        assert (snapshot.version, snapshot.obs_scale) == (before, scales[before])
        want = torch.arange(11.0) if before == 0 else torch.full((11,), float(before))
        assert_equal(snapshot.params, arrays(want))
        assert all(x is first.params[name] for name, x in snapshot.params.items())
        assert device.begun == version + 1


def test_the_newest_is_waited_for_where_it_must_be(params, monkeypatch):
    device = Delayed(monkeypatch)
    publisher = Publisher(LAYOUT, params, overlap=True)
    publisher.publish(0)
    params.fill_(1.0)
    publisher.publish(1)
    params.fill_(2.0)
    newest = publisher.publish(2, newest=True)
    assert newest.version == 2
    assert_equal(publisher.kept(newest).params, arrays(torch.full((11,), 2.0)))
    params.fill_(3.0)
    following = publisher.publish(3)
    assert following.version == 2  # what followed was begun behind it
    assert_equal(following.params, arrays(torch.full((11,), 2.0)))
    assert device.begun == 4


def test_without_overlap_each_is_waited_for(params, monkeypatch):
    device = Delayed(monkeypatch)
    publisher = Publisher(LAYOUT, params)
    for version in range(3):
        params.fill_(version)
        assert_equal(publisher.publish(version).params, arrays(torch.full((11,), float(version))))
    assert device.begun == 0


@pytest.mark.gpu
@pytest.mark.parametrize("overlap", [False, True])
def test_publishing_from_a_gpu(overlap):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    on_gpu = torch.arange(11.0, device="cuda")
    publisher = Publisher(LAYOUT, on_gpu, overlap=overlap)
    publisher.publish(0)
    for version in range(1, 50):
        on_gpu.fill_(version)
        with no_synchronisation() if overlap else contextlib.nullcontext():
            snapshot = publisher.publish(version)
        before = version - 1 if overlap else version
        want = torch.arange(11.0) if before == 0 else torch.full((11,), float(before))
        assert_equal(snapshot.params, arrays(want))
    assert_equal(publisher.publish(50, newest=True).params, arrays(torch.full((11,), 49.0)))
