"""A user-defined head and a registered encoder act and learn."""

import json
import re
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from hotloop.errors import CheckpointError, ConfigError, UnknownNameError
from hotloop.policies import (
    ENCODERS,
    ActingPolicy,
    Encoder,
    Head,
    PolicySnapshot,
    TrainedPolicy,
    actor,
    actor_critic,
    critics,
    network_from_json,
)
from hotloop.policies.critics import StackedCritics
from hotloop.policies.export import export_numpy, export_onnx
from hotloop.policies.forward import LearnedCritics, LearnedNetwork
from hotloop.policies.heads import Dueling, Greedy
from hotloop.policies.spec import Network
from tests.policies.test_actors import BOUNDED
from tests.policies.test_policies import DISCRETE, obs_spec

DISCRETE_SPACES = SimpleNamespace(obs_spec=obs_spec(4), action_spec=DISCRETE)


@dataclass(frozen=True)
class Backwards(Greedy):
    """A head that acts by the least output, and says otherwise in torch."""

    def greedy(self, outputs, out):
        outputs.argmin(axis=1, out=out)


@dataclass(frozen=True)
class Silent(Greedy):
    """A head whose `greedy` writes nothing."""

    def greedy(self, outputs, out):
        outputs.argmax(axis=1)


def test_export_refuses_a_head_whose_mode_is_another_action(tmp_path):
    network = actor(DISCRETE_SPACES, Backwards(), hidden_sizes=(8,))
    snapshot = PolicySnapshot(0, network.initial_parameters(1))
    with pytest.raises(ConfigError, match=r"`mode` of the head .*must choose what its `greedy`"):
        export_onnx(network, snapshot, tmp_path / "policy.onnx")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (Silent(), r"`greedy` of the head .* must write actions 0 … \d into `out`, got \[-1, -1\]"),
        ("greedy", r"`head` must be a value such as `Greedy\(\)`, got 'greedy'"),
        (Greedy, r"`head` must be a value such as `Greedy\(\)`, got <class"),
    ],
)
def test_wrong_heads_are_refused(head, message):
    with pytest.raises(ConfigError, match=message):
        actor(DISCRETE_SPACES, head)


@dataclass(frozen=True)
class SharpLogits(Head):
    """Logits multiplied by `factor` and by a learned number before the best one is chosen."""

    factor: float
    shifts: tuple[int, ...] = ()

    def check(self):
        if self.factor <= 0:
            raise ConfigError("`factor` must be positive")

    def learned_shapes(self, shapes):
        return {**shapes, "policy.sharpness": (1,)}

    def acting_params(self, params):
        return {"scale": self.factor * np.exp(params["policy.sharpness"])}

    def draw_noise(self, seed, **block):
        return np.zeros((block["num_steps"], block["num_envs"], 1), np.float32)

    def draw_from(self, rng, shape):
        return np.zeros((shape[0], 1), np.float32)

    def choose(self, outputs, noise, out, params):
        out[...] = (outputs * params["scale"]).argmax(1)

    def evaluate(self, params, outputs, action):
        scale = self.factor * params["policy.sharpness"].exp()
        log_probs = (outputs * scale).log_softmax(-1)
        entropy = -(log_probs.exp() * log_probs).sum(-1)
        return log_probs.gather(1, action[:, None])[:, 0], entropy


HEAD_ERRORS = [
    ("os:system", "'os:system' is no head: it must be a subclass of `Head`"),
    ("hotloop.policies:ActingPolicy", "is no head"),
    ("no_such_heads:Best", "there is no module 'no_such_heads'"),
    (f"{__name__}:Best", "has no 'Best'"),
    ({"name": f"{__name__}:SharpLogits"}, "SharpLogits': `factor` is missing"),
    ({"name": f"{__name__}:SharpLogits", "factor": "2"}, "`factor` must be a number, got '2'"),
    ({"name": f"{__name__}:SharpLogits", "factor": 1, "atoms": 3}, "`atoms` is not known"),
    ({"name": f"{__name__}:SharpLogits", "factor": 0}, "`factor` must be positive"),
    ({"name": "greedy", "atoms": 3}, "head 'greedy': `atoms` is not known"),
    ({}, "there is no head 'None'"),
]


@pytest.mark.parametrize(("head", "message"), HEAD_ERRORS)
def test_stored_heads_are_checked(head, message):
    spaces = SimpleNamespace(obs_spec=obs_spec(4), action_spec=DISCRETE)
    stored = actor(spaces, Greedy()).to_json()
    assert stored["head"] == "greedy"
    with pytest.raises(CheckpointError, match=re.escape(message)):
        network_from_json({**stored, "head": head})


@dataclass(frozen=True)
class UnresolvedHead(Greedy):
    """A head whose parameter has an unknown type."""

    unit: "Missing" = 1  # noqa: F821


def test_parameters_of_heads_must_be_storable():
    spaces = SimpleNamespace(obs_spec=obs_spec(4), action_spec=DISCRETE)
    lists = SharpLogits(2.0, shifts=[1])
    for head in (SharpLogits(np.float32(2.0)), lists, SharpLogits("2"), UnresolvedHead()):
        with pytest.raises(ConfigError, match=r"the fields of the head \w+\(\w+=.* must be"):
            actor(spaces, head)
    with pytest.raises(ConfigError, match=r"has no action space: call `bind"):
        _ = Greedy().size


