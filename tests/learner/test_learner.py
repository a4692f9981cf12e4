"""The learner: which updates are made when, with what noise; devices; what a checkpoint holds."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from hotloop.errors import CheckpointError, ConfigError
from hotloop.learner import Learner, UpdateRule, choose_device
from hotloop.learner.graphs import no_synchronisation
from hotloop.ops.schedules import linear
from hotloop.policies import actor_critic
from hotloop.policies.learned import LearnedNetwork
from hotloop.replay.storage import device
from hotloop.replay.storage.device import Uploads
from tests.policies.nets import Spaces
from tests.policies.test_policies import DISCRETE, obs_spec


@dataclass(slots=True)
class State:
    params: torch.Tensor
    seen: torch.Tensor


class Hyper(NamedTuple):
    learning_rate: Any


class Batch(NamedTuple):
    x: torch.Tensor


BATCH = Batch(torch.ones(2))
NETWORK = LearnedNetwork(actor_critic(Spaces(obs_spec(4), DISCRETE), hidden_sizes=(5,)))


def first(state, batch, noise, hyper):
    """Subtract the learning rate, and say what noise there was."""
    state.params.sub_(hyper.learning_rate)
    return {"param": state.params[0], "noise": noise.sum()}, batch.x * state.params[0]


def second(state, batch, noise, hyper):
    """Count, and give an error of its own, which is not asked for."""
    assert noise is None
    state.seen.add_(1)
    return {"seen": state.seen.to(torch.float32)}, batch.x * -1.0


RULES = (
    UpdateRule(function=first, name="first", noise_shape=(2, 3)),
    UpdateRule(function=second, name="second", every=2, times=3),
)


def make(rules=RULES, rate: Any = 0.25, seed=(1, 2), execution: Any = "eager"):
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
    learner = make()
    for k in range(1, 6):
        td_error = learner.update(BATCH)
        assert td_error.tolist() == [1.0 - 0.25 * k] * 2  # of the first that gives one
        assert learner.state.seen.item() == 3 * (k // 2)
    assert learner.num_updates == 5
    assert [execution.name for execution in learner.executions] == ["first", "second"]
    means = learner.metrics.means()
    assert means.keys() == {"param", "noise", "seen"}
    assert means["param"] == 1.0 - 0.25 * 3
    assert means["seen"] == 3.5  # 1 to 6


def test_each_update_has_new_noise():
    """The generator's own numbers, and none for what asks for none."""
    learner, peer = make(), np.random.default_rng((1, 2))
    for _ in range(4):
        learner.metrics.clear()
        learner.update(BATCH)
        drawn = peer.standard_normal((2, 3), dtype=np.float32)
        assert learner.metrics.means()["noise"] == pytest.approx(drawn.sum(), abs=1e-5)
    assert learner.rng.bit_generator.state == peer.bit_generator.state


def test_delayed_updates_that_are_made_several_times_have_new_noise_too():
    drawn = []

    def update(state, batch, noise, hyper):
        drawn.append(noise.clone())
        return {"noise": noise.mean()}

    learner = make([UpdateRule(function=update, every=2, times=2, noise_shape=(3,))])
    for _ in range(4):
        assert learner.update(BATCH) is None
    drawn = drawn[1:]  # the first was tried on copies, and its noise used again
    peer = np.random.default_rng((1, 2))
    np.testing.assert_array_equal(torch.stack(drawn), peer.standard_normal((4, 3), np.float32))


def test_a_schedule_reaches_the_update():
    learner = make(rate=linear(0.5, 0.0))
    for progress in (0.0, 0.5, 1.0):
        learner.hyper.set(progress)
        learner.update(BATCH)
    assert learner.state.params[0].item() == 1.0 - 0.5 - 0.25


def test_what_acts_is_published():
    learner = make()
    snapshot = learner.publish(0)
    assert {name: x.shape for name, x in snapshot.params.items()} == NETWORK.layout.shapes
    kept = learner.kept(snapshot)
    learner.update(BATCH)
    assert {float(x.flat[0]) for x in snapshot.params.values()} == {1.0}
    learner.publish(1)
    assert {float(x.flat[0]) for x in snapshot.params.values()} == {0.75}
    assert {float(x.flat[0]) for x in kept.params.values()} == {1.0}


