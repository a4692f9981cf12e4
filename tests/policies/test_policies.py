import json
import math
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from hotloop.base import memory
from hotloop.envs.spaces import ActionSpec, ObsField, ObsSpec
from hotloop.errors import CheckpointError, ConfigError, ShapeError, install_command
from hotloop.policies import (
    ActingPolicy,
    Network,
    PolicySnapshot,
    TrainedPolicy,
    actor,
    actor_critic,
    network_from_json,
)
from hotloop.policies.forward import LearnedNetwork
from hotloop.policies.heads import HEADS, Categorical
from hotloop.policies.initialization import orthogonal
from tests.policies.nets import Spaces


def obs_spec(*shape, dtype="float32"):
    field = ObsField(
        name="", start=0, stop=math.prod(shape), shape=shape, encoding="box", dtype=dtype
    )
    return ObsSpec(shape=shape, dtype=dtype, layout=(field,))


DISCRETE = ActionSpec(kind="discrete", shape=(), dtype="int64", num_actions=3, start=5)
MULTI = ActionSpec(kind="multi_discrete", shape=(2,), dtype="int64", nvec=(2, 3), starts=(0, 10))
BOX = ActionSpec(
    kind="box", shape=(2,), dtype="float32", low=(-0.3, -math.inf), high=(0.3, math.inf)
)
FAR_BOX = ActionSpec(
    kind="box", shape=(2,), dtype="float32", low=(10.3, -math.inf), high=(30.3, math.inf)
)
BOUNDED = ActionSpec(kind="box", shape=(2, 1), dtype="float32", low=(-0.5, 1.0), high=(0.5, 4.0))
HYBRID = ActionSpec.join(
    (
        replace(FAR_BOX, name="pedals"),
        replace(DISCRETE, name="gear"),
        replace(MULTI, name="lights"),
    ),
    is_tuple=False,
)
FAR_SCALE = np.float32([20.3, 0.0]), np.float32([10.0, 1.0])  # c and h of the actions c + h · u
SPECS = {
    "discrete": DISCRETE,
    "multi_discrete": MULTI,
    "box": BOX,
    "far_box": FAR_BOX,
    "hybrid": HYBRID,
}


def random_policy(action_spec, *, hidden_sizes=(16, 8), shape=(4,), **options):
    network = actor_critic(
        Spaces(obs_spec(*shape), action_spec), hidden_sizes=hidden_sizes, **options
    )
    rng = np.random.default_rng(0)
    params = {
        name: (0.5 * rng.standard_normal(s)).astype(np.float32)
        for name, s in network.parameter_shapes().items()
    }
    return network, params, ActingPolicy(network, PolicySnapshot(version=3, params=params))


def trained_policy(action_spec):
    return TrainedPolicy(random_policy(action_spec)[2])


@pytest.mark.parametrize("kind", SPECS)
@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("hidden_sizes", [(), (16,), (16, 8, 4)])
@pytest.mark.parametrize("shared_trunk", [False, True])
def test_torch_and_numpy_outputs_agree(kind, activation, hidden_sizes, shared_trunk):
    network, params, policy = random_policy(
        SPECS[kind],
        activation=activation,
        hidden_sizes=hidden_sizes,
        shared_trunk=shared_trunk,
        shape=(2, 3),
    )
    learned = LearnedNetwork(network)
    tensors = learned.layout.pack(params)
    obs = np.random.default_rng(1).standard_normal((5, 7, 2, 3)).astype(np.float32)
    noise = policy.draw_noise(0, first_step=0, num_steps=5, num_envs=7)
    head = np.empty((5, 7, network.head_size), np.float32)
    action = np.empty((5, 7, *network.action_spec.shape), network.action_spec.dtype)
    for t in range(5):
        policy.head(obs[t], out=head[t])
        policy.choose(head[t], noise[t], action[t])
    log_prob = policy.log_prob(head, noise, action)

    flat = torch.from_numpy(obs.reshape(35, 2, 3))
    torch_head, torch_value = learned.outputs(tensors, flat)
    flat_action = torch.from_numpy(action.reshape(35, *action.shape[2:]))
    torch_log_prob, entropy, again = learned.evaluate(tensors, flat, flat_action)
    assert torch.equal(again, torch_value)
    assert entropy.shape == (35,)
    tolerance = {"rtol": 1e-4, "atol": 1e-5}
    np.testing.assert_allclose(head.reshape(35, -1), torch_head, **tolerance)
    np.testing.assert_allclose(log_prob.reshape(35), torch_log_prob, **tolerance)
    np.testing.assert_allclose(policy.value(obs.reshape(35, 2, 3)), torch_value, **tolerance)


