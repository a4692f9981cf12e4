"""Updates stay on their device: no tensor moves to or from the host.

Tensors on torch's device `meta` have no values. Without a GPU, they show where an update reads
values or builds tensors from Python numbers.
"""

import contextlib
from functools import partial

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from hotloop.algorithms import find
from hotloop.base.transfer import Uploads
from hotloop.envs import EnvSpec, make_vec
from hotloop.learner import UpdateRule
from hotloop.learner.state import map_tensors, tensors
from hotloop.learner.updates import BoundUpdate
from hotloop.policies import ActingPolicy, ObsScale, PolicySnapshot, actor_critic
from hotloop.policies.device_acting import DevicePolicy
from hotloop.policies.forward import LearnedNetwork
from hotloop.policies.torch_acting import ModuleForward
from hotloop.training.replay import Replay
from tests.device_copies import FakePinning, UnpinnedCopies
from tests.learner.test_updates import BOX, DISCRETE, OPTIONS, make_batch, make_learner
from tests.policies import nets as custom_nets
from tests.policies.nets import Spaces
from tests.policies.test_policies import obs_spec

META = torch.device("meta")


class HostTransfers(TorchDispatchMode):
    """Record operations that take or return a tensor of the host."""

    def __init__(self):
        super().__init__()
        self.names = []

    @classmethod
    def _should_skip_dynamo(cls):
        return False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if any(x.device.type == "cpu" for x in leaves((args, kwargs, result))):
            self.names.append(str(func))
        return result


def leaves(value):
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, tuple | list | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from leaves(item)


def updates_on_meta(name):
    """Yield an algorithm's updates, packed as for a capture, with their arguments."""
    algorithm = find(name)
    learner = make_learner(name, "eager")
    config = algorithm.config(**OPTIONS[name], execution="eager")
    spaces = Spaces(obs_spec(3), DISCRETE if name in ("ppo", "dqn") else BOX)
    nets = algorithm.networks(config, spaces, META)
    if name == "ppo":
        rules = [UpdateRule(function=partial(algorithm.update, nets=nets, config=config))]
    else:
        rules = [update.rule(nets, config) for update in algorithm.updates]
    learner.update(make_batch(name, 0))  # sets the names of the metrics
    learner.update(make_batch(name, 1))
    for rule, (_, host_update) in zip(rules, learner.rules, strict=True):
        bound = map_tensors((learner.state, learner.hyper.tensors), lambda x: x.to(META))
        update = BoundUpdate(rule.function, *bound, host_update.execution.choice, rule.name)
        update.names = host_update.names
        noise = None if rule.noise_shape is None else torch.zeros(rule.noise_shape, device=META)
        yield update, bound, map_tensors(make_batch(name, 0), lambda x: x.to(META)), noise


@pytest.mark.parametrize("name", ["ppo", "sac", "td3", "dqn"])
def test_updates_stay_on_their_device(name):
    for update, bound, batch, noise in updates_on_meta(name):
        before = tensors(bound)
        with HostTransfers() as transfers:
            outputs = update.run_packed(bound, batch, noise)
        assert transfers.names == []
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        assert {x.device.type for x in outputs} == {"meta"}
        assert all(tensors(bound)[part] is x for part, x in before.items())


def test_transfers_are_detected():
    x = torch.ones(3, device=META)
    for transfer in (
        lambda: x + torch.tensor(1.0),
        lambda: torch.tensor([1.0, 2.0]).to(META),
    ):
        with HostTransfers() as transfers:
            transfer()
        assert transfers.names
    for read in (lambda: x.sum().item(), lambda: bool(x.sum() > 0), x.tolist, x.cpu):
        with pytest.raises((RuntimeError, NotImplementedError)):
            read()


# --- necessary transfers: through pinned memory ---------------------------------------------------

SCALE = ObsScale(np.zeros(3, np.float32), np.ones(3, np.float32), 5.0)


def send_batch(name):
    """Return a function that uploads a learner's minibatch, its order and the schedules."""
    learner = make_learner(name, "eager")
    learner.device, learner._uploads = META, Uploads(META)
    batch = {key: x.numpy() for key, x in make_batch(name, 0)._asdict().items() if x is not None}

    def send():
        uploaded = learner.upload(batch)
        learner.upload({"order": np.arange(4)})
        learner.hyper.set(0.5)
        return uploaded

    return send


def scale_on_device():
    network = actor_critic(Spaces(obs_spec(3), DISCRETE))
    nets = LearnedNetwork(network, device=META)
    params = nets.layout.pack(network.initial_parameters(0), META)
    snapshot = PolicySnapshot(0, network.initial_parameters(0), SCALE)
    policy = DevicePolicy(nets, params, ActingPolicy(network, snapshot))
    return partial(policy.load, snapshot)


def draw_batches():
    algorithm = find("dqn")
    config = algorithm.config(buffer_size=64, batch_size=4, total_timesteps=64, learning_starts=8)
    with contextlib.closing(make_vec("CartPole-v1", 1)) as envs:
        replay = Replay(config, envs, META, EnvSpec("CartPole-v1"))
    obs = np.random.default_rng(0).random((20, 4), np.float32)
    replay.buffer.extend(
        obs=obs,
        action=np.arange(20) % 2,
        reward=np.ones(20, np.float32),
        next_obs=obs,
        terminated=np.zeros(20, bool),
        truncated=np.zeros(20, bool),
    )
    return partial(replay.draw, 2)


def publish_to_module():
    network = actor_critic(Spaces(obs_spec(3), DISCRETE), network=custom_nets.Net)
    forward = ModuleForward(network, "meta")
    snapshot = PolicySnapshot(0, network.initial_parameters(0))
    return partial(forward.load, snapshot)


TRANSFERS = {
    **{name: partial(send_batch, name) for name in ("ppo", "sac", "td3", "dqn")},
    "observation scale": scale_on_device,
    "replay on the host": draw_batches,
    "parameters of an inference actor": publish_to_module,
}


@pytest.mark.parametrize("name", TRANSFERS)
def test_uploads_are_pinned(monkeypatch, name):
    pinning = FakePinning(monkeypatch)
    transfer = TRANSFERS[name]()
    for _ in range(3):
        with pinning.listed() as copies:
            transfer()
        assert copies.uploads == []
    assert "record" in pinning.log


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["ppo", "sac", "td3", "dqn"])
def test_a_step_on_a_gpu_copies_from_pinned_memory(name):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    learner = make_learner(name, "eager", "cuda")
    batch = {key: x.numpy() for key, x in make_batch(name, 0)._asdict().items() if x is not None}
    kind = type(make_batch(name, 0))
    for k in range(4):
        with UnpinnedCopies().listed() as copies:
            learner.hyper.set(k / 4)
            learner.update(kind(**learner.upload(batch)))
        assert (copies.uploads, copies.downloads) == ([], [])
