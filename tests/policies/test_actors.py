import math

import numpy as np
import pytest
import torch

from hotloop.envs.spaces import ActionSpec
from hotloop.errors import CheckpointError, ConfigError, SpaceError
from hotloop.policies import actor, critics, network_from_json
from hotloop.policies.forward import LearnedNetwork
from hotloop.policies.heads import HEADS, Greedy
from tests.policies.nets import Spaces
from tests.policies.test_policies import BOUNDED, BOX, DISCRETE, MULTI, obs_spec

KINDS = {
    "squashed_gaussian": BOUNDED,
    "deterministic": BOUNDED,
    "greedy": DISCRETE,
    "dueling": DISCRETE,
    "return_distribution": DISCRETE,
    "dueling_return_distribution": DISCRETE,
}


def make_actor(kind, shape=(2, 3), **options):
    """Return an actor with six observed values and two action components or three actions."""
    return actor(Spaces(obs_spec(*shape), KINDS[kind]), HEADS[kind](), **options)


def make_critics(num_inputs, **options):
    """Return critics with two action components. The other inputs are observed values."""
    return critics(Spaces(obs_spec(num_inputs - 2), BOUNDED), **options)


@pytest.mark.parametrize(
    ("kind", "head_size"), [("squashed_gaussian", 4), ("deterministic", 2), ("greedy", 3)]
)
def test_layer_shapes(kind, head_size):
    actor = make_actor(kind, hidden_sizes=(16, 8))
    assert (actor.head_size, actor.has_value, actor.memory_size) == (head_size, False, 0)
    assert actor.acts_without_torch
    assert actor.parameter_shapes() == {
        "policy.0.weight": (6, 16),
        "policy.0.bias": (16,),
        "policy.1.weight": (16, 8),
        "policy.1.bias": (8,),
        "policy.2.weight": (8, head_size),
        "policy.2.bias": (head_size,),
    }
    linear = make_actor(kind, hidden_sizes=())
    assert linear.parameter_shapes() == {
        "policy.0.weight": (6, head_size),
        "policy.0.bias": (head_size,),
    }


def test_action_scale_is_centre_and_half_width():
    centre, half = make_actor("deterministic").head.action_scale
    assert (centre.tolist(), half.tolist()) == ([0.0, 2.5], [0.5, 1.5])
    assert centre.dtype == half.dtype == np.float32


def test_critics_are_stacked():
    critics = make_critics(5, hidden_sizes=(7, 4), layer_norm=True, count=3)
    assert critics.parameter_shapes() == {
        "critic.0.weight": (5, 21),
        "critic.0.bias": (21,),
        "critic.0.scale": (3, 1, 7),
        "critic.0.shift": (3, 1, 7),
        "critic.1.weight": (3, 7, 4),
        "critic.1.bias": (3, 1, 4),
        "critic.1.scale": (3, 1, 4),
        "critic.1.shift": (3, 1, 4),
        "critic.2.weight": (3, 4, 1),
        "critic.2.bias": (3, 1, 1),
    }
    plain = make_critics(5, hidden_sizes=(7, 4)).parameter_shapes()
    assert plain["critic.1.weight"] == (2, 7, 4)
    assert not [name for name in plain if name.endswith(("scale", "shift"))]
    quantiles = make_critics(5, hidden_sizes=(7,), count=5, num_outputs=25).parameter_shapes()
    assert quantiles["critic.1.weight"] == (5, 7, 25)
    assert quantiles["critic.1.bias"] == (5, 1, 25)


def test_dueling_streams_read_half_of_the_features_each():
    actor = make_actor("dueling", hidden_sizes=(16, 4))
    assert actor.head_size == 3
    assert actor.parameter_shapes() == {
        "policy.0.weight": (6, 16),
        "policy.0.bias": (16,),
        "policy.1.weight": (16, 8),
        "policy.1.bias": (8,),
        "value.weight": (4, 1),
        "value.bias": (1,),
        "advantage.weight": (4, 3),
        "advantage.bias": (3,),
    }


