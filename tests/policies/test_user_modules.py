import contextlib
import functools
import json
import math
import shutil
import sys

import numpy as np
import pytest
import torch
from torch import nn

from hotloop.errors import CheckpointError, ConfigError, ShapeError, SpaceError, UnknownNameError
from hotloop.policies import (
    ActingPolicy,
    ObsScale,
    PolicySnapshot,
    TrainedPolicy,
    actor,
    actor_critic,
    critics,
    network_from_json,
)
from hotloop.policies.forward import LearnedCritics, LearnedNetwork
from hotloop.policies.heads import HEADS, Deterministic, Dueling, Greedy
from tests.policies import nets
from tests.policies.test_actors import BOUNDED
from tests.policies.test_policies import BOX, DISCRETE, SPECS, obs_spec

IMAGES = obs_spec(9, 9, 3, dtype="uint8")


def observations(spec, *leading):
    rng = np.random.default_rng(1)
    if spec.dtype == "uint8":
        return rng.integers(0, 256, (*leading, *spec.shape), np.uint8)
    return rng.standard_normal((*leading, *spec.shape)).astype(np.float32)


def as_tensors(params):
    return {name: torch.from_numpy(array) for name, array in params.items()}


def make_network(module, obs, action):
    return actor_critic(nets.Spaces(obs, action), network=module)


def perturbed(params):
    """Return parameters that differ from their initial values."""
    rng = np.random.default_rng(2)
    return {k: x + 0.1 * rng.standard_normal(x.shape).astype(np.float32) for k, x in params.items()}