def test_a_checkpoint_is_what_was_when_it_was_asked_for():
    """Also where it is put together much later; from there on both go on alike."""
    ours, other = make(), make(seed=(7, 7))
    for _ in range(3):
        ours.update(BATCH)
    state, random, num_updates = ours.kept_state(), ours.random_state(), ours.num_updates
    ours.update(BATCH)
    arrays = state()
    assert arrays.keys() == {"state.params", "state.seen"}
    assert arrays["state.params"][0] == 0.25
    assert arrays["state.seen"] == 3
    params = other.state.params
    other.load(arrays, random, num_updates, {})
    assert other.state.params is params
    other.update(BATCH)
    assert other.num_updates == ours.num_updates == 4
    assert other.state.seen.item() == ours.state.seen.item() == 6  # it is a second batch
    assert torch.equal(other.state.params, ours.state.params)
    assert other.random_state() == ours.random_state()
    assert other.random_state().keys() == {"host"}
    # Earlier versions kept the state of a device's generator besides.
    other.load(arrays, {**random, "device": [1, 2, 3]}, num_updates, {})
    with pytest.raises(CheckpointError, match=r"`state\.seen` must have shape \(\), it is missing"):
        other.load({"state.params": arrays["state.params"]}, random, 3, {})


def test_what_is_not_finite_is_named():
    learner = make()
    assert learner.non_finite() == []
    learner.state.params[2] = float("nan")
    assert learner.non_finite() == ["params"]
    learner.update(BATCH)
    assert learner.metrics.first_bad() is None  # its metrics have not seen it
    learner.state.params[0] = float("inf")
    learner.update(BATCH)
    assert learner.metrics.first_bad() == (2, ["param"])


def test_an_update_that_breaks_the_contract_is_told_by_its_name():
    learner = make([UpdateRule(function=lambda *args: None, name="update of the critics")])
    with pytest.raises(ConfigError, match="the update of the critics must return its metrics"):
        learner.update(BATCH)


def test_compiling_is_weighed_over_all_updates():
    learner = make(execution="auto")
    first, second = (execution.choice for execution in learner.executions)
    assert first is second
    assert "of 250 updates" in first.reason  # 100 batches, and every second one three more


# --- devices -------------------------------------------------------------------------------------


@pytest.fixture
def num_devices(monkeypatch):
    """Let torch see so many GPUs."""

    def see(count):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)

    return see


@pytest.mark.parametrize("device", ["cuda", "cuda:0", "cuda:3"])
def test_a_gpu_that_is_not_there(num_devices, device):
    num_devices(0)
    message = rf"`device` '{device}' must be there, but torch .* sees 0 CUDA devices: choose 'cpu'"
    with pytest.raises(ConfigError, match=message):
        choose_device(device)


def test_one_gpu(num_devices):
    num_devices(1)
    assert choose_device("cuda") == torch.device("cuda")
    assert choose_device("cuda:0") == torch.device("cuda:0")
    with pytest.raises(ConfigError, match=r"'cuda:1' must be there, but torch .* sees 1 CUDA"):
        choose_device("cuda:1")


def test_auto_is_the_gpu_where_there_is_one(num_devices):
    for count, chosen in ((0, "cpu"), (2, "cuda")):
        num_devices(count)
        assert choose_device("auto") == torch.device(chosen)
        assert choose_device("cpu") == torch.device("cpu")


# --- what is sent ---------------------------------------------------------------------------------


def test_on_the_cpu_what_is_sent_is_the_array_itself():
    array = np.arange(3.0, dtype=np.float32)
    tensor = make().sent({"x": array})["x"]
    array[0] = 7.0
    assert tensor.tolist() == [7.0, 1.0, 2.0]


def test_to_another_device_it_goes_through_memory_that_nobody_waits_for(monkeypatch):
    learner, puts = make(), []
    learner.device = torch.device("meta")
    learner._uploads = Uploads(learner.device)
    monkeypatch.setattr(device, "pinned", lambda shape, dtype: torch.empty(shape, dtype=dtype))
    put = Uploads.put

    def noted(self, name, target, array):
        put(self, name, target, array)
        puts.append((name, target, self._stages[self._turn][name].clone()))

    monkeypatch.setattr(Uploads, "put", noted)
    monkeypatch.setattr(device.Mark, "set", lambda self: None)
    arrays = {"x": np.ones((2, 3), np.float32)[:, ::2], "order": np.array([2, 0, 1])}
    sent = learner.sent(arrays)
    assert [(name, target is sent[name]) for name, target, _ in puts] == [
        ("x", True),
        ("order", True),
    ]
    assert (sent["x"].shape, sent["x"].dtype) == ((2, 2), torch.float32)
    assert sent["order"].device.type == "meta"
    assert puts[1][2].tolist() == [2, 0, 1]


@pytest.mark.gpu
def test_what_is_sent_to_a_gpu_may_change_at_once():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    learner = make()
    learner.device = torch.device("cuda")
    learner._uploads = Uploads(learner.device)
    array, sent = np.zeros(1000, np.float32), []
    with no_synchronisation():
        for k in range(10):
            array[:] = k
            sent.append(learner.sent({"x": array})["x"])
    assert [x.unique().tolist() for x in sent] == [[float(k)] for k in range(10)]