def example_networks():
    """Return networks with large layers, and the number of inputs of each layer."""
    sizes = {"hidden_sizes": (400, 100)}
    return {
        "actor": (make_actor("greedy", **sizes), {"policy.0": 6, "policy.1": 400, "policy.2": 100}),
        "critics": (
            make_critics(9, layer_norm=True, **sizes),
            {"critic.0": 9, "critic.1": 400, "critic.2": 100},
        ),
        "dueling": (
            make_actor("dueling", **sizes),
            {"policy.0": 6, "policy.1": 400, "value": 100, "advantage": 100},
        ),
    }


@pytest.mark.parametrize("which", ["actor", "critics", "dueling"])
def test_layers_are_initialized_like_torchs(which):
    """Weights and biases are uniform in ±1/√inputs: bounds, spread and mean."""
    network, inputs = example_networks()[which]
    params = network.initial_parameters(1)
    assert {name: x.shape for name, x in params.items()} == network.parameter_shapes()
    assert {x.dtype for x in params.values()} == {np.dtype(np.float32)}
    for layer, count in inputs.items():
        bound = 1.0 / math.sqrt(count)
        weight, bias = (params.pop(f"{layer}.{part}") for part in ("weight", "bias"))
        assert np.abs(weight).max() <= bound
        assert np.abs(bias).max() <= bound
        assert bias.any()
        if weight.size > 2000:
            assert np.abs(weight).max() > 0.99 * bound
            # Four standard errors. The variance of a uniform number's square is 4/45 · bound⁴.
            error = 4 * bound / math.sqrt(3 * weight.size)
            np.testing.assert_allclose(weight.mean(), 0.0, atol=error)
            error = 4 * bound**2 * math.sqrt(4 / 45 / weight.size)
            np.testing.assert_allclose(np.square(weight).mean(), bound**2 / 3, atol=error)
    for name, x in params.items():  # parameters of layer normalizations
        assert name.rpartition(".")[2] in ("scale", "shift")
        assert (x == (1.0 if name.endswith("scale") else 0.0)).all()


@pytest.mark.parametrize("which", ["actor", "critics", "dueling"])
def test_seed_determines_initial_parameters(which):
    network, _ = example_networks()[which]
    first, again, other = (network.initial_parameters(seed) for seed in (1, 1, 2))
    for name, x in first.items():
        np.testing.assert_array_equal(x, again[name])
        if not name.endswith(("scale", "shift")):
            assert not np.array_equal(x, other[name])


def test_critics_and_actor_start_with_different_parameters():
    critics = make_critics(6, hidden_sizes=(16,))
    actor = make_actor("deterministic", hidden_sizes=(32,))
    params, actor_params = critics.initial_parameters(3), actor.initial_parameters(3)
    first, second = np.hsplit(params["critic.0.weight"], 2)
    assert not np.isin(first, second).any()
    assert not np.array_equal(*params["critic.1.weight"])
    assert params["critic.0.weight"].shape == actor_params["policy.0.weight"].shape
    assert not np.isin(params["critic.0.weight"], actor_params["policy.0.weight"]).any()


IMAGES = obs_spec(8, 8, 3, dtype="uint8")
DEGENERATE = ActionSpec(kind="box", shape=(2,), dtype="float32", low=(-1.0, 0.5), high=(1.0, 0.5))
EMPTY_ACTION = ActionSpec(kind="box", shape=(0,), dtype="float32")


