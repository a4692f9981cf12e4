"""What a learner differentiates, beside how a policy acts and beside torch's own modules."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import distributions

from hotloop.errors import ConfigError
from hotloop.policies import ActingPolicy, PolicySnapshot, actor, actor_critic
from hotloop.policies.heads.bounded import SquashedGaussian, log_std_of
from hotloop.policies.learned import LearnedCritics, LearnedNetwork
from tests.policies.nets import ActorNet, CriticNet, Net, Spaces
from tests.policies.test_actors import BOUNDED, KINDS, actor_of, critics_of
from tests.policies.test_policies import DISCRETE, SPECS, obs_spec


def random_params(shapes, seed=0, scale=0.5):
    generator = np.random.default_rng(seed)
    return {
        name: (scale * generator.standard_normal(shape)).astype(np.float32)
        for name, shape in shapes.items()
    }


def squash(head, noise):
    """The draws and densities of a head of outputs, (B, 2A), whatever the actions are."""
    return SquashedGaussian(BOUNDED).sample(head, noise)


@pytest.mark.parametrize(
    ("kind", "hidden_sizes"),
    [
        (kind, sizes)
        for kind in KINDS
        for sizes in [(), (16,), (16, 8, 4)]
        if sizes or kind != "dueling"  # its streams need a hidden layer
    ],
)
@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("dtype", ["float32", "uint8"])
def test_an_actor_acts_as_it_learns(kind, activation, hidden_sizes, dtype):
    actor = replace(
        actor_of(kind, activation=activation, hidden_sizes=hidden_sizes),
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


def test_a_squashed_gaussian_is_drawn_as_it_is_learned():
    """The same noise gives the same action in NumPy and in torch."""
    actor = actor_of("squashed_gaussian")
    head = actor.make_head()
    values = np.random.default_rng(0).normal(0.0, 1.5, (50, 4)).astype(np.float32)
    noise = head.draw_noise(3, first_step=0, num_steps=1, num_envs=50)[0]
    action = np.empty((50, 2, 1), np.float32)
    head.choose(values, noise, action)
    unit, _ = squash(torch.from_numpy(values), torch.from_numpy(noise[:, :2]))
    got = LearnedNetwork(actor).unit_action(torch.from_numpy(action))
    np.testing.assert_allclose(got, unit, rtol=1e-4, atol=2e-6)


def squashed(head):
    """torch's own: a normal distribution that goes through tanh, in float64."""
    mean, raw = head.double().chunk(2, -1)
    std = torch.from_numpy(np.exp(log_std_of(raw.numpy())))
    normal = distributions.Normal(mean, std)
    one = distributions.TransformedDistribution(normal, [distributions.TanhTransform(cache_size=1)])
    return distributions.Independent(one, 1), mean, std