class SineEncoder(Encoder):
    """Learned features of a matrix of numbers."""

    num_features = 5
    acts_without_torch = False

    def __init__(self, obs_spec, prefix, *, layer_norm=False):
        self.shape, self.name = obs_spec.shape, f"{prefix}.weight"

    def parameter_shapes(self):
        return {self.name: (int(np.prod(self.shape)), 5)}

    def features(self, params, obs, operations):
        return torch.sin(obs.flatten(1).float() @ params[self.name])


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setitem(ENCODERS, "bend", SineEncoder)


def learn(learned, loss):
    """Return the losses before and after gradient descent, and the final parameters."""
    params, losses = learned.initial(1), []
    for _ in range(30):
        grad, value = torch.func.grad_and_value(loss)(params)
        params = params - 0.1 * grad
        losses.append(value.item())
    return losses[0], losses[-1], params


@pytest.mark.parametrize("encoder", ["flatten", "bend"])
def test_registered_head_and_encoder_act_and_learn(tmp_path, encoder):
    options = {"hidden_sizes": (16,), "activation": "tanh", "initialization": "orthogonal"}
    network = Network(
        obs_spec=obs_spec(2, 3),
        action_spec=DISCRETE,
        encoder=encoder,
        **options,
        head=SharpLogits(2.0, shifts=(1, 2)),
        has_value=True,
    )
    stored = json.loads(json.dumps(network.to_json()))
    name = f"{__name__}:SharpLogits"
    assert stored["head"] == {"name": name, "factor": 2.0, "shifts": [1, 2]}
    assert network_from_json(stored) == network
    assert network.acts_without_torch is (encoder == "flatten")
    generator = torch.Generator().manual_seed(0)
    obs = torch.randn(12, 2, 3, generator=generator)
    action = torch.randint(3, (12,), generator=generator)
    learned = LearnedNetwork(network)

    def loss(params):
        log_prob, entropy, value = learned.evaluate(params, obs, action)
        return (value - 1.0).square().mean() - log_prob.mean() - 0.01 * entropy.mean()

    before, after, flat = learn(learned, loss)
    assert after < before - 0.2
    params = learned.layout.views(flat)
    start = network.initial_parameters(1)
    assert params.keys() == start.keys()
    assert all((params[name] != start[name]).any() for name in params)
    assert ("encoder.weight" in params) is (encoder == "bend")

    snapshot = PolicySnapshot(0, params)
    policy = ActingPolicy(network, snapshot)
    head, value = learned.outputs(flat, obs)
    np.testing.assert_allclose(policy.head(obs.numpy()), head, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(policy.value(obs.numpy()), value, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(
        TrainedPolicy(policy).act(obs.numpy()), 5 + head.argmax(1).numpy()
    )
    params["policy.1.bias"] += 1.0
    policy.refresh(1)
    np.testing.assert_allclose(policy.head(obs.numpy()), head + 1.0, rtol=1e-4, atol=1e-5)
    export_onnx(network, snapshot, tmp_path / "policy.onnx")
    if encoder == "flatten":
        with pytest.raises(ConfigError, match=r"SharpLogits.*--format onnx"):
            export_numpy(network, snapshot, tmp_path)


def test_registered_encoder_of_images_acts_through_torch():
    network = Network(
        obs_spec=obs_spec(4, 4, 3, dtype="uint8"),
        action_spec=DISCRETE,
        encoder="bend",
        hidden_sizes=(8,),
        activation="relu",
        initialization="uniform",
        head=Dueling(),
        has_value=False,
    )
    params = network.initial_parameters(0)
    learned = LearnedNetwork(network)
    obs = np.random.default_rng(0).integers(0, 3, (7, 4, 4, 3), np.uint8)
    values = learned.outputs(learned.layout.pack(params), torch.from_numpy(obs))[0]
    policy = ActingPolicy(network, PolicySnapshot(0, params))
    np.testing.assert_allclose(policy.head(obs), values, rtol=1e-4, atol=1e-5)
    params["value.bias"] += 1.0
    policy.refresh(1)
    np.testing.assert_allclose(policy.head(obs), values + 1.0, rtol=1e-4, atol=1e-5)


def test_critics_share_an_encoder():
    network = StackedCritics(
        obs_spec=obs_spec(2, 3), action_spec=BOUNDED, encoder="bend", hidden_sizes=(16, 8)
    )
    assert network.parameter_shapes()["critic.0.weight"] == (5 + 2, 2 * 16)
    learned = LearnedCritics(network)
    generator = torch.Generator().manual_seed(0)
    obs, action = (torch.randn(12, *x, generator=generator) for x in ((2, 3), (2,)))

    def loss(params):
        return (learned.values(params, obs, action) - action[:, 0]).square().sum(0).mean()

    before, after, params = learn(learned, loss)
    assert after < 0.8 * before
    values = learned.values(params, obs, action)
    torch.testing.assert_close(learned.first_values(params, obs, action), values[0])
    features = {
        "encoder": np.asarray(network.initial_parameters(1)["encoder.weight"]),
        "learned": learned.layout.views(params)["encoder.weight"],
    }
    assert (features["encoder"] != features["learned"]).all()


def test_builders_use_the_named_or_default_encoder():
    spaces = SimpleNamespace(obs_spec=obs_spec(8, 8, 3, dtype="uint8"), action_spec=DISCRETE)
    assert actor_critic(spaces, network="bend").encoder == "bend"
    assert actor(spaces, Greedy(), network="bend").encoder == "bend"
    assert actor_critic(spaces).encoder == "impala"
    features = SimpleNamespace(obs_spec=obs_spec(4), action_spec=BOUNDED)
    assert actor_critic(features).encoder == critics(features).encoder == "flatten"
    with pytest.raises(UnknownNameError, match=r"no network 'bent'; did you mean 'bend'"):
        actor_critic(spaces, network="bent")