@pytest.mark.parametrize("kind", SPECS)
@pytest.mark.parametrize(
    ("net", "spec"),
    [(nets.Net, obs_spec(2, 3)), (nets.Images, IMAGES), (nets.WithConstants, obs_spec(4))],
)
def test_acting_and_learning_match_the_module(kind, net, spec):
    network = make_network(net, spec, SPECS[kind])
    params = perturbed(network.initial_parameters(1))
    assert {name: x.shape for name, x in params.items()} == network.parameter_shapes()
    assert all(x.dtype == np.float32 for x in params.values())
    assert ("policy.log_std" in params) == (kind in ("box", "far_box", "hybrid"))

    # Constants come from the module that hotloop makes for its checks, with seed 0.
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = net(spec.shape, network.head_size)
        module(torch.zeros(1, *spec.shape, dtype=getattr(torch, spec.dtype)))
    module_params = {name: x for name, x in as_tensors(params).items() if name != "policy.log_std"}
    assert {name for name, _ in module.named_parameters()} >= module_params.keys()
    module.load_state_dict(module_params, strict=False)
    obs = observations(spec, 5)
    with torch.no_grad():
        expected_head, expected_value = module(torch.from_numpy(obs))
    expected_value = expected_value.flatten()

    learned = LearnedNetwork(network)
    flat = learned.layout.pack(params)
    head, value = learned.outputs(flat, torch.from_numpy(obs))
    torch.testing.assert_close(head, expected_head)
    torch.testing.assert_close(value, expected_value)
    policy = ActingPolicy(network, PolicySnapshot(0, network.initial_parameters(1)))
    assert not np.allclose(policy.head(obs), expected_head)
    policy.load(PolicySnapshot(1, params))
    out = np.empty((5, network.head_size), np.float32)
    assert policy.head(obs, out) is out
    np.testing.assert_allclose(out, expected_head, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(policy.value(obs), expected_value, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(policy.head(obs[:2]), expected_head[:2], rtol=1e-4, atol=1e-6)
    assert policy.scaled(obs) is obs
    if kind != "hybrid":  # which returns a dictionary
        assert TrainedPolicy(policy).act(obs).shape == (5, *network.action_spec.shape)
    noise = policy.draw_noise(0, first_step=0, num_steps=1, num_envs=5)[0]
    action = np.empty((5, *network.action_spec.shape), network.action_spec.dtype)
    policy.choose(out, noise, action)
    log_prob, _, _ = learned.evaluate(flat, torch.from_numpy(obs), torch.from_numpy(action))
    actual = policy.log_prob(out[None], noise[None], action[None])[0]
    np.testing.assert_allclose(actual, log_prob.detach(), rtol=1e-4, atol=1e-5)


def test_observations_of_any_memory_layout():
    network = make_network(nets.Net, obs_spec(4), DISCRETE)
    policy = ActingPolicy(network, PolicySnapshot(0, network.initial_parameters(1)))
    obs = observations(network.obs_spec, 6)
    expected = policy.head(obs)
    frozen = obs.copy()
    frozen.flags.writeable = False
    for layout in (frozen, obs.astype(np.float64), np.asfortranarray(obs)):
        np.testing.assert_array_equal(policy.head(layout), expected)
    np.testing.assert_array_equal(policy.head(obs[::-1]), expected[::-1])
    first = policy.value(obs)
    first_copy = first.copy()
    policy.value(-obs)
    np.testing.assert_array_equal(first, first_copy)


def test_scaled_observations_reach_the_module():
    network = make_network(nets.Net, obs_spec(4), DISCRETE)
    params = network.initial_parameters(1)
    scale = ObsScale(np.full(4, 2.0, np.float32), np.full(4, 3.0, np.float32), clip=1.0)
    plain = ActingPolicy(network, PolicySnapshot(0, params))
    scaled = ActingPolicy(network, PolicySnapshot(0, params, scale))
    obs = 4 * observations(network.obs_spec, 6)
    np.testing.assert_array_equal(scaled.head(obs), plain.head(scale.apply(obs)))
    np.testing.assert_array_equal(scaled.value(obs), plain.value(scale.apply(obs)))


def test_scaled_uint8_observations_are_float32():
    def forward(self, obs):
        dtypes.append(obs.dtype)
        return nets.Net.forward(self, obs.float())

    dtypes = []
    net = type("AnyDtype", (nets.Net,), {"forward": forward})
    network = make_network(net, obs_spec(4, dtype="uint8"), DISCRETE)
    assert set(dtypes) == {torch.uint8}
    scale = ObsScale(np.full(4, 100.0, np.float32), np.full(4, 50.0, np.float32), clip=1.0)
    policy = ActingPolicy(network, PolicySnapshot(0, network.initial_parameters(1), scale))
    policy.head(np.full((3, 4), 75, np.uint8))
    assert dtypes[-1] == torch.float32
    assert policy.scaled(np.full((3, 4), 75, np.uint8))[0, 0] == -0.5


def test_seed_determines_parameters_and_the_global_generator_is_unchanged():
    network = make_network(nets.Images, IMAGES, DISCRETE)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    first, again, other = (network.initial_parameters(seed) for seed in (1, 1, 2))
    make_network(nets.Net, obs_spec(4), BOX)
    torch.testing.assert_close(torch.rand(3), expected)
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert not np.array_equal(first["conv.weight"], other["conv.weight"])
    assert not np.array_equal(first["policy.weight"], other["policy.weight"])  # a lazy layer


def policy_loss(flat, obs, action, learned):
    log_prob, entropy, value = learned.evaluate(flat, obs, action)
    return value.square().mean() - log_prob.mean() - 0.1 * entropy.mean()


def learning_problem(net, spec, action_spec):
    learned = LearnedNetwork(make_network(net, spec, action_spec))
    flat = learned.layout.pack(perturbed(learned.network.initial_parameters(3)))
    obs = torch.from_numpy(observations(spec, 8))
    rng = np.random.default_rng(4)
    if action_spec.kind == "discrete":
        action = torch.from_numpy(rng.integers(0, 3, 8))
    else:
        action = torch.from_numpy(rng.standard_normal((8, 2)).astype(np.float32))
    return flat, obs, action, learned


def test_gradient_matches_the_modules():
    flat, obs, action, learned = learning_problem(nets.Net, obs_spec(4), DISCRETE)
    grad, value = torch.func.grad_and_value(policy_loss)(flat, obs, action, learned)
    module = nets.Net((4,), 3)
    module.load_state_dict(learned.layout.unpack(flat))
    head, module_value = module(obs)
    distribution = torch.distributions.Categorical(logits=head)
    expected = module_value.square().mean() - distribution.log_prob(action).mean()
    expected = expected - 0.1 * distribution.entropy().mean()
    expected.backward()
    torch.testing.assert_close(value, expected.detach())
    for name, part in learned.layout.unpack(grad).items():
        torch.testing.assert_close(part, module.get_parameter(name).grad)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
@pytest.mark.parametrize(
    ("net", "spec", "action_spec"),
    [
        (nets.Net, obs_spec(4), BOX),
        (nets.Images, IMAGES, DISCRETE),
        (nets.WithConstants, obs_spec(4), BOX),
    ],
)
def test_eager_and_compiled_learn_the_same(net, spec, action_spec):
    flat, *batch = learning_problem(net, spec, action_spec)

    def step(flat, *batch):
        grad, value = torch.func.grad_and_value(policy_loss)(flat, *batch)
        flat.sub_(grad, alpha=0.05)
        return value

    compiled = torch.compile(step, fullgraph=True, dynamic=False, options={"cpp_wrapper": True})
    slow, fast = flat.clone(), flat.clone()
    for _ in range(20):
        torch.testing.assert_close(compiled(fast, *batch), step(slow, *batch), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(fast, slow, rtol=1e-3, atol=1e-4)
    assert not torch.allclose(slow, flat, atol=1e-3)


@pytest.mark.parametrize("kind", SPECS)
@pytest.mark.parametrize(
    "factory", ["tests.policies.nets:Net", "tests.policies.nets:make_net", nets.Net, nets.make_net]
)
def test_json_round_trip(kind, factory):
    network = make_network(factory, obs_spec(4), SPECS[kind])
    fields = json.loads(json.dumps(network.to_json()))
    assert fields["body"]["name"] == (
        factory if isinstance(factory, str) else f"tests.policies.nets:{factory.__name__}"
    )
    again = network_from_json(fields)
    assert again == network
    assert again.parameter_shapes() == network.parameter_shapes()
    params = network.initial_parameters(1)
    obs = observations(network.obs_spec, 3)
    heads = [ActingPolicy(n, PolicySnapshot(0, params)).head(obs) for n in (network, again)]
    np.testing.assert_array_equal(*heads)


def test_networks_that_cannot_be_imported_are_refused():
    class Local(nets.Net):
        pass

    for factory, name in (
        (Local, "<locals>.Local"),
        (lambda *args: nets.Net(*args), "<lambda>"),
        (functools.partial(nets.Net), "partial"),
    ):
        network = make_network(factory, obs_spec(4), DISCRETE)  # training works
        with pytest.raises(CheckpointError, match=rf"{name}.*make it importable"):
            network_from_json(network.to_json())
    fields = make_network(nets.Net, obs_spec(4), DISCRETE).to_json()
    for name in ("tests.policies.nets:Gone", "no_such_module:Net"):
        with pytest.raises(CheckpointError, match=f"built again.*{name}"):
            network_from_json({**fields, "body": {**fields["body"], "name": name}})


def test_unknown_names_and_broken_modules(tmp_path, monkeypatch):
    def name(text):
        return lambda: make_network(text, obs_spec(4), DISCRETE)

    for text, error, match in (
        ("Net", UnknownNameError, "write `module:name`, such as `my_nets:Net`"),
        ("tests.policies.nets:Nett", UnknownNameError, "has no 'Nett'; did you mean 'Net'"),
        ("no_such_module:Net", UnknownNameError, "no module 'no_such_module'"),
        ("tests.policies.nets:no_factory", ConfigError, "class or a function.*got a int"),
        ("breaking_nets:Net", ConfigError, r"raised ZeroDivisionError.*\(breaking_nets.py:1\)"),
        ("importing_nets:Net", ConfigError, "raised ModuleNotFoundError.*no_such_module"),
    ):
        (tmp_path / "breaking_nets.py").write_text("1 / 0\n")
        (tmp_path / "importing_nets.py").write_text("import no_such_module\n")
        monkeypatch.syspath_prepend(tmp_path)
        with pytest.raises(error, match=match):
            name(text)()


# --- modules that cannot be trained ------------------------------------------------------------


class BareModule(nn.Module):
    """A module whose methods are replaced."""

    def __init__(self, obs_shape, head_size):
        super().__init__()
        self.linear = nn.Linear(4, head_size + 1)
        self.prepare(head_size)

    def prepare(self, head_size):
        pass

    def forward(self, obs):
        outputs = self.linear(obs)
        return outputs[:, :-1], outputs[:, -1]


SHARED_MODULE = BareModule((4,), 3)


def build(**methods):
    return type("Bad", (BareModule,), methods)


def assign(**attributes):
    """Return a `prepare` that sets new attributes on each module."""

    def prepare(self, head_size):
        for name, make in attributes.items():
            setattr(self, name, make())

    return prepare


def returns(function):
    """Return a module whose outputs are `function(module, logits, value)`."""

    def method(self, obs):
        outputs = self.linear(obs)
        return function(self, outputs[:, :-1], outputs[:, -1])

    return build(forward=method)


def insert(attribute, make):
    """Return a module with `attribute` between observations and its linear layer."""

    def method(self, obs):
        return BareModule.forward(self, getattr(self, attribute)(obs))

    return build(prepare=assign(**{attribute: make}), forward=method)


WITHOUT_STATISTICS = functools.partial(nn.BatchNorm1d, 4, track_running_stats=False)


def spectral():
    return nn.utils.spectral_norm(nn.Linear(4, 4))


def doubles():
    return nn.Parameter(torch.zeros(3).double())


def draw_by_numpy():
    return nn.Parameter(torch.tensor(np.random.default_rng().random(3)).float())


GOT = r"must return \(head, value\), torch.float32 of shapes \(2, 3\) \(logits\) and \(2,\).*got "


@pytest.mark.parametrize(
    ("net", "error", "match"),
    [
        (returns(lambda _, head, value: head), ShapeError, GOT + r"torch.float32 \(2, 3\)"),
        (returns(lambda _, head, value: (value, head)), ShapeError, GOT + r"\(torch.*\(2,\), tor"),
        (returns(lambda _, head, value: (head[:, :2], value)), ShapeError, GOT + r".*\(2, 2\)"),
        (returns(lambda _, head, value: (head.double(), value)), ShapeError, GOT + r".*float64"),
        (returns(lambda _, head, value: (head, value.mean())), ShapeError, GOT + r".*\(\)\)"),
        (returns(lambda _, head, value: (head, None)), ShapeError, GOT + r".*a NoneType"),
        (returns(lambda _, head, value: {"head": head}), ShapeError, GOT + "a dict"),
        (returns(lambda self, head, value: self.gone), ConfigError, "but raised AttributeError"),
        (returns(lambda _, head, value: [head, value[:, None]]), None, ""),
        (returns(lambda _, *x: (x[0], x[1][:, None].squeeze())), ShapeError, "a batch of 1"),
        (returns(lambda _, head, value: (head.softmax(0), value)), ConfigError, "mixes the rows"),
        (insert("norm", lambda: nn.BatchNorm1d(4)), ConfigError, "`norm.running_mean` changes"),
        (insert("norm", WITHOUT_STATISTICS), ConfigError, "than 1 value|mixes the rows"),
        (insert("norm", spectral), ConfigError, "buffer `norm.weight_u` changes"),
        (insert("norm", lambda: nn.BatchNorm1d(4).eval()), None, ""),
        (insert("drop", lambda: nn.Dropout(0.01)), ConfigError, "`drop` is dropout"),
        (insert("drop", lambda: nn.Dropout(0.5).eval()), None, ""),
        (insert("drop", lambda: nn.functional.dropout), ConfigError, "differ between two calls"),
        (build(prepare=lambda self, _: self.double()), ConfigError, "raised RuntimeError"),
        (build(prepare=assign(unused=doubles)), ConfigError, "`unused` is torch.float64 on cpu"),
        (build(prepare=lambda self, _: self.requires_grad_(False)), ConfigError, "no parameter"),
        (build(prepare=assign(w=draw_by_numpy)), ConfigError, "`w` differs between two constr"),
        (lambda *_: 1 / 0, ConfigError, r"raised ZeroDivisionError.*test_user_modules.py"),
        (lambda *_: sys.exit(3), ConfigError, "raised SystemExit: 3"),
        (lambda obs_shape: None, ConfigError, r"obs_shape=\(4,\) and head_size=3 raised TypeError"),
        (lambda obs_shape, head_size: None, ConfigError, "must be a torch.nn.Module, got a NoneTy"),
        (lambda *_: SHARED_MODULE, ConfigError, "same module twice"),
        (SHARED_MODULE, ConfigError, "class or a function that returns a module, got a Bare"),
    ],
)
def test_unsuitable_modules_are_refused(net, error, match):
    with contextlib.nullcontext() if error is None else pytest.raises(error, match=match):
        make_network(net, obs_spec(4), DISCRETE)


def test_parameter_names_of_hotloop_are_reserved():
    class Policy(nn.Module):
        def __init__(self):
            super().__init__()
            self.log_std = nn.Parameter(torch.zeros(3))

    net = build(prepare=assign(policy=Policy))
    make_network(net, obs_spec(4), DISCRETE)
    with pytest.raises(ConfigError, match=r"`policy.log_std` has the name"):
        make_network(net, obs_spec(4), BOX)


def test_error_names_the_users_line():
    net = returns(lambda self, head, value: self.linear(head))
    with pytest.raises(ConfigError, match=r"raised RuntimeError.* \(test_user_modules.py:\d+\)$"):
        make_network(net, obs_spec(4), DISCRETE)


def test_empty_observations_are_refused():
    with pytest.raises(SpaceError, match="observations must hold a number"):
        make_network(nets.Net, obs_spec(0), DISCRETE)


# --- modules of actors and critics ----------------------------------------------------------------

BOUNDED_SPACES = nets.Spaces(obs_spec(2, 3), BOUNDED)
ACTORS = {
    "squashed_gaussian": BOUNDED_SPACES,
    "deterministic": BOUNDED_SPACES,
    "greedy": nets.Spaces(obs_spec(2, 3), DISCRETE),
}


@pytest.mark.parametrize("kind", ACTORS)
def test_actor_module_without_value(kind):
    network = actor(ACTORS[kind], HEADS[kind](), network="tests.policies.nets:ActorNet")
    assert (network.has_value, network.acts_without_torch) == (False, False)
    assert network_from_json(json.loads(json.dumps(network.to_json()))) == network
    params = perturbed(network.initial_parameters(1))
    module = nets.ActorNet((2, 3), network.head_size)
    module.load_state_dict(as_tensors(params))
    obs = observations(network.obs_spec, 5)
    expected = module(torch.from_numpy(obs)).detach()
    learned = LearnedNetwork(network)
    head, value = learned.outputs(learned.layout.pack(params), torch.from_numpy(obs))
    assert value is None
    torch.testing.assert_close(head, expected)
    policy = ActingPolicy(network, PolicySnapshot(0, params))
    np.testing.assert_allclose(policy.head(obs), expected, rtol=1e-5, atol=1e-6)
    params["layers.3.bias"][0] += 1.0
    policy.refresh(1)
    np.testing.assert_allclose(policy.head(obs)[:, 0], expected[:, 0] + 1.0, rtol=1e-5, atol=1e-5)
    if kind != "hybrid":  # which returns a dictionary
        assert TrainedPolicy(policy).act(obs).shape == (5, *network.action_spec.shape)
    with pytest.raises(ConfigError, match="has no value function"):
        TrainedPolicy(policy).value(obs)


def test_critic_modules():
    network = critics(BOUNDED_SPACES, count=3, module=nets.CriticNet)
    names = ["hidden.weight", "hidden.bias", "value.weight", "value.bias"]
    assert [*network.parameter_shapes()] == [f"critic.{k}.{n}" for k in range(3) for n in names]
    learned = LearnedCritics(network)
    params = learned.initial(1)
    assert torch.equal(params, learned.initial(1))
    named = learned.layout.unpack(params)
    weights = [named[f"critic.{k}.hidden.weight"] for k in range(3)]
    assert not torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[1], weights[2])
    assert not torch.equal(learned.initial(2), params)
    actor_weight = actor(BOUNDED_SPACES, Deterministic(), network=nets.ActorNet)
    actor_weight = actor_weight.initial_parameters(1)["layers.1.weight"]
    assert not np.isin(actor_weight, weights[0].numpy()).any()

    obs = torch.from_numpy(observations(BOUNDED_SPACES.obs_spec, 7))
    action = torch.rand(7, 2, generator=torch.Generator().manual_seed(0)) * 2 - 1
    module = nets.CriticNet((2, 3), 2)
    expected = []
    for k in range(3):
        module.load_state_dict({n: named[f"critic.{k}.{n}"] for n in names}, strict=False)
        expected.append(module(obs, action)[:, 0].detach())
    values = learned.values(params, obs, action)
    torch.testing.assert_close(values, torch.stack(expected))
    first = learned.first_values(params, obs, action)
    assert torch.equal(first, values[0])
    grad = torch.func.grad(lambda x: learned.first_values(x, obs, action).sum())(params)
    parts = learned.layout.unpack(grad)
    assert all(parts[name].any() == name.startswith("critic.0.") for name in parts)


class QuantileCritic(nn.Module):
    """Several values of an action."""

    def __init__(self, obs_shape, action_size, num_outputs):
        super().__init__()
        self.linear = nn.Linear(math.prod(obs_shape) + action_size, num_outputs)

    def forward(self, obs, action):
        return self.linear(torch.cat([obs.flatten(1), action], 1))


def test_critic_modules_with_several_outputs():
    learned = LearnedCritics(critics(BOUNDED_SPACES, count=3, num_outputs=4, module=QuantileCritic))
    params = learned.initial(1)
    obs = torch.from_numpy(observations(BOUNDED_SPACES.obs_spec, 7))
    action = torch.rand(7, 2, generator=torch.Generator().manual_seed(0)) * 2 - 1
    named, inputs = learned.layout.unpack(params), torch.cat([obs.flatten(1), action], 1)
    expected = [
        torch.nn.functional.linear(
            inputs, named[f"critic.{k}.linear.weight"], named[f"critic.{k}.linear.bias"]
        )
        for k in range(3)
    ]
    values = learned.values(params, obs, action)
    torch.testing.assert_close(values, torch.stack(expected))
    assert torch.equal(learned.first_values(params, obs, action), values[0])
    with pytest.raises(ShapeError, match=r"must return values, torch.float32 of shape \(2, 3\)"):
        critics(
            BOUNDED_SPACES, num_outputs=3, module=lambda obs, size, _: QuantileCritic(obs, size, 4)
        )


class BareCritic(nn.Module):
    """A critic whose output is replaced."""

    def __init__(self, obs_shape, action_size):
        super().__init__()
        self.linear = nn.Linear(math.prod(obs_shape) + action_size, 1)

    def forward(self, obs, action):
        return self.change(self.linear(torch.cat([obs.flatten(1), action], 1)))


def bad_critic(change):
    return type("Bad", (BareCritic,), {"change": lambda self, value: change(value)})


def bad_actor(change):
    return type("Bad", (BareActor,), {"change": lambda self, head: change(head)})


class BareActor(nn.Module):
    def __init__(self, obs_shape, head_size):
        super().__init__()
        self.linear = nn.Linear(math.prod(obs_shape), head_size)

    def forward(self, obs):
        return self.change(self.linear(obs.flatten(1)))


VALUE = r"must return value, torch.float32 of shape \(2,\), for a batch of 2 observations of shape "
VALUE += r"\(2, 3\) and actions of shape \(2,\), got "
HEAD = (
    r"must return head, torch.float32 of shape \(2, 3\) \(the value of each action\), for a .*got "
)


RAISES = r"must take observations of shape \(2, 2, 3\), torch.float32, and actions of shape \(2, 2"


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        (lambda x: x, None, ""),
        (lambda x: x[:, 0], None, ""),
        (lambda x: x.double(), ShapeError, VALUE + r"torch.float64 \(2, 1\)"),
        (lambda x: (x, x), ShapeError, VALUE + r"\(torch.float32 \(2, 1\), torch"),
        (lambda x: x.softmax(0), ConfigError, "mixes the rows"),
        (lambda x: x + torch.rand(()), ConfigError, "differ between two calls"),
        (lambda x: x.gone, ConfigError, RAISES + r"\), torch.float32, but raised AttributeError"),
    ],
)
def test_unsuitable_critic_modules_are_refused(change, error, match):
    with contextlib.nullcontext() if error is None else pytest.raises(error, match=match):
        critics(BOUNDED_SPACES, module=bad_critic(change))


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        (lambda x: x, None, ""),
        (lambda x: (x, x[:, 0]), ShapeError, HEAD + r"\(torch.float32 \(2, 3\), torch"),
        (lambda x: [x], ShapeError, HEAD + r"\(torch.float32 \(2, 3\)\)"),
        (lambda x: x[:, :2], ShapeError, HEAD + r"torch.float32 \(2, 2\)"),
        (lambda x: x.gone, ConfigError, r"shape \(2, 2, 3\), torch.float32, but raised Attribute"),
    ],
)
def test_unsuitable_actor_modules_are_refused(change, error, match):
    with contextlib.nullcontext() if error is None else pytest.raises(error, match=match):
        actor(ACTORS["greedy"], Greedy(), network=bad_actor(change))


