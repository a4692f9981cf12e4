"""Learned networks compared with acting policies and with torch's modules."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import distributions

from hotloop.errors import ConfigError
from hotloop.policies import ActingPolicy, PolicySnapshot, actor, actor_critic
from hotloop.policies.forward import LearnedCritics, LearnedNetwork
from hotloop.policies.heads import HEADS
from hotloop.policies.heads.bounded import SquashedGaussian, bounded_log_std
from tests.policies.nets import ActorNet, CriticNet, Net, Spaces
from tests.policies.test_actors import BOUNDED, KINDS, make_actor, make_critics
from tests.policies.test_policies import DISCRETE, SPECS, obs_spec


def random_params(shapes, seed=0, scale=0.5):
    generator = np.random.default_rng(seed)
    return {
        name: (scale * generator.standard_normal(shape)).astype(np.float32)
        for name, shape in shapes.items()
    }


def squash(head, noise):
    """Return unit actions and log-densities for head outputs, (B, 2A)."""
    return SquashedGaussian().bind(BOUNDED).sample(head, noise)


@pytest.mark.parametrize(
    ("kind", "hidden_sizes"),
    [
        (kind, sizes)
        for kind in KINDS
        for sizes in [(), (16,), (16, 8, 4)]
        if sizes or not kind.startswith("dueling")  # dueling streams need a hidden layer
    ],
)
@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("dtype", ["float32", "uint8"])
def test_acting_matches_learning(kind, activation, hidden_sizes, dtype):
    actor = replace(
        make_actor(kind, activation=activation, hidden_sizes=hidden_sizes),
        obs_spec=obs_spec(2, 3, dtype=dtype),
    )
    params = random_params(actor.parameter_shapes())
    policy = ActingPolicy(actor, PolicySnapshot(0, params))
    obs = np.random.default_rng(1).normal(3.0, 2.0, (7, 2, 3)).clip(0).astype(dtype)
    learned = LearnedNetwork(actor)
    head, value = learned.outputs(learned.layout.pack(params), torch.from_numpy(obs))
    assert value is None
    assert head.dtype == torch.float32
    assert head.shape == (7, actor.head_size)
    np.testing.assert_allclose(policy.head(obs), head, rtol=1e-4, atol=1e-5)
    assert head.std(0).min() > 0.05


def test_squashed_gaussian_samples_match_learning():
    """NumPy and torch map the same noise to the same action."""
    actor = make_actor("squashed_gaussian")
    head = actor.head
    values = np.random.default_rng(0).normal(0.0, 1.5, (50, 4)).astype(np.float32)
    noise = head.draw_noise(3, first_step=0, num_steps=1, num_envs=50)[0]
    action = np.empty((50, 2, 1), np.float32)
    head.choose(values, noise, action, {})
    unit, _ = squash(torch.from_numpy(values), torch.from_numpy(noise[:, :2]))
    actual = LearnedNetwork(actor).unit_action(torch.from_numpy(action))
    np.testing.assert_allclose(actual, unit, rtol=1e-4, atol=2e-6)


def torch_distribution(head):
    """Return torch's normal distribution transformed by tanh, in float64."""
    mean, raw = head.double().chunk(2, -1)
    std = torch.from_numpy(np.exp(bounded_log_std(raw.numpy())))
    normal = distributions.Normal(mean, std)
    law = distributions.TransformedDistribution(normal, [distributions.TanhTransform(cache_size=1)])
    return distributions.Independent(law, 1), mean, std