@pytest.mark.parametrize("kind", ["discrete", "multi_discrete"])
def test_actions_follow_the_softmax(kind):
    network, _, policy = random_policy(SPECS[kind])
    obs = np.random.default_rng(2).standard_normal((1, 4)).astype(np.float32)
    head = policy.head(obs)
    noise = policy.draw_noise(7, first_step=0, num_steps=1, num_envs=40_000)[0]
    action = np.empty((40_000, *network.action_spec.shape), np.int64)
    policy.choose(np.repeat(head, 40_000, axis=0), noise, action)
    segments = [(0, 3)] if kind == "discrete" else [(0, 2), (2, 5)]
    for k, (start, stop) in enumerate(segments):
        logits = head[0, start:stop].astype(np.float64)
        probs = np.exp(logits) / np.exp(logits).sum()
        column = action if kind == "discrete" else action[:, k]
        shares = np.bincount(column, minlength=stop - start) / 40_000
        np.testing.assert_allclose(shares, probs, atol=4 * 0.5 / math.sqrt(40_000))


@pytest.mark.parametrize(
    ("action_spec", "center", "half_width"), [(BOX, 0.0, 1.0), (FAR_BOX, *FAR_SCALE)]
)
def test_gaussian_actions_have_the_policys_mean_and_std(action_spec, center, half_width):
    _, params, policy = random_policy(action_spec)
    obs = np.repeat(np.random.default_rng(2).standard_normal((1, 4)), 40_000, axis=0)
    head = policy.head(obs.astype(np.float32))
    noise = policy.draw_noise(7, first_step=0, num_steps=1, num_envs=40_000)[0]
    action = np.empty((40_000, 2), np.float32)
    policy.choose(head, noise, action)
    std = np.exp(params["policy.log_std"])
    unit = (action.astype(np.float64) - center) / half_width
    np.testing.assert_allclose(unit.mean(0), head[0], atol=4 * std.max() / 200)
    np.testing.assert_allclose(unit.std(0), std, rtol=0.02)


def test_act_returns_environment_actions():
    obs = np.random.default_rng(3).standard_normal((6, 4)).astype(np.float32)
    policy = trained_policy(DISCRETE)
    assert set(policy.act(obs).tolist()) <= {5, 6, 7}
    np.testing.assert_array_equal(policy.act(obs), 5 + policy.head(obs).argmax(1))
    assert policy.act(obs[0]) == policy.act(obs)[0]
    samples = {int(policy.act(obs[0], deterministic=False)) for _ in range(200)}
    assert len(samples) > 1

    policy = trained_policy(MULTI)
    assert (policy.act(obs)[:, 1] >= 10).all()

    policy = trained_policy(BOX)
    action = policy.act(10 * obs)
    assert action.shape == (6, 2)
    assert np.abs(action[:, 0]).max() == np.nextafter(np.float32(0.3), np.float32(0))
    assert np.abs(action[:, 1]).max() > 0.3

    policy = trained_policy(FAR_BOX)
    center, half_width = FAR_SCALE
    action, unit = policy.act(10 * obs), policy.head(10 * obs)
    expected = center + half_width * np.clip(unit, [-1, -np.inf], [1, np.inf])
    np.testing.assert_allclose(action, expected, rtol=1e-6)
    assert 10.3 <= float(action[:, 0].min()) < float(action[:, 0].max()) <= 30.3


def test_act_requires_one_observation_or_a_batch():
    policy = trained_policy(DISCRETE)
    with pytest.raises(ShapeError, match=r"\(4\) or \(B, 4\), got \(5,\)|got \(5,\)"):
        policy.act(np.zeros(5, np.float32))


def test_initial_parameters():
    network = actor_critic(Spaces(obs_spec(4), BOX), hidden_sizes=(64, 64))
    params = network.initial_parameters(1)
    assert {name: p.shape for name, p in params.items()} == network.parameter_shapes()
    assert all(p.dtype == np.float32 for p in params.values())
    for name, gain, size in (
        ("policy.0.weight", math.sqrt(2), 4),
        ("policy.1.weight", math.sqrt(2), 64),
        ("policy.2.weight", 0.01, 2),
        ("value.2.weight", 1.0, 1),
    ):
        weight = params[name] / gain
        gram = weight @ weight.T if len(weight) == size else weight.T @ weight
        np.testing.assert_allclose(gram, np.eye(size), atol=1e-5)
    assert not params["policy.0.bias"].any()
    assert not params["policy.log_std"].any()
    again = network.initial_parameters(1)
    assert all(np.array_equal(params[name], again[name]) for name in params)
    other = network.initial_parameters(2)
    assert not np.array_equal(params["policy.0.weight"], other["policy.0.weight"])