@pytest.mark.parametrize(
    ("kind", "obs", "action", "message"),
    [
        ("greedy", obs_spec(4), BOUNDED, r"one discrete action is needed, got a box .*use ppo"),
        ("greedy", obs_spec(4), MULTI, r"got a multi_discrete space of shape \(2,\): use p"),
        (
            "deterministic",
            obs_spec(4),
            DISCRETE,
            r"\(box\).*got a discrete one: use dqn, sac_discrete or ppo",
        ),
        ("squashed_gaussian", obs_spec(4), MULTI, r"got a multi_discrete one: use ppo$"),
        (
            "squashed_gaussian",
            obs_spec(4),
            BOX,
            r"must be finite float32 numbers, .* got \[-0\.3, -inf\] to .*TransformAction",
        ),
        (
            "deterministic",
            obs_spec(4),
            DEGENERATE,
            r"must be greater than .* got \[-1\.0, 0\.5\] to \[1\.0, 0\.5",
        ),
        ("deterministic", obs_spec(4), EMPTY_ACTION, "actions must hold a number"),
        ("greedy", obs_spec(0), DISCRETE, "observations must hold a number"),
    ],
)
def test_unsuitable_spaces_are_refused(kind, obs, action, message):
    with pytest.raises(SpaceError, match=message):
        actor(Spaces(obs, action), HEADS[kind]())


@pytest.mark.parametrize(
    ("kind", "action", "message"),
    [
        ("categorical", BOX, r"Categorical\(\) takes discrete actions, got a box space"),
        ("multi_categorical", DISCRETE, r"\(\) takes multi_discrete actions, got a discrete space"),
        ("gaussian", MULTI, r"Gaussian\(\) takes box actions, got a multi_discrete space"),
        ("dueling", BOX, "one discrete action is needed, got a box"),
    ],
)
def test_heads_for_other_action_spaces_are_refused(kind, action, message):
    with pytest.raises(SpaceError, match=message):
        actor(Spaces(obs_spec(4), action), HEADS[kind]())


def test_critics_refuse_unsuitable_spaces_and_options():
    for obs, action, message in (
        (obs_spec(4), DISCRETE, r"\(box\) action space is needed"),
        (obs_spec(4), BOX, "must be finite float32 numbers"),
        (obs_spec(0), BOUNDED, "observations must hold a number"),
        (IMAGES, BOUNDED, "these observations hold images: choose `network` 'perceptron'"),
    ):
        with pytest.raises(SpaceError, match=message):
            critics(Spaces(obs, action))
    for options, message in (
        ({"hidden_sizes": ()}, "at least one hidden layer"),
        ({"hidden_sizes": (8, 0)}, "`hidden_sizes` must be positive"),
        ({"count": 0}, "`count` must be positive, got 0"),
        ({"num_outputs": 0}, "`num_outputs` must be positive, got 0"),
    ):
        with pytest.raises(ConfigError, match=message):
            make_critics(4, **options)


def test_flat_uint8_observations_are_accepted():
    network = actor(Spaces(obs_spec(7, dtype="uint8"), DISCRETE), Greedy())
    assert network.parameter_shapes()["policy.0.weight"][0] == 7


def test_unknown_heads_and_encoders_in_files():
    stored = make_actor("greedy").to_json()
    with pytest.raises(CheckpointError, match="no head 'gredy': write `module:name`"):
        network_from_json({**stored, "head": "gredy"})
    for change in ({"head": "best"}, {"body": {**stored["body"], "encoder": "resnet"}}):
        with pytest.raises(
            CheckpointError, match=r"can't be built again .there is no (head|encoder)"
        ):
            network_from_json({**stored, **change})


def test_dueling_streams_need_a_hidden_layer():
    with pytest.raises(ConfigError, match="at least one hidden layer"):
        make_actor("dueling", hidden_sizes=())


