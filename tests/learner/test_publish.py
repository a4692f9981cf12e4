"""Publishing copies parameters to memory at fixed addresses."""

import contextlib

import numpy as np
import pytest
import torch

from hotloop.base.transfer import Downloads
from hotloop.learner.cuda_graphs import no_synchronization
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


def test_published_parameters_stay_when_the_state_changes(params):
    snapshot = Publisher(LAYOUT, params).publish(3)
    assert snapshot.version == 3
    assert snapshot.obs_scale is None
    before = copies(snapshot)
    assert_equal(before, arrays(torch.arange(11.0)))
    assert {x.dtype for x in snapshot.params.values()} == {np.dtype(np.float32)}
    params.add_(100.0)
    assert_equal(snapshot.params, before)


def test_next_publish_overwrites_the_snapshot(params):
    publisher = Publisher(LAYOUT, params)
    first = publisher.publish(1)
    params.mul_(-1.0)
    second = publisher.publish(2)
    assert (first.version, second.version) == (1, 2)
    assert_equal(second.params, arrays(-torch.arange(11.0)))
    for name, x in first.params.items():
        assert x is second.params[name]  # acting processes read this memory without a message
        assert not np.shares_memory(x, params.numpy())


def test_copied_snapshot_stays(params):
    publisher = Publisher(LAYOUT, params)
    scale = ObsScale(np.zeros(3, np.float32), np.ones(3, np.float32), 10.0)
    published = publisher.publish(5, scale)
    copied = publisher.copy_snapshot(published)
    assert (copied.version, copied.obs_scale) == (5, scale)
    before = copies(copied)
    assert_equal(before, published.params)
    params.add_(1.0)
    later = publisher.publish(6)
    assert_equal(copied.params, before)
    for name, x in later.params.items():
        assert not np.array_equal(x, before[name])
        assert not np.shares_memory(x, copied.params[name])


def test_parameters_with_gradients_are_published(params):
    params.requires_grad_()
    snapshot = Publisher(LAYOUT, params).publish(0)
    assert_equal(snapshot.params, arrays(torch.arange(11.0)))


# --- overlapped ----------------------------------------------------------------------------------


class Delayed:
    """A device whose copies end when they are waited for. Until then their memory is NaN."""

    def __init__(self, monkeypatch):
        self.num_started, self.num_finished = 0, 0
        monkeypatch.setattr(Downloads, "start", lambda _, tensor: self.start(tensor))

    def start(self, tensor):
        self.num_started += 1
        host = torch.full_like(tensor, torch.nan)
        return host, _DelayedEvent(self, host, tensor.clone())


class _DelayedEvent:
    def __init__(self, device, host, content):
        self.device, self.host, self.content = device, host, content

    def wait(self):
        self.device.num_finished += 1
        self.host.copy_(self.content)


def test_overlapped_publish_returns_the_previous_version(params, monkeypatch):
    device = Delayed(monkeypatch)
    publisher = Publisher(LAYOUT, params, overlap=True)
    scales = [ObsScale(np.zeros(3, np.float32), np.ones(3, np.float32), 1.0 + k) for k in range(6)]
    first = publisher.publish(0, scales[0])
    assert (first.version, first.obs_scale) == (0, scales[0])  # there is no earlier one
    assert (device.num_started, device.num_finished) == (1, 1)
    for version in range(1, 6):
        params.fill_(version)
        snapshot = publisher.publish(version, scales[version])
        before = version - 1
        # Parameters and their scale, at fixed addresses.
        assert (snapshot.version, snapshot.obs_scale) == (before, scales[before])
        want = torch.arange(11.0) if before == 0 else torch.full((11,), float(before))
        assert_equal(snapshot.params, arrays(want))
        assert all(x is first.params[name] for name, x in snapshot.params.items())
        assert device.num_started == version + 1


def test_current_publish_waits_for_the_newest(params, monkeypatch):
    device = Delayed(monkeypatch)
    publisher = Publisher(LAYOUT, params, overlap=True)
    publisher.publish(0)
    params.fill_(1.0)
    publisher.publish(1)
    params.fill_(2.0)
    newest = publisher.publish(2, must_be_current=True)
    assert newest.version == 2
    assert_equal(publisher.copy_snapshot(newest).params, arrays(torch.full((11,), 2.0)))
    params.fill_(3.0)
    following = publisher.publish(3)
    assert following.version == 2  # the next copy starts after it
    assert_equal(following.params, arrays(torch.full((11,), 2.0)))
    assert device.num_started == 4


def test_publish_without_overlap_is_synchronous(params, monkeypatch):
    device = Delayed(monkeypatch)
    publisher = Publisher(LAYOUT, params)
    for version in range(3):
        params.fill_(version)
        assert_equal(publisher.publish(version).params, arrays(torch.full((11,), float(version))))
    assert device.num_started == 0


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
        with no_synchronization() if overlap else contextlib.nullcontext():
            snapshot = publisher.publish(version)
        before = version - 1 if overlap else version
        want = torch.arange(11.0) if before == 0 else torch.full((11,), float(before))
        assert_equal(snapshot.params, arrays(want))
    assert_equal(
        publisher.publish(50, must_be_current=True).params, arrays(torch.full((11,), 49.0))
    )