def test_shared_trunk_matches_hand_computed_values():
    network = actor_critic(
        Spaces(obs_spec(2), DISCRETE), hidden_sizes=(2,), activation="relu", shared_trunk=True
    )
    params = {
        "trunk.0.weight": [[1.0, -1.0], [2.0, 1.0]],
        "trunk.0.bias": [0.5, 0.0],
        "policy.0.weight": [[1.0, 0.0, -1.0], [0.0, 1.0, 2.0]],
        "policy.0.bias": [0.0, 0.0, 1.0],
        "value.0.weight": [[3.0], [-2.0]],
        "value.0.bias": [0.25],
    }
    params = {name: np.array(x, np.float32) for name, x in params.items()}
    assert {name: x.shape for name, x in params.items()} == network.parameter_shapes()
    policy = ActingPolicy(network, PolicySnapshot(version=0, params=params))
    obs = np.array([[1.0, 2.0], [2.0, -1.0]], np.float32)
    # Hidden: [1 + 4 + 0.5, -1 + 2] = [5.5, 1]; [2 - 2 + 0.5, -2 - 1 → 0] = [0.5, 0].
    np.testing.assert_array_equal(policy.head(obs), [[5.5, 1.0, -2.5], [0.5, 0.0, 0.5]])
    np.testing.assert_array_equal(policy.value(obs), [14.75, 1.75])


def test_shared_trunk_has_the_usual_initial_gains():
    spaces = Spaces(obs_spec(4), BOX)
    network = actor_critic(spaces, hidden_sizes=(64, 32), shared_trunk=True)
    params = network.initial_parameters(1)
    assert [*params] == [
        *("trunk.0.weight", "trunk.0.bias", "trunk.1.weight", "trunk.1.bias"),
        *("policy.0.weight", "policy.0.bias", "value.0.weight", "value.0.bias", "policy.log_std"),
    ]
    for name, gain in (
        ("trunk.0.weight", math.sqrt(2)),
        ("trunk.1.weight", math.sqrt(2)),
        ("policy.0.weight", 0.01),
        ("value.0.weight", 1.0),
    ):
        np.testing.assert_allclose(np.linalg.svd(params[name])[1], gain, rtol=1e-5)
    shared_linear = actor_critic(spaces, hidden_sizes=(), shared_trunk=True)
    linear = actor_critic(spaces, hidden_sizes=())
    assert shared_linear.parameter_shapes() == linear.parameter_shapes()


def test_orthogonal_matrices_are_uniform():
    """Without a sign correction, QR gives first entries of one sign."""
    rng = np.random.default_rng(0)
    corners = [orthogonal((3, 3), rng)[0, 0] for _ in range(1000)]
    assert abs(np.mean(corners)) < 4 * math.sqrt(1 / 3 / 1000)


@pytest.mark.parametrize(
    "kind", [*SPECS, "squashed_gaussian", "deterministic", "greedy", "dueling"]
)
@pytest.mark.parametrize("shared_trunk", [False, True])
def test_json_round_trip(kind, shared_trunk):
    changes = [{"hidden_sizes": [6]}]
    if kind in SPECS:
        spaces = Spaces(obs_spec(2, 3), SPECS[kind])
        network = actor_critic(spaces, hidden_sizes=(5,), shared_trunk=shared_trunk)
        changes.append({"shared_trunk": not shared_trunk})
    else:
        is_discrete = kind in ("greedy", "dueling")
        spaces = Spaces(obs_spec(2, 3), DISCRETE if is_discrete else BOUNDED)
        network = actor(spaces, HEADS[kind](), hidden_sizes=(5, 4), activation="tanh")
    fields = json.loads(json.dumps(network.to_json()))
    assert Network.from_json(fields) == network
    assert network_from_json(fields) == network
    for change in changes:
        assert network_from_json({**fields, "body": {**fields["body"], **change}}) != network


def test_parameters_of_another_network_are_refused():
    _network, params, policy = random_policy(DISCRETE)
    params = {name: x for name, x in params.items() if name != "value.0.bias"}
    with pytest.raises(CheckpointError, match=r"`value.0.bias` must have shape \(16,\), got None"):
        policy.load(PolicySnapshot(version=0, params=params))


def test_unsupported_networks_are_refused():
    spaces = Spaces(obs_spec(4), DISCRETE)
    with pytest.raises(ConfigError, match="`activation` must be 'tanh' or 'relu', got 'gelu'"):
        actor_critic(spaces, activation="gelu")
    with pytest.raises(ConfigError, match="hidden_sizes"):
        actor_critic(spaces, hidden_sizes=(0,))