@pytest.mark.parametrize("are_tensors", [False, True])
def test_folded_dueling_head_is_value_plus_advantage_minus_its_mean(are_tensors):
    """Compare with Wang et al. 2016, eq. 9, computed from the two streams."""
    network = make_actor("dueling", hidden_sizes=(5, 4))
    params = network.initial_parameters(2)
    obs = np.random.default_rng(0).standard_normal((4, 2, 3)).astype(np.float32)

    hidden = obs.reshape(4, 6).astype(np.float64)
    for layer in ("policy.0", "policy.1"):
        hidden = np.maximum(hidden @ params[f"{layer}.weight"] + params[f"{layer}.bias"], 0.0)
    value = hidden[:, :4] @ params["value.weight"] + params["value.bias"]
    advantage = hidden[:, 4:] @ params["advantage.weight"] + params["advantage.bias"]
    expected = value + advantage - advantage.mean(1, keepdims=True)

    inputs = {name: torch.from_numpy(x) for name, x in params.items()} if are_tensors else params
    folded = network.head.fold(inputs)
    plain = make_actor("greedy", hidden_sizes=(5, 8))
    assert {name: tuple(x.shape) for name, x in folded.items()} == plain.parameter_shapes()
    assert {type(x) for x in folded.values()} == {torch.Tensor if are_tensors else np.ndarray}
    learned, streams = LearnedNetwork(plain), LearnedNetwork(network)
    flat = learned.layout.pack({name: np.asarray(x) for name, x in folded.items()})
    actual = learned.outputs(flat, torch.from_numpy(obs))[0]
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)
    actual = streams.outputs(streams.layout.pack(params), torch.from_numpy(obs))[0]
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)
    assert np.ptp(expected, axis=1).min() > 0.01


@pytest.mark.parametrize("are_tensors", [False, True])
def test_folded_dueling_logits_are_value_plus_advantage_minus_its_mean(are_tensors):
    """Compare each atom's logits with Hessel et al. 2018, from the two streams."""
    head = HEADS["dueling_return_distribution"](-1.0, 2.0, 5)
    network = actor(Spaces(obs_spec(6), DISCRETE), head, hidden_sizes=(8,))
    params = network.initial_parameters(2)
    shapes = {name: x.shape for name, x in params.items()}
    assert (shapes["value.weight"], shapes["advantage.weight"]) == ((8, 5), (8, 15))
    hidden = np.random.default_rng(0).standard_normal((4, 16))
    inputs = {name: torch.from_numpy(x) for name, x in params.items()} if are_tensors else params
    folded = {name: np.asarray(x) for name, x in network.head.fold(inputs).items()}
    actual = (hidden @ folded["policy.1.weight"] + folded["policy.1.bias"]).reshape(4, 3, 5)
    value = hidden[:, :8] @ params["value.weight"] + params["value.bias"]
    advantage = hidden[:, 8:] @ params["advantage.weight"] + params["advantage.bias"]
    for i in range(5):
        atom = advantage[:, i::5]  # of each action
        expected = value[:, [i]] + atom - atom.mean(1, keepdims=True)
        np.testing.assert_allclose(actual[:, :, i], expected, rtol=1e-5, atol=1e-6)


def test_gradients_reach_both_streams():
    learned = LearnedNetwork(make_actor("dueling", hidden_sizes=(4,)))
    flat = learned.initial(2).requires_grad_()
    leaves = learned.layout.unpack(flat)
    obs = torch.randn(4, 6, generator=torch.Generator().manual_seed(0)).view(4, 2, 3)

    def reference_values():
        hidden = torch.relu(obs.flatten(1) @ leaves["policy.0.weight"] + leaves["policy.0.bias"])
        value = hidden[:, :4] @ leaves["value.weight"] + leaves["value.bias"]
        advantage = hidden[:, 4:] @ leaves["advantage.weight"] + leaves["advantage.bias"]
        return value + advantage - advantage.mean(1, keepdim=True)

    scale = torch.arange(12.0).view(4, 3)  # with equal weights the advantages' gradients cancel
    (expected,) = torch.autograd.grad((reference_values() * scale).sum(), flat)
    (actual,) = torch.autograd.grad((learned.outputs(flat, obs)[0] * scale).sum(), flat)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
    assert all(part.any() for part in learned.layout.unpack(actual).values())
