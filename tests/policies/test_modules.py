import functools
import json
import shutil

import numpy as np
import pytest
import torch
from torch import nn

from hotloop.errors import (
    CheckpointError,
    ConfigError,
    ShapeError,
    SpaceError,
    UnknownNameError,
)
from hotloop.learner import ParameterLayout, value_and_grad
from hotloop.policies import (
    ActingPolicy,
    ObsScale,
    PolicySnapshot,
    make_network,
    network_from_json,
    networks,
)
from tests.policies import nets
from tests.policies.test_policies import BOX, DISCRETE, SPECS, obs_spec

IMAGES = obs_spec(9, 9, 3, dtype="uint8")


def observations(spec, *leading):
    rng = np.random.default_rng(1)
    if spec.dtype == "uint8":
        return rng.integers(0, 256, (*leading, *spec.shape), np.uint8)
    return rng.standard_normal((*leading, *spec.shape)).astype(np.float32)


def as_tensors(params):
    return {name: torch.from_numpy(array) for name, array in params.items()}


def moved(params):
    """Parameters that learning has moved from the start."""
    rng = np.random.default_rng(2)
    return {k: x + 0.1 * rng.standard_normal(x.shape).astype(np.float32) for k, x in params.items()}


@pytest.mark.parametrize("kind", SPECS)
@pytest.mark.parametrize(
    ("net", "spec"),
    [(nets.Net, obs_spec(2, 3)), (nets.Images, IMAGES), (nets.WithConstants, obs_spec(4))],
)
def test_a_module_is_itself_wherever_it_runs(kind, net, spec):
    network = make_network(net, spec, SPECS[kind])
    params = moved(network.initial_parameters(1))
    assert {name: x.shape for name, x in params.items()} == network.parameter_shapes()
    assert all(x.dtype == np.float32 for x in params.values())
    assert ("policy.log_std" in params) == (kind == "box")

    # What hotloop makes for its checks has seed 0, and constants come from there.
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = net(spec.shape, network.head_size)
        module(torch.zeros(1, *spec.shape, dtype=getattr(torch, spec.dtype)))
    own = {name: x for name, x in as_tensors(params).items() if name != "policy.log_std"}
    assert {name for name, _ in module.named_parameters()} >= own.keys()
    module.load_state_dict(own, strict=False)
    obs = observations(spec, 5)
    with torch.no_grad():
        want_head, want_value = module(torch.from_numpy(obs))
    want_value = want_value.flatten()

    head, value = networks.forward(network, as_tensors(params), torch.from_numpy(obs))
    torch.testing.assert_close(head, want_head)
    torch.testing.assert_close(value, want_value)
    policy = ActingPolicy(network, PolicySnapshot(0, network.initial_parameters(1)))
    assert not np.allclose(policy.head(obs), want_head)
    policy.load(PolicySnapshot(1, params))
    out = np.empty((5, network.head_size), np.float32)
    assert policy.head(obs, out) is out
    np.testing.assert_allclose(out, want_head, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(policy.value(obs), want_value, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(policy.head(obs[:2]), want_head[:2], rtol=1e-4, atol=1e-6)
    assert policy.scaled(obs) is obs
    assert policy.act(obs).shape == (5, *network.action_spec.shape)
    noise = policy.draw_noise(0, first_step=0, num_steps=1, num_envs=5)[0]
    action = np.empty((5, *network.action_spec.shape), network.action_spec.dtype)
    policy.choose(out, noise, action)
    log_prob, _ = networks.log_prob_and_entropy(
        network, as_tensors(params), head, torch.from_numpy(action)
    )
    got = policy.log_prob(out[None], noise[None], action[None])[0]
    np.testing.assert_allclose(got, log_prob.detach(), rtol=1e-4, atol=1e-5)


def test_observations_of_any_memory_layout():
    network = make_network(nets.Net, obs_spec(4), DISCRETE)
    policy = ActingPolicy(network, PolicySnapshot(0, network.initial_parameters(1)))
    obs = observations(network.obs_spec, 6)
    want = policy.head(obs)
    frozen = obs.copy()
    frozen.flags.writeable = False
    for given in (frozen, obs.astype(np.float64), np.asfortranarray(obs)):
        np.testing.assert_array_equal(policy.head(given), want)
    np.testing.assert_array_equal(policy.head(obs[::-1]), want[::-1])
    first = policy.value(obs)
    kept = first.copy()
    policy.value(-obs)
    np.testing.assert_array_equal(first, kept)


def test_scaled_observations_reach_the_module():
    network = make_network(nets.Net, obs_spec(4), DISCRETE)
    params = network.initial_parameters(1)
    scale = ObsScale(np.full(4, 2.0, np.float32), np.full(4, 3.0, np.float32), clip=1.0)
    plain = ActingPolicy(network, PolicySnapshot(0, params))
    scaled = ActingPolicy(network, PolicySnapshot(0, params, scale))
    obs = 4 * observations(network.obs_spec, 6)
    np.testing.assert_array_equal(scaled.head(obs), plain.head(scale.apply(obs)))
    np.testing.assert_array_equal(scaled.value(obs), plain.value(scale.apply(obs)))


def test_scaled_bytes_are_float32():
    def forward(self, obs):
        seen.append(obs.dtype)
        return nets.Net.forward(self, obs.float())

    seen = []
    net = type("AnyDtype", (nets.Net,), {"forward": forward})
    network = make_network(net, obs_spec(4, dtype="uint8"), DISCRETE)
    assert set(seen) == {torch.uint8}
    scale = ObsScale(np.full(4, 100.0, np.float32), np.full(4, 50.0, np.float32), clip=1.0)
    policy = ActingPolicy(network, PolicySnapshot(0, network.initial_parameters(1), scale))
    policy.head(np.full((3, 4), 75, np.uint8))
    assert seen[-1] == torch.float32
    assert policy.scaled(np.full((3, 4), 75, np.uint8))[0, 0] == -0.5


def test_the_seed_decides_and_the_global_generator_stays():
    network = make_network(nets.Images, IMAGES, DISCRETE)
    torch.manual_seed(5)
    want = torch.rand(3)
    torch.manual_seed(5)
    one, again, other = (network.initial_parameters(seed) for seed in (1, 1, 2))
    make_network(nets.Net, obs_spec(4), BOX)
    torch.testing.assert_close(torch.rand(3), want)
    assert all(np.array_equal(one[name], again[name]) for name in one)
    assert not np.array_equal(one["conv.weight"], other["conv.weight"])
    assert not np.array_equal(one["policy.weight"], other["policy.weight"])  # a lazy one


def loss(flat, obs, action, network, layout):
    named = layout.unpack(flat)
    head, value = networks.forward(network, named, obs)
    log_prob, entropy = networks.log_prob_and_entropy(network, named, head, action)
    total = value.square().mean() - log_prob.mean() - 0.1 * entropy.mean()
    return total, value.detach()


def learning_problem(net, spec, action_spec):
    network = make_network(net, spec, action_spec)
    layout = ParameterLayout(network.parameter_shapes())
    flat = layout.pack(moved(network.initial_parameters(3)))
    obs = torch.from_numpy(observations(spec, 8))
    rng = np.random.default_rng(4)
    if action_spec.kind == "discrete":
        action = torch.from_numpy(rng.integers(0, 3, 8))
    else:
        action = torch.from_numpy(rng.standard_normal((8, 2)).astype(np.float32))
    return flat, obs, action, network, layout


def test_the_gradient_is_that_of_the_module_itself():
    flat, obs, action, network, layout = learning_problem(nets.Net, obs_spec(4), DISCRETE)
    value, _, grad = value_and_grad(loss, flat, obs, action, network, layout)
    module = nets.Net((4,), 3)
    module.load_state_dict(layout.unpack(flat))
    head, v = module(obs)
    distribution = torch.distributions.Categorical(logits=head)
    want = v.square().mean() - distribution.log_prob(action).mean()
    want = want - 0.1 * distribution.entropy().mean()
    want.backward()
    torch.testing.assert_close(value, want.detach())
    for name, part in layout.unpack(grad).items():
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
    flat, *rest = learning_problem(net, spec, action_spec)

    def step(flat, *rest):
        value, aux, grad = value_and_grad(loss, flat, *rest)
        flat.sub_(grad, alpha=0.05)
        return value, aux

    compiled = torch.compile(step, fullgraph=True, dynamic=False, options={"cpp_wrapper": True})
    slow, fast = flat.clone(), flat.clone()
    for _ in range(20):
        torch.testing.assert_close(compiled(fast, *rest), step(slow, *rest), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(fast, slow, rtol=1e-3, atol=1e-4)
    assert not torch.allclose(slow, flat, atol=1e-3)


@pytest.mark.parametrize("kind", SPECS)
@pytest.mark.parametrize(
    "given",
    ["tests.policies.nets:Net", "tests.policies.nets:make_net", nets.Net, nets.make_net],
)
def test_json_round_trip(kind, given):
    network = make_network(given, obs_spec(4), SPECS[kind])
    fields = json.loads(json.dumps(network.to_json()))
    assert fields["network"] == (
        given if isinstance(given, str) else f"tests.policies.nets:{given.__name__}"
    )
    again = network_from_json(fields)
    assert (again.obs_spec, again.action_spec) == (network.obs_spec, network.action_spec)
    assert again.parameter_shapes() == network.parameter_shapes()
    params = network.initial_parameters(1)
    obs = observations(network.obs_spec, 3)
    acted = [ActingPolicy(n, PolicySnapshot(0, params)).head(obs) for n in (network, again)]
    np.testing.assert_array_equal(*acted)


def test_networks_that_cannot_be_imported_again():
    class Local(nets.Net):
        pass

    for factory, name in (
        (Local, "<locals>.Local"),
        (lambda *args: nets.Net(*args), "<lambda>"),
        (functools.partial(nets.Net), "partial"),
    ):
        network = make_network(factory, obs_spec(4), DISCRETE)  # it can be trained
        with pytest.raises(CheckpointError, match=rf"{name}.*make it importable"):
            network_from_json(network.to_json())
    fields = make_network(nets.Net, obs_spec(4), DISCRETE).to_json()
    for name in ("tests.policies.nets:Gone", "no_such_module:Net"):
        with pytest.raises(CheckpointError, match=f"made again.*{name}"):
            network_from_json({**fields, "network": name})


def test_names_that_lead_nowhere(tmp_path, monkeypatch):
    def name(text):
        return lambda: make_network(text, obs_spec(4), DISCRETE)

    for text, error, match in (
        ("Net", UnknownNameError, "write `module:Class`"),
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


# --- modules that can't be trained ------------------------------------------------------------


class Bare(nn.Module):
    """To be given a forward."""

    def __init__(self, obs_shape, head_size):
        super().__init__()
        self.linear = nn.Linear(4, head_size + 1)
        self.prepare(head_size)

    def prepare(self, head_size):
        pass

    def forward(self, obs):
        outputs = self.linear(obs)
        return outputs[:, :-1], outputs[:, -1]


THE_SAME = Bare((4,), 3)


def bare(**methods):
    return type("Bad", (Bare,), methods)


def setting(**attributes):
    """A `prepare` that sets attributes, made anew for each module."""

    def prepare(self, head_size):
        for name, make in attributes.items():
            setattr(self, name, make())

    return prepare


def forward(function):
    """A module whose outputs are `function(module, logits, value)`."""

    def method(self, obs):
        outputs = self.linear(obs)
        return function(self, outputs[:, :-1], outputs[:, -1])

    return bare(forward=method)


def through(attribute, make):
    """A module that has `attribute` between observations and its linear layer."""

    def method(self, obs):
        return Bare.forward(self, getattr(self, attribute)(obs))

    return bare(prepare=setting(**{attribute: make}), forward=method)


GOT = r"must return \(head, value\), torch.float32 of shapes \(2, 3\) \(logits\) and \(2,\).*got "


@pytest.mark.parametrize(
    ("net", "error", "match"),
    [
        (forward(lambda _, head, value: head), ShapeError, GOT + r"torch.float32 \(2, 3\)"),
        (forward(lambda _, head, value: (value, head)), ShapeError, GOT + r"\(torch.*\(2,\), tor"),
        (forward(lambda _, head, value: (head[:, :2], value)), ShapeError, GOT + r".*\(2, 2\)"),
        (forward(lambda _, head, value: (head.double(), value)), ShapeError, GOT + r".*float64"),
        (forward(lambda _, head, value: (head, value.mean())), ShapeError, GOT + r".*\(\)\)"),
        (forward(lambda _, head, value: (head, None)), ShapeError, GOT + r".*a NoneType"),
        (forward(lambda _, head, value: {"head": head}), ShapeError, GOT + "a dict"),
        (forward(lambda self, head, value: self.gone), ConfigError, "but raised AttributeError"),
        (forward(lambda _, head, value: [head, value[:, None]]), None, ""),
        (
            forward(lambda _, head, value: (head, value[:, None].squeeze())),
            ShapeError,
            r"\(1,\), for a batch of 1",
        ),
        (
            through("norm", lambda: nn.BatchNorm1d(4)),
            ConfigError,
            "buffer `norm.running_mean` changes",
        ),
        (
            through("norm", lambda: nn.BatchNorm1d(4, track_running_stats=False)),
            ConfigError,
            "Expected more than 1 value|mixes the rows",
        ),
        (
            through("norm", lambda: nn.utils.spectral_norm(nn.Linear(4, 4))),
            ConfigError,
            "buffer `norm.weight_u` changes",
        ),
        (through("norm", lambda: nn.BatchNorm1d(4).eval()), None, ""),
        (through("drop", lambda: nn.Dropout(0.01)), ConfigError, "`drop` is dropout"),
        (through("drop", lambda: nn.Dropout(0.5).eval()), None, ""),
        (through("drop", lambda: nn.functional.dropout), ConfigError, "something else each time"),
        (forward(lambda _, head, value: (head.softmax(0), value)), ConfigError, "mixes the rows"),
        (bare(prepare=lambda self, _: self.double()), ConfigError, "raised RuntimeError"),
        (
            bare(prepare=setting(unused=lambda: nn.Parameter(torch.zeros(3).double()))),
            ConfigError,
            "must be torch.float32 on the CPU, but `unused` is torch.float64 on cpu",
        ),
        (bare(prepare=lambda self, _: self.requires_grad_(False)), ConfigError, "no parameter"),
        (
            bare(
                prepare=setting(
                    w=lambda: nn.Parameter(torch.tensor(np.random.default_rng().random(3)).float())
                )
            ),
            ConfigError,
            "`w` differs between two constructions: draw from torch's generator",
        ),
        (lambda obs_shape, head_size: 1 / 0, ConfigError, r"raised ZeroDivisionError.*modules.py"),
        (lambda obs_shape: None, ConfigError, r"obs_shape=\(4,\) and head_size=3 raised TypeError"),
        (lambda obs_shape, head_size: None, ConfigError, "must be a torch.nn.Module, got a NoneTy"),
        (lambda *_: THE_SAME, ConfigError, "same module twice"),
        (THE_SAME, ConfigError, "class or a function that makes a module, got a Bare"),
    ],
)
def test_what_each_module_can_be_refused_for(net, error, match):
    if error is None:
        make_network(net, obs_spec(4), DISCRETE)
        return
    with pytest.raises(error, match=match):
        make_network(net, obs_spec(4), DISCRETE)


def test_a_parameter_named_like_ours():
    class Policy(nn.Module):
        def __init__(self):
            super().__init__()
            self.log_std = nn.Parameter(torch.zeros(3))

    net = bare(prepare=setting(policy=Policy))
    make_network(net, obs_spec(4), DISCRETE)
    with pytest.raises(ConfigError, match=r"`policy.log_std` has the name"):
        make_network(net, obs_spec(4), BOX)


def test_the_users_line_is_named_and_not_torchs():
    net = forward(lambda self, head, value: self.linear(head))
    with pytest.raises(ConfigError, match=r"raised RuntimeError: mat1.* \(test_modules.py:\d+\)$"):
        make_network(net, obs_spec(4), DISCRETE)


def test_spaces_without_a_number():
    with pytest.raises(SpaceError, match="observations must hold a number"):
        make_network(nets.Net, obs_spec(0), DISCRETE)


def test_parameters_of_another_network_are_refused():
    network = make_network(nets.Net, obs_spec(4), DISCRETE)
    params = network.initial_parameters(1)
    params["policy.weight"] = params["policy.weight"].T
    with pytest.raises(CheckpointError, match=r"`policy.weight` must have shape \(3, 16\)"):
        ActingPolicy(network, PolicySnapshot(0, params))