def test_batches_of_changing_sizes_and_types():
    _, _, policy = random_policy(DISCRETE, shape=(2, 3))
    obs = np.random.default_rng(1).integers(0, 256, (9, 2, 3)).astype(np.float32)
    expected_head, values = policy.head(obs).copy(), policy.value(obs).copy()
    for size in (4, 1, 9, 4):
        for x in (obs[:size], obs[:size].astype(np.float64), obs[:size].astype(np.uint8)):
            np.testing.assert_allclose(policy.head(x), expected_head[:size], rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(policy.value(x), values[:size], rtol=1e-4)
    value = policy.value(obs)
    policy.value(-obs)
    np.testing.assert_array_equal(value, values)  # not overwritten


def test_load_applies_new_parameters():
    network, params, policy = random_policy(DISCRETE)
    obs = np.ones((3, 4), np.float32)
    before = policy.head(obs)
    new_params = {name: array + 1 for name, array in params.items()}
    policy.load(PolicySnapshot(version=4, params=new_params))
    new_policy = ActingPolicy(network, PolicySnapshot(version=4, params=new_params))
    assert policy.version == 4
    np.testing.assert_array_equal(policy.head(obs), new_policy.head(obs))
    assert not np.array_equal(policy.head(obs), before)


def test_perceptrons_act_without_torch():
    script = """
import sys
sys.modules["torch"] = None  # imports of torch fail
import numpy as np
from hotloop.envs.spaces import ActionSpec, ObsSpec
from types import SimpleNamespace
from hotloop.errors import MissingExtraError
from hotloop.policies import (
    ActingPolicy, PolicySnapshot, TrainedPolicy, actor, actor_critic, critics,
    network_from_json,
)
from hotloop.policies.heads import HEADS
obs_spec = ObsSpec(shape=(4,), dtype="float32", layout=())
discrete = ActionSpec(kind="discrete", shape=(), dtype="int64", num_actions=2)
multi = ActionSpec(kind="multi_discrete", shape=(1,), dtype="int64", nvec=(2,))
box = ActionSpec(kind="box", shape=(1,), dtype="float32", low=(-1.0,), high=(1.0,))
choice = ActionSpec(kind="discrete", shape=(), dtype="int64", num_actions=2, name="a")
box_part = ActionSpec(
    kind="box", shape=(1,), dtype="float32", low=(-1.0,), high=(1.0,), name="b"
)
hybrid = ActionSpec.join((choice, box_part), is_tuple=False)
untested = set(HEADS.values())
far = ActionSpec(kind="box", shape=(1,), dtype="float32", low=(0.0,), high=(100.0,))
for action_spec in (far, discrete, multi, hybrid, box):
    spaces = SimpleNamespace(obs_spec=obs_spec, action_spec=action_spec)
    returns = ("return_distribution", "dueling_return_distribution")
    kinds = {
        discrete: ("greedy", "dueling", *returns), box: ("squashed_gaussian", "deterministic")
    }
    actors = [actor(spaces, HEADS[kind]()) for kind in kinds.get(action_spec, ())]
    for network in (actor_critic(spaces), *actors):
        network = network_from_json(network.to_json())
        acting = ActingPolicy(network, PolicySnapshot(0, network.initial_parameters(1)))
        policy = TrainedPolicy(acting)
        assert network.acts_without_torch and acting.memory_size == 0
        assert acting.greedy(np.ones((3, 4), np.float32)).shape == (3, *action_spec.shape)
        untested.remove(type(network.head))
assert not untested, untested
assert critics(spaces).parameter_shapes() and critics(spaces).initial_parameters(1)
try:
    actor_critic(spaces, network="my_nets:Net")
except MissingExtraError as error:
    print(error)
"""
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    assert process.stdout.startswith("a network of your own needs torch (")
    assert process.stdout.endswith(f": {install_command('train')}\n")


@pytest.mark.parametrize(("initialization", "size"), [("orthogonal", "29"), ("uniform", "14")])
def test_more_parameters_than_fit_in_memory_are_refused(monkeypatch, initialization, size):
    network = Network(
        obs_spec=obs_spec(10**6),
        action_spec=DISCRETE,
        hidden_sizes=(10**6, 10),
        activation="tanh",
        initialization=initialization,
        head=Categorical(),
        has_value=False,
    )
    monkeypatch.setattr(memory, "available_memory", lambda: 2**40)
    message = (
        rf"^networks of 1,000,011,000,043 parameters take at least {size} TiB, and 1.0 TiB are "
        "free: lower `hidden_sizes`$"
    )
    with pytest.raises(ConfigError, match=message):
        network.initial_parameters(0)


@pytest.mark.parametrize("obs", ["x", None, {"a": 1}, [[0, 0, 0, 0], [0, 0]]])
def test_observations_that_are_not_numeric_are_refused(obs):
    policy = trained_policy(DISCRETE)
    with pytest.raises(ShapeError, match=r"`obs` must be numbers of shape \(4,\).*, got ") as error:
        policy.act(obs)
    assert str(error.value).endswith(repr(obs))