def test_density_matches_torchs():
    generator = torch.Generator().manual_seed(0)
    head = torch.randn(2000, 6, generator=generator)
    noise = torch.randn(2000, 3, generator=generator)
    unit, log_prob = squash(head, noise)
    distribution, mean, std = torch_distribution(head)
    expected = torch.tanh(mean + std * noise.double())
    torch.testing.assert_close(unit.double(), expected, rtol=1e-4, atol=1e-6)
    # Compare at the same point: `arctanh` of a float32 close to ±1 gives another one.
    normal = distribution.base_dist.base_dist.log_prob(mean + std * noise.double())
    slope = torch.log1p(-expected.square())
    is_inside = expected.abs().amax(-1) < 0.999
    assert 500 < is_inside.sum() < 2000
    torch.testing.assert_close(
        log_prob[is_inside].double(),
        distribution.log_prob(expected)[is_inside],
        rtol=1e-4,
        atol=1e-4,
    )
    torch.testing.assert_close(
        log_prob[is_inside].double(), (normal - slope).sum(-1)[is_inside], rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("mean", [-30.0, -12.0, -6.0, 6.0, 12.0, 30.0])
def test_density_is_accurate_near_the_bounds(mean):
    """log(1 − tanh² x) = 2 log 2 − 2|x| − 2 log(1 + exp(−2|x|)) is finite where 1 − u² is 0."""
    head = torch.tensor([[mean, 0.0]], requires_grad=True)  # σ = exp(−1.5)
    noise = torch.tensor([[0.5]])
    unit, log_prob = squash(head, noise)
    sigma = math.exp(-1.5)
    x = abs(mean + 0.5 * sigma)
    slope = 2 * math.log(2) - 2 * x - 2 * math.log1p(math.exp(-2 * x))
    expected = -0.125 + 1.5 - 0.5 * math.log(2 * math.pi) - slope
    assert log_prob.item() == pytest.approx(expected, rel=1e-5)
    assert abs(unit.item()) <= 1.0
    (grad,) = torch.autograd.grad(log_prob.sum(), head)
    # ∂/∂μ = 2 tanh x: the noise is fixed.
    assert grad[0, 0].item() == pytest.approx(2 * math.tanh(mean + 0.5 * sigma), rel=1e-5)
    assert grad.isfinite().all()


def test_density_integrates_to_one():
    """Integrate over a grid of one action: ∫ exp(log π(u)) du = 1."""
    u = torch.linspace(-0.9999, 0.9999, 20_001, dtype=torch.float64)
    head = torch.tensor([[0.4, 0.1]]).repeat(len(u), 1)
    sigma = math.exp(-1.5 + 3.5 * math.tanh(0.1))
    noise = ((torch.atanh(u) - 0.4) / sigma).float()[:, None]
    unit, log_prob = squash(head, noise)
    torch.testing.assert_close(unit[:, 0].double(), u, rtol=0, atol=1e-6)
    assert torch.trapezoid(log_prob.double().exp(), u).item() == pytest.approx(1.0, abs=2e-3)


def test_unit_actions():
    actor = make_actor("deterministic")  # −0.5 … 0.5 and 1 … 4
    action = torch.tensor([[[0.5], [1.0]], [[0.0], [4.0]], [[-0.25], [2.5]]])
    expected = torch.tensor([[1.0, -1.0], [0.0, 1.0], [-0.5, 0.0]])
    torch.testing.assert_close(LearnedNetwork(actor).unit_action(action), expected)
    plain = replace(actor, action_spec=replace(BOUNDED, low=(-1.0, -1.0), high=(1.0, 1.0)))
    torch.testing.assert_close(LearnedNetwork(plain).unit_action(action), action.flatten(1))
    upper = replace(actor, action_spec=replace(BOUNDED, low=(-1.0, -1.0), high=(1.0, 3.0)))
    expected = torch.tensor([[0.5, 0.0], [0.0, 1.5], [-0.25, 0.75]])
    torch.testing.assert_close(LearnedNetwork(upper).unit_action(action), expected)


def torch_critic(critics, params, k):
    """Return the k-th critic as torch's layers."""
    layers, inputs = [], 5
    for i, width in enumerate((*critics.hidden_sizes, critics.num_outputs)):
        linear = torch.nn.Linear(inputs, width)
        weight, bias = params[f"critic.{i}.weight"], params[f"critic.{i}.bias"]
        if i == 0:
            columns = slice(k * width, (k + 1) * width)
            weight, bias = weight[:, columns], bias[columns]
        else:
            weight, bias = weight[k], bias[k, 0]
        linear.weight.data, linear.bias.data = weight.T.contiguous(), bias.clone()
        layers.append(linear)
        if i < len(critics.hidden_sizes):
            if critics.layer_norm:
                norm = torch.nn.LayerNorm(width)
                norm.weight.data = params[f"critic.{i}.scale"][k, 0]
                norm.bias.data = params[f"critic.{i}.shift"][k, 0]
                layers.append(norm)
            layers.append(torch.nn.ReLU())
        inputs = width
    return torch.nn.Sequential(*layers)


@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize(("count", "num_outputs"), [(1, 1), (2, 1), (3, 1), (1, 4), (5, 4)])
@pytest.mark.parametrize("hidden_sizes", [(16,), (16, 8, 12)])
def test_stacked_critics_match_separate_perceptrons(layer_norm, count, num_outputs, hidden_sizes):
    sizes = {"hidden_sizes": hidden_sizes, "count": count, "num_outputs": num_outputs}
    critics = make_critics(5, layer_norm=layer_norm, **sizes)
    learned = LearnedCritics(critics)
    flat = learned.layout.pack(random_params(critics.parameter_shapes())).requires_grad_()
    params = learned.layout.unpack(flat.detach())
    inputs = torch.randn(7, 5, generator=torch.Generator().manual_seed(1))
    actual = learned.values(flat, inputs[:, :3], inputs[:, 3:])
    assert actual.shape == ((count, 7) if num_outputs == 1 else (count, 7, num_outputs))
    separate = [torch_critic(critics, params, k) for k in range(count)]
    expected = torch.stack([critic(inputs) for critic in separate]).view(actual.shape)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
    # Gradients match too. Each critic has its own loss weights.
    loss_weights = torch.arange(1.0, 1.0 + actual.numel()).view(actual.shape)
    (flat_grad,) = torch.autograd.grad((actual * loss_weights).sum(), flat)
    grads = learned.layout.unpack(flat_grad)
    (expected * loss_weights).sum().backward()
    for k, critic in enumerate(separate):
        linears = [layer for layer in critic if isinstance(layer, torch.nn.Linear)]
        for i, linear in enumerate(linears):
            grad = grads[f"critic.{i}.weight"]
            columns = slice(k * linear.out_features, (k + 1) * linear.out_features)
            grad = grad[k] if i else grad[:, columns]
            torch.testing.assert_close(grad, linear.weight.grad.T, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("layer_norm", "num_outputs"), [(False, 1), (True, 1), (False, 4)])
def test_first_values(layer_norm, num_outputs):
    sizes = {"hidden_sizes": (16, 8), "count": 3, "num_outputs": num_outputs}
    critics = make_critics(5, layer_norm=layer_norm, **sizes)
    learned = LearnedCritics(critics)
    flat = learned.layout.pack(random_params(critics.parameter_shapes())).requires_grad_()
    inputs = torch.randn(7, 5, generator=torch.Generator().manual_seed(1))
    all_values = learned.values(flat, inputs[:, :3], inputs[:, 3:])
    actual = learned.first_values(flat, inputs[:, :3], inputs[:, 3:])
    torch.testing.assert_close(actual, all_values[0], rtol=1e-5, atol=1e-6)
    (grad,) = torch.autograd.grad(actual.sum(), flat)
    for name, part in learned.layout.unpack(grad).items():
        first_grad, other_grads = (
            (part[..., : part.shape[-1] // 3], part[..., part.shape[-1] // 3 :])
            if name in ("critic.0.weight", "critic.0.bias")
            else (part[0], part[1:])
        )
        assert first_grad.any()
        assert not other_grads.any()
    assert not torch.allclose(all_values[0], all_values[1], atol=0.1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_rows", [1, 3])
def test_refresh_applies_changed_parameters(kind, num_rows):
    """Weights and biases change in place, before and after the first computation."""
    actor = make_actor(kind, hidden_sizes=(16, 8))
    flat = {name: x.copy() for name, x in random_params(actor.parameter_shapes()).items()}
    policy = ActingPolicy(actor, PolicySnapshot(0, flat))
    obs = np.random.default_rng(1).standard_normal((num_rows, 2, 3)).astype(np.float32)
    heads = []
    for version in range(1, 4):
        for name, x in random_params(actor.parameter_shapes(), seed=version).items():
            flat[name][...] = x
        policy.refresh(version)
        assert policy.version == version
        actual = policy.head(obs)
        expected = ActingPolicy(actor, PolicySnapshot(0, dict(flat))).head(obs)
        np.testing.assert_array_equal(actual, expected)
        heads.append(actual)
    assert not np.allclose(heads[0], heads[1])
    assert not np.allclose(heads[1], heads[2])
    other = np.random.default_rng(2).standard_normal((5, 2, 3)).astype(np.float32)
    expected = ActingPolicy(actor, PolicySnapshot(0, dict(flat))).head(other)
    np.testing.assert_array_equal(policy.head(other), expected)


@pytest.mark.parametrize("num_rows", [1, 3])
def test_refresh_applies_a_changed_bias(num_rows):
    actor = make_actor("greedy", hidden_sizes=(4,))
    params = {name: np.zeros(x, np.float32) for name, x in actor.parameter_shapes().items()}
    policy = ActingPolicy(actor, PolicySnapshot(0, params))
    obs = np.ones((num_rows, 2, 3), np.float32)
    assert not policy.head(obs).any()
    params["policy.1.bias"][:] = [1.0, 2.0, 3.0]
    policy.refresh(1)
    assert policy.head(obs).tolist() == [[1.0, 2.0, 3.0]] * num_rows


# --- one flat vector ------------------------------------------------------------------------------


def make_composition(name):
    """Return learned networks or critics, and a function that uses their methods."""
    generator = torch.Generator().manual_seed(2)
    obs = torch.randn(9, 4, generator=generator)
    noise = torch.randn(9, 2, generator=generator)
    sampled = {
        "discrete": torch.randint(3, (9,), generator=generator),
        "multi_discrete": torch.randint(2, (9, 2), generator=generator),
        "box": noise,
        "far_box": noise,
        "hybrid": torch.cat([torch.randint(2, (9, 3), generator=generator), noise], 1),
    }
    bounded, discrete = Spaces(obs_spec(4), BOUNDED), Spaces(obs_spec(4), DISCRETE)
    if name.startswith("critics"):
        body = {"critics": {}, "critics module": {"module": CriticNet}}[name]
        learned = LearnedCritics(make_critics(6, **body))
        return learned, lambda params: learned.values(params, obs, noise)
    part, _, variant = name.partition(" ")
    if part in SPECS:
        spaces = Spaces(obs_spec(4), SPECS[part])
        options = {"module": {"network": Net}, "shared": {"shared_trunk": True}}.get(variant, {})
        learned = LearnedNetwork(actor_critic(spaces, **options))
        return learned, lambda params: sum(learned.evaluate(params, obs, sampled[part]))
    options = {"network": ActorNet} if variant else {}
    spaces = bounded if KINDS[part] is BOUNDED else discrete
    learned = LearnedNetwork(actor(spaces, HEADS[part](), **options))
    use = {
        "squashed_gaussian": lambda outputs: sum(
            x.sum() for x in learned.head.sample(outputs, noise)
        ),
        "deterministic": lambda outputs: learned.head.act(outputs),
        "greedy": lambda outputs: outputs,
        "dueling": lambda outputs: outputs,
        "return_distribution": lambda outputs: learned.head.values(outputs),
        "dueling_return_distribution": lambda outputs: learned.head.values(outputs),
    }
    return learned, lambda params: use[part](learned.outputs(params, obs)[0])


COMPOSITIONS = [
    *SPECS,
    *("discrete shared", "box module"),
    *KINDS,
    "deterministic module",
    *("critics", "critics module"),
]


@pytest.mark.parametrize("name", COMPOSITIONS)
def test_compositions_are_traced_as_one_graph(name):
    learned, use = make_composition(name)
    params = learned.initial(3)
    assert (params.shape, params.dtype) == ((learned.num_params,), torch.float32)
    assert torch.equal(params, learned.initial(3))
    assert not torch.equal(params, learned.initial(4))

    def value_and_grad(params):
        grad, value = torch.func.grad_and_value(lambda x: use(x).square().mean())(params)
        return value, grad

    torch.compiler.reset()
    compiled = torch.compile(value_and_grad, fullgraph=True, dynamic=False, backend="eager")
    value, grad = compiled(params)
    expected, expected_grad = value_and_grad(params)
    torch.testing.assert_close(value, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(grad, expected_grad, rtol=1e-3, atol=1e-4)
    # Some gradients are zero: a greedy action does not use log σ.
    assert all(part.isfinite().all() for part in learned.layout.unpack(grad).values())
    assert grad.any()


@pytest.mark.parametrize(
    ("kind", "missing"),
    [
        ("categorical", "unit_action"),
        ("deterministic", "evaluate draw"),
        ("greedy", "evaluate draw unit_action"),
    ],
)
def test_what_a_head_does_not_compute_raises(kind, missing):
    network = make_actor(kind) if kind in KINDS else actor_critic(Spaces(obs_spec(2, 3), DISCRETE))
    learned = LearnedNetwork(network)
    params, obs = learned.initial(0), torch.zeros(5, 2, 3)
    calls = {
        "evaluate": (params, obs, torch.zeros(5, *network.action_spec.shape, dtype=torch.int64)),
        "draw": (params, obs, torch.zeros(5, 3)),
        "unit_action": (torch.zeros(5, 2, 1),),
    }
    for name, args in calls.items():
        if name in missing.split():
            with pytest.raises(ConfigError, match=rf"the head {type(network.head).__name__}\(\) "):
                getattr(learned, name)(*args)
        else:
            getattr(learned, name)(*args)


@pytest.mark.parametrize("num_rows", [1, 3])
def test_refresh_folds_changed_dueling_streams(num_rows):
    """The snapshot holds the streams. Acting follows them instead of a copy of the first fold."""
    network = make_actor("dueling", hidden_sizes=(16, 8))
    params = random_params(network.parameter_shapes())
    policy, learned = ActingPolicy(network, PolicySnapshot(0, params)), LearnedNetwork(network)
    obs = np.random.default_rng(1).standard_normal((num_rows, 2, 3)).astype(np.float32)
    heads = []
    for version in range(1, 4):
        flat = learned.layout.pack(params)
        expected = learned.outputs(flat, torch.from_numpy(obs))[0]
        np.testing.assert_allclose(policy.head(obs), expected, rtol=1e-4, atol=1e-5)
        heads.append(policy.head(obs))
        params["advantage.bias"][0] += 1.0
        params["value.weight"][...] *= -2.0
        policy.refresh(version)
    assert not np.allclose(heads[0], heads[1])
    assert not np.allclose(heads[1], heads[2])


def test_bfloat16_is_close_to_float32():
    """Products of rounded numbers are close to float32's, but not equal."""
    network, critics = make_actor("deterministic", (4,)), make_critics(6)
    obs = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
    exact, rounded = (LearnedNetwork(network, precision=p) for p in ("float32", "bfloat16"))
    params = exact.initial(0)
    exact_action, rounded_action = (
        nets.head.act(nets.outputs(params, obs)[0]) for nets in (exact, rounded)
    )
    torch.testing.assert_close(exact_action, rounded_action, rtol=0, atol=0.02)
    assert not torch.equal(exact_action, rounded_action)
    exact, rounded = (LearnedCritics(critics, precision=p) for p in ("float32", "bfloat16"))
    params = exact.initial(0)
    values = [learned.values(params, obs, exact_action.detach()) for learned in (exact, rounded)]
    torch.testing.assert_close(*values, rtol=0, atol=0.02)
    assert not torch.equal(*values)


def test_precision_is_refused_for_user_modules():
    network = make_actor("deterministic", (4,), network=ActorNet)
    critics = make_critics(6, module=CriticNet)
    for learned_type, module_network in ((LearnedNetwork, network), (LearnedCritics, critics)):
        with pytest.raises(ConfigError, match="`precision` 'bfloat16' is for hotloop's own layers"):
            learned_type(module_network, precision="bfloat16")
