"""The learner: update intervals, noise, devices and checkpoints."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from hotloop.base import transfer
from hotloop.errors import CheckpointError, ConfigError
from hotloop.learner import Learner, UpdateRule, choose_device
from hotloop.learner.cuda_graphs import no_synchronization
from hotloop.ops.schedules import linear
from hotloop.policies import actor_critic
from hotloop.policies.forward import LearnedNetwork
from tests.policies.nets import Spaces
from tests.policies.test_policies import DISCRETE, obs_spec


@dataclass(slots=True)
class State:
    params: torch.Tensor
    num_calls: torch.Tensor


class Hyper(NamedTuple):
    learning_rate: Any


class Batch(NamedTuple):
    x: torch.Tensor


BATCH = Batch(torch.ones(2))
NETWORK = LearnedNetwork(actor_critic(Spaces(obs_spec(4), DISCRETE), hidden_sizes=(5,)))


def first(state, batch, noise, hyper):
    """Subtract the learning rate, and return the noise in the metrics."""
    state.params.sub_(hyper.learning_rate)
    return {"param": state.params[0], "noise": noise.sum()}, batch.x * state.params[0]


def second(state, batch, noise, hyper):
    """Count the calls, and return an error that the learner ignores."""
    assert noise is None
    state.num_calls.add_(1)
    return {"num_calls": state.num_calls.to(torch.float32)}, batch.x * -1.0


RULES = (
    UpdateRule(function=first, name="first", noise_shape=(2, 3)),
    UpdateRule(function=second, name="second", every=2, times=3),
)


def make_learner(rules=RULES, rate: Any = 0.25, seed=(1, 2), execution: Any = "eager"):
    return Learner(
        State(torch.ones(NETWORK.num_params), torch.tensor(0)),
        Hyper(rate),
        rules,
        network=NETWORK,
        acting="params",
        device=torch.device("cpu"),
        seed=seed,
        execution=execution,
        num_batches=100,
        batch_size=2,
    )


def test_updates_are_made_when_they_are_due():
    learner = make_learner()
    for k in range(1, 6):
        td_error = learner.update(BATCH)
        assert td_error.tolist() == [1.0 - 0.25 * k] * 2  # of the first update that returns one
        assert learner.state.num_calls.item() == 3 * (k // 2)
    assert learner.num_updates == 5
    assert [execution.name for execution in learner.executions] == ["first", "second"]
    means = learner.metrics.means()
    assert means.keys() == {"param", "noise", "num_calls"}
    assert means["param"] == 1.0 - 0.25 * 3
    assert means["num_calls"] == 3.5  # 1 to 6


def test_each_update_has_new_noise():
    """Noise comes from the generator, and only for updates that need it."""
    learner, peer = make_learner(), np.random.default_rng((1, 2))
    for _ in range(4):
        learner.metrics.clear()
        learner.update(BATCH)
        noise = peer.standard_normal((2, 3), dtype=np.float32)
        assert learner.metrics.means()["noise"] == pytest.approx(noise.sum(), abs=1e-5)
    assert learner.rng.bit_generator.state == peer.bit_generator.state


def test_repeated_delayed_updates_have_new_noise():
    noises = []

    def update(state, batch, noise, hyper):
        noises.append(noise.clone())
        return {"noise": noise.mean()}

    learner = make_learner([UpdateRule(function=update, every=2, times=2, noise_shape=(3,))])
    for _ in range(4):
        assert learner.update(BATCH) is None
    noises = noises[1:]  # the first ran on copies, and its noise is used again
    peer = np.random.default_rng((1, 2))
    np.testing.assert_array_equal(torch.stack(noises), peer.standard_normal((4, 3), np.float32))


def test_a_schedule_reaches_the_update():
    learner = make_learner(rate=linear(0.5, 0.0))
    for progress in (0.0, 0.5, 1.0):
        learner.hyper.set(progress)
        learner.update(BATCH)
    assert learner.state.params[0].item() == 1.0 - 0.5 - 0.25


def test_acting_parameters_are_published():
    learner = make_learner()
    snapshot = learner.publish(0)
    assert {name: x.shape for name, x in snapshot.params.items()} == NETWORK.layout.shapes
    copied = learner.copy_snapshot(snapshot)
    learner.update(BATCH)
    assert {float(x.flat[0]) for x in snapshot.params.values()} == {1.0}
    learner.publish(1)
    assert {float(x.flat[0]) for x in snapshot.params.values()} == {0.75}
    assert {float(x.flat[0]) for x in copied.params.values()} == {1.0}


def test_checkpoint_holds_the_state_at_its_request():
    """Also if its arrays are built later. Both learners then continue alike."""
    original, restored = make_learner(), make_learner(seed=(7, 7))
    for _ in range(3):
        original.update(BATCH)
    state, random = original.state_snapshot(), original.random_state()
    num_updates = original.num_updates
    original.update(BATCH)
    arrays = state()
    assert arrays.keys() == {"state.params", "state.num_calls"}
    assert arrays["state.params"][0] == 0.25
    assert arrays["state.num_calls"] == 3
    params = restored.state.params
    restored.load(arrays, random, num_updates, {})
    assert restored.state.params is params
    restored.update(BATCH)
    assert restored.num_updates == original.num_updates == 4
    assert restored.state.num_calls.item() == original.state.num_calls.item() == 6  # an even batch
    assert torch.equal(restored.state.params, original.state.params)
    assert restored.random_state() == original.random_state()
    assert restored.random_state().keys() == {"host"}
    # Earlier versions also stored the state of a device's generator.
    restored.load(arrays, {**random, "device": [1, 2, 3]}, num_updates, {})
    with pytest.raises(
        CheckpointError, match=r"`state\.num_calls` must have shape \(\), it is missing"
    ):
        restored.load({"state.params": arrays["state.params"]}, random, 3, {})
    for damaged in ({}, {"host": {**random["host"], "bit_generator": "PCG65"}}, {"host": None}):
        with pytest.raises(CheckpointError, match="state of the random generator is damaged"):
            restored.load(arrays, damaged, num_updates, {})


def test_values_that_are_not_finite_are_named():
    learner = make_learner()
    assert learner.non_finite() == []
    learner.state.params[2] = float("nan")
    assert learner.non_finite() == ["params"]
    learner.update(BATCH)
    assert learner.metrics.first_non_finite() is None  # the metrics do not depend on it
    learner.state.params[0] = float("inf")
    learner.update(BATCH)
    assert learner.metrics.first_non_finite() == (2, ["param"])


def test_error_names_the_update_that_breaks_the_contract():
    learner = make_learner([UpdateRule(function=lambda *args: None, name="update of the critics")])
    with pytest.raises(ConfigError, match="the update of the critics must return its metrics"):
        learner.update(BATCH)


def test_compiling_is_weighed_over_all_updates():
    learner = make_learner(execution="auto")
    first, second = (execution.choice for execution in learner.executions)
    assert first is second
    assert "over 250 updates" in first.reason  # 100 batches, and every second one three more


# --- devices -------------------------------------------------------------------------------------


@pytest.fixture
def num_devices(monkeypatch):
    """Return a function that sets the number of GPUs that torch finds."""

    def set_count(count):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)

    return set_count


@pytest.mark.parametrize("device", ["cuda", "cuda:0", "cuda:3"])
def test_missing_gpu_is_refused(num_devices, device):
    num_devices(0)
    message = rf"`device` '{device}' is missing, torch .* finds 0 CUDA devices: choose 'cpu'"
    with pytest.raises(ConfigError, match=message):
        choose_device(device)


@pytest.mark.parametrize("device", ["gpu", "mps", "cuda:-1", ""])
def test_other_devices_are_refused(device):
    with pytest.raises(ConfigError, match=rf"must be 'auto', 'cpu'.*got '{device}'"):
        choose_device(device)


def test_one_gpu(num_devices):
    num_devices(1)
    assert choose_device("cuda") == torch.device("cuda")
    assert choose_device("cuda:0") == torch.device("cuda:0")
    with pytest.raises(ConfigError, match=r"'cuda:1' is missing, torch .* finds 1 CUDA"):
        choose_device("cuda:1")


def test_auto_prefers_a_gpu(num_devices):
    for count, chosen in ((0, "cpu"), (2, "cuda")):
        num_devices(count)
        assert choose_device("auto") == torch.device(chosen)
        assert choose_device("cpu") == torch.device("cpu")


# --- uploads --------------------------------------------------------------------------------------


def test_upload_to_the_cpu_shares_the_array():
    array = np.arange(3.0, dtype=np.float32)
    tensor = make_learner().upload({"x": array})["x"]
    array[0] = 7.0
    assert tensor.tolist() == [7.0, 1.0, 2.0]


def test_uploads_go_through_pinned_memory(monkeypatch):
    learner, puts = make_learner(), []
    learner.device = torch.device("meta")
    learner._uploads = transfer.Uploads(learner.device)
    monkeypatch.setattr(transfer, "pinned", lambda shape, dtype: torch.empty(shape, dtype=dtype))
    put = transfer.Uploads.put

    def record(self, name, target, array):
        put(self, name, target, array)
        puts.append((name, target, self._stages[self._turn][name, target.dtype].clone()))

    monkeypatch.setattr(transfer.Uploads, "put", record)
    monkeypatch.setattr(transfer.DeviceEvent, "record", lambda self: None)
    arrays = {"x": np.ones((2, 3), np.float32)[:, ::2], "order": np.array([2, 0, 1])}
    uploaded = learner.upload(arrays)
    assert [(name, target is uploaded[name]) for name, target, _ in puts] == [
        ("x", True),
        ("order", True),
    ]
    assert (uploaded["x"].shape, uploaded["x"].dtype) == ((2, 2), torch.float32)
    assert uploaded["order"].device.type == "meta"
    assert puts[1][2].tolist() == [2, 0, 1]


@pytest.mark.gpu
def test_uploaded_array_may_change_at_once():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    learner = make_learner()
    learner.device = torch.device("cuda")
    learner._uploads = transfer.Uploads(learner.device)
    array, uploaded = np.zeros(1000, np.float32), []
    with no_synchronization():
        for k in range(10):
            array[:] = k
            uploaded.append(learner.upload({"x": array})["x"])
    assert [x.unique().tolist() for x in uploaded] == [[float(k)] for k in range(10)]