def test_the_density_is_torchs():
    generator = torch.Generator().manual_seed(0)
    head = torch.randn(2000, 6, generator=generator)
    noise = torch.randn(2000, 3, generator=generator)
    unit, log_prob = squash(head, noise)
    distribution, mean, std = squashed(head)
    want = torch.tanh(mean + std * noise.double())
    torch.testing.assert_close(unit.double(), want, rtol=1e-4, atol=1e-6)
    # Of the same point: `arctanh` of a float32 close to ±1 would tell another one.
    before = distribution.base_dist.base_dist.log_prob(mean + std * noise.double())
    slope = torch.log1p(-want.square())
    is_inside = want.abs().amax(-1) < 0.999
    assert 500 < is_inside.sum() < 2000
    torch.testing.assert_close(
        log_prob[is_inside].double(),
        distribution.log_prob(want)[is_inside],
        rtol=1e-4,
        atol=1e-4,
    )
    torch.testing.assert_close(
        log_prob[is_inside].double(), (before - slope).sum(-1)[is_inside], rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("mean", [-30.0, -12.0, -6.0, 6.0, 12.0, 30.0])
def test_the_density_keeps_its_digits_near_the_bounds(mean):
    """log(1 − tanh² x) = 2 log 2 − 2|x| − 2 log(1 + exp(−2|x|)): finite where 1 − u² is 0."""
    head = torch.tensor([[mean, 0.0]], requires_grad=True)  # σ = exp(−1.5)
    noise = torch.tensor([[0.5]])
    unit, log_prob = squash(head, noise)
    sigma = math.exp(-1.5)
    x = abs(mean + 0.5 * sigma)
    slope = 2 * math.log(2) - 2 * x - 2 * math.log1p(math.exp(-2 * x))
    want = -0.125 + 1.5 - 0.5 * math.log(2 * math.pi) - slope
    assert log_prob.item() == pytest.approx(want, rel=1e-5)
    assert abs(unit.item()) <= 1.0
    (grad,) = torch.autograd.grad(log_prob.sum(), head)
    # ∂/∂μ = 2 tanh x: the noise is fixed.
    assert grad[0, 0].item() == pytest.approx(2 * math.tanh(mean + 0.5 * sigma), rel=1e-5)
    assert grad.isfinite().all()


def test_the_density_adds_up_to_one():
    """Over a grid of u, of one action: ∫ exp(log π(u)) du = 1."""
    u = torch.linspace(-0.9999, 0.9999, 20_001, dtype=torch.float64)
    head = torch.tensor([[0.4, 0.1]]).repeat(len(u), 1)
    sigma = math.exp(-1.5 + 3.5 * math.tanh(0.1))
    noise = ((torch.atanh(u) - 0.4) / sigma).float()[:, None]
    unit, log_prob = squash(head, noise)
    torch.testing.assert_close(unit[:, 0].double(), u, rtol=0, atol=1e-6)
    assert torch.trapezoid(log_prob.double().exp(), u).item() == pytest.approx(1.0, abs=2e-3)


def test_unit_actions():
    actor = actor_of("deterministic")  # −0.5 … 0.5 and 1 … 4
    action = torch.tensor([[[0.5], [1.0]], [[0.0], [4.0]], [[-0.25], [2.5]]])
    want = torch.tensor([[1.0, -1.0], [0.0, 1.0], [-0.5, 0.0]])
    torch.testing.assert_close(LearnedNetwork(actor).unit_action(action), want)
    plain = replace(actor, action_spec=replace(BOUNDED, low=(-1.0, -1.0), high=(1.0, 1.0)))
    torch.testing.assert_close(LearnedNetwork(plain).unit_action(action), action.flatten(1))
    upper = replace(actor, action_spec=replace(BOUNDED, low=(-1.0, -1.0), high=(1.0, 3.0)))
    want = torch.tensor([[0.5, 0.0], [0.0, 1.5], [-0.25, 0.75]])
    torch.testing.assert_close(LearnedNetwork(upper).unit_action(action), want)


def one_critic(critics, params, k):
    """The k-th critic as torch's own layers."""
    layers, inputs = [], 5
    for i, width in enumerate((*critics.hidden_sizes, 1)):
        linear = torch.nn.Linear(inputs, width)
        weight, bias = params[f"critic.{i}.weight"], params[f"critic.{i}.bias"]
        if i == 0:
            own = slice(k * width, (k + 1) * width)
            weight, bias = weight[:, own], bias[own]
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
@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("hidden_sizes", [(16,), (16, 8, 12)])
def test_critics_are_perceptrons_of_their_own(layer_norm, count, hidden_sizes):
    critics = critics_of(5, hidden_sizes=hidden_sizes, layer_norm=layer_norm, count=count)
    learned = LearnedCritics(critics)
    flat = learned.layout.pack(random_params(critics.parameter_shapes())).requires_grad_()
    params = learned.layout.unpack(flat.detach())
    inputs = torch.randn(7, 5, generator=torch.Generator().manual_seed(1))
    got = learned.values(flat, inputs[:, :3], inputs[:, 3:])
    assert got.shape == (count, 7)
    alone = [one_critic(critics, params, k) for k in range(count)]
    want = torch.stack([critic(inputs)[:, 0] for critic in alone])
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    # So are the gradients; each critic's loss is another one.
    weigh = torch.arange(1.0, 1.0 + got.numel()).view(got.shape)
    (flat_grad,) = torch.autograd.grad((got * weigh).sum(), flat)
    grads = learned.layout.unpack(flat_grad)
    (want * weigh).sum().backward()
    for k, critic in enumerate(alone):
        linears = [layer for layer in critic if isinstance(layer, torch.nn.Linear)]
        for i, linear in enumerate(linears):
            grad = grads[f"critic.{i}.weight"]
            own = slice(k * linear.out_features, (k + 1) * linear.out_features)
            grad = grad[k] if i else grad[:, own]
            torch.testing.assert_close(grad, linear.weight.grad.T, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("layer_norm", [False, True])
def test_the_first_critic_alone(layer_norm):
    critics = critics_of(5, hidden_sizes=(16, 8), layer_norm=layer_norm, count=3)
    learned = LearnedCritics(critics)
    flat = learned.layout.pack(random_params(critics.parameter_shapes())).requires_grad_()
    inputs = torch.randn(7, 5, generator=torch.Generator().manual_seed(1))
    everyone = learned.values(flat, inputs[:, :3], inputs[:, 3:])
    got = learned.first(flat, inputs[:, :3], inputs[:, 3:])
    torch.testing.assert_close(got, everyone[0], rtol=1e-5, atol=1e-6)
    (grad,) = torch.autograd.grad(got.sum(), flat)
    for name, part in learned.layout.unpack(grad).items():
        own, others = (
            (part[..., : part.shape[-1] // 3], part[..., part.shape[-1] // 3 :])
            if name in ("critic.0.weight", "critic.0.bias")
            else (part[0], part[1:])
        )
        assert own.any()
        assert not others.any()
    assert not torch.allclose(everyone[0], everyone[1], atol=0.1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_rows", [1, 3])
def test_refreshed_policies_act_on_what_their_parameters_have_become(kind, num_rows):
    """Changed in place, weights and biases; before anything was computed, and after."""
    actor = actor_of(kind, hidden_sizes=(16, 8))
    flat = {name: x.copy() for name, x in random_params(actor.parameter_shapes()).items()}
    policy = ActingPolicy(actor, PolicySnapshot(0, flat))
    obs = np.random.default_rng(1).standard_normal((num_rows, 2, 3)).astype(np.float32)
    heads = []
    for version in range(1, 4):
        for name, x in random_params(actor.parameter_shapes(), seed=version).items():
            flat[name][...] = x
        policy.refresh(version)
        assert policy.version == version
        got = policy.head(obs)
        want = ActingPolicy(actor, PolicySnapshot(0, dict(flat))).head(obs)
        np.testing.assert_array_equal(got, want)
        heads.append(got)
    assert not np.allclose(heads[0], heads[1])
    assert not np.allclose(heads[1], heads[2])
    other = np.random.default_rng(2).standard_normal((5, 2, 3)).astype(np.float32)
    want = ActingPolicy(actor, PolicySnapshot(0, dict(flat))).head(other)
    np.testing.assert_array_equal(policy.head(other), want)


@pytest.mark.parametrize("num_rows", [1, 3])
def test_a_bias_alone_is_refreshed(num_rows):
    actor = actor_of("greedy", hidden_sizes=(4,))
    params = {name: np.zeros(x, np.float32) for name, x in actor.parameter_shapes().items()}
    policy = ActingPolicy(actor, PolicySnapshot(0, params))
    obs = np.ones((num_rows, 2, 3), np.float32)
    assert not policy.head(obs).any()
    params["policy.1.bias"][:] = [1.0, 2.0, 3.0]
    policy.refresh(1)
    assert policy.head(obs).tolist() == [[1.0, 2.0, 3.0]] * num_rows


# --- one flat vector ------------------------------------------------------------------------------


def composition(name):
    """A learned network or critics, and a function of its parameters that uses what it can do."""
    generator = torch.Generator().manual_seed(2)
    obs = torch.randn(9, 4, generator=generator)
    noise = torch.randn(9, 2, generator=generator)
    drawn = {
        "discrete": torch.randint(3, (9,), generator=generator),
        "multi_discrete": torch.randint(2, (9, 2), generator=generator),
        "box": noise,
    }
    bounded, discrete = Spaces(obs_spec(4), BOUNDED), Spaces(obs_spec(4), DISCRETE)
    if name.startswith("critics"):
        body = {"critics": {}, "critics module": {"module": CriticNet}}[name]
        learned = LearnedCritics(critics_of(6, **body))
        return learned, lambda params: learned.values(params, obs, noise)
    part, _, own = name.partition(" ")
    if part in SPECS:
        spaces = Spaces(obs_spec(4), SPECS[part])
        options = {"module": {"network": Net}, "shared": {"shared_trunk": True}}.get(own, {})
        learned = LearnedNetwork(actor_critic(spaces, **options))
        return learned, lambda params: sum(learned.evaluate(params, obs, drawn[part]))
    options = {"network": ActorNet} if own else {}
    spaces = bounded if KINDS[part] is BOUNDED else discrete
    learned = LearnedNetwork(actor(spaces, part, **options))
    use = {
        "squashed_gaussian": lambda params: sum(
            x.sum() for x in learned.sample(params, obs, noise)
        ),
        "deterministic": lambda params: learned.act(params, obs),
        "greedy": lambda params: learned.values(params, obs),
        "dueling": lambda params: learned.values(params, obs),
    }
    return learned, use[part]


COMPOSITIONS = [
    *SPECS,
    *("discrete shared", "box module"),
    *KINDS,
    "deterministic module",
    *("critics", "critics module"),
]


@pytest.mark.parametrize("name", COMPOSITIONS)
def test_every_composition_is_traced_as_one_graph(name):
    learned, use = composition(name)
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
    want, want_grad = value_and_grad(params)
    torch.testing.assert_close(value, want, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(grad, want_grad, rtol=1e-3, atol=1e-4)
    # All is learned but what a head does not use here: the logarithm of a greedy action's spread.
    assert all(part.isfinite().all() for part in learned.layout.unpack(grad).values())
    assert grad.any()


@pytest.mark.parametrize(
    ("kind", "can"),
    [
        ("categorical", ["outputs", "evaluate", "draw"]),
        ("squashed_gaussian", ["outputs", "sample", "unit_action"]),
        ("deterministic", ["outputs", "act", "unit_action"]),
        ("greedy", ["outputs", "values"]),
        ("dueling", ["outputs", "values"]),
    ],
)
def test_what_a_head_cannot_do_is_said(kind, can):
    network = actor_of(kind) if kind in KINDS else actor_critic(Spaces(obs_spec(2, 3), DISCRETE))
    learned = LearnedNetwork(network)
    params, obs = learned.initial(0), torch.zeros(5, 2, 3)
    arguments = {
        "evaluate": (params, obs, torch.zeros(5, dtype=torch.int64)),
        "draw": (params, obs, torch.zeros(5, 3)),
        "sample": (params, obs, torch.zeros(5, 2)),
        "act": (params, obs),
        "values": (params, obs),
        "unit_action": (torch.zeros(5, 2, 1),),
    }
    said = ", ".join(f"`{name}`" for name in can)
    for name, given in arguments.items():
        if name in can:
            getattr(learned, name)(*given)
            continue
        with pytest.raises(ConfigError, match=f"head '{kind}' can't `{name}`, it can {said}: "):
            getattr(learned, name)(*given)


@pytest.mark.parametrize("num_rows", [1, 3])
def test_dueling_streams_changed_in_place_are_folded_again(num_rows):
    """The snapshot holds the streams, and acting follows them, not a copy of the first fold."""
    network = actor_of("dueling", hidden_sizes=(16, 8))
    params = random_params(network.parameter_shapes())
    policy, learned = ActingPolicy(network, PolicySnapshot(0, params)), LearnedNetwork(network)
    obs = np.random.default_rng(1).standard_normal((num_rows, 2, 3)).astype(np.float32)
    heads = []
    for version in range(1, 4):
        flat = learned.layout.pack(params)
        want = learned.values(flat, torch.from_numpy(obs))
        np.testing.assert_allclose(policy.head(obs), want, rtol=1e-4, atol=1e-5)
        heads.append(policy.head(obs))
        params["advantage.bias"][0] += 1.0
        params["value.weight"][...] *= -2.0
        policy.refresh(version)
    assert not np.allclose(heads[0], heads[1])
    assert not np.allclose(heads[1], heads[2])


def test_bfloat16_rounds_and_learns_alike():
    """Products of rounded numbers: near float32's, and not the same."""
    network, critics = actor_of("deterministic", (4,)), critics_of(6)
    obs = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
    exact, rounded = (LearnedNetwork(network, precision=p) for p in ("float32", "bfloat16"))
    params = exact.initial(0)
    one, other = exact.act(params, obs), rounded.act(params, obs)
    torch.testing.assert_close(one, other, rtol=0, atol=0.02)
    assert not torch.equal(one, other)
    exact, rounded = (LearnedCritics(critics, precision=p) for p in ("float32", "bfloat16"))
    params = exact.initial(0)
    values = [each.values(params, obs, one.detach()) for each in (exact, rounded)]
    torch.testing.assert_close(*values, rtol=0, atol=0.02)
    assert not torch.equal(*values)


def test_each_precision_is_of_hotloops_own_layers():
    network = actor_of("deterministic", (4,), network=ActorNet)
    critics = critics_of(6, module=CriticNet)
    for learn, what in ((LearnedNetwork, network), (LearnedCritics, critics)):
        with pytest.raises(ConfigError, match="`precision` 'bfloat16' is of hotloop's own layers"):
            learn(what, precision="bfloat16")