@pytest.mark.parametrize("size", ["head_size=3", "action_size=2"])
def test_actors_and_critics_refuse_the_same_modules(size):
    def build(module):
        if size == "head_size=3":
            return actor(ACTORS["greedy"], Greedy(), network=module)
        return critics(BOUNDED_SPACES, module=module)

    make_module = bad_actor if size == "head_size=3" else bad_critic
    shared_module = make_module(lambda x: x)((2, 3), int(size[-1]))
    for module, error, match in (
        (lambda *_: shared_module, ConfigError, "same module twice"),
        (shared_module, ConfigError, "class or a function that returns a module, got a Bad"),
        (lambda obs_shape, size: None, ConfigError, "must be a torch.nn.Module, got a NoneType"),
        (lambda shape: None, ConfigError, rf"obs_shape=\(2, 3\) and {size} raised TypeError"),
        ("tests.policies.nets:Gone", UnknownNameError, "has no 'Gone'"),
    ):
        with pytest.raises(error, match=match):
            build(module)


def test_dueling_head_refuses_modules():
    with pytest.raises(ConfigError, match="this head needs hotloop's layers, but a custom module"):
        actor(ACTORS["greedy"], Dueling(), network=nets.ActorNet)


@pytest.mark.parametrize(
    "device", ["cpu:0", pytest.param("cuda", marks=pytest.mark.gpu)]
)  # named `cpu:0`, the host counts as a device
@pytest.mark.parametrize("kind", [None, "gru:4"])
def test_acting_on_another_device_gives_the_same_outputs(device, kind):
    net = actor_critic(nets.Spaces(IMAGES, DISCRETE), network="impala", memory=kind)
    first, second = (perturbed(net.initial_parameters(seed)) for seed in (1, 2))
    host_policy = ActingPolicy(net, PolicySnapshot(1, first))
    device_policy = ActingPolicy(net, PolicySnapshot(1, first), device=device)
    tolerance = {"rtol": 0, "atol": 0} if device == "cpu:0" else {"rtol": 1e-4, "atol": 1e-4}
    for version, params in ((1, first), (2, second)):
        for policy in (host_policy, device_policy):
            policy.load(PolicySnapshot(version, params))
        for count in (3, 5):
            obs = observations(IMAGES, count)
            memories = [policy.new_memory(count) for policy in (host_policy, device_policy)]
            acting = zip((host_policy, device_policy), memories, strict=True)
            outputs = [policy.head_and_value(obs, None, memory) for policy, memory in acting]
            for host_output, device_output in zip(*outputs, strict=True):
                np.testing.assert_allclose(device_output, host_output, **tolerance)
            if kind is not None:
                np.testing.assert_allclose(*memories, **tolerance)
