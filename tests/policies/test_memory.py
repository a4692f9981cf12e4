"""Networks with memory: what learns, what acts through torch, what acts without it, exports."""

import importlib.util

import numpy as np
import onnxruntime
import pytest
import torch

from hotloop.envs.spaces import ActionSpec
from hotloop.errors import ConfigError, ShapeError
from hotloop.policies import ActingPolicy, PolicySnapshot, actor_critic
from hotloop.policies.learned import LearnedNetwork
from hotloop.policies.memory import Memory, MemoryTwin, parse_memory
from hotloop.policies.recurrence import step, unroll
from tests.policies.nets import Spaces
from tests.policies.test_policies import BOX, DISCRETE, obs_spec
from tests.reference import memory as reference

KINDS = ["lstm", "gru"]
IMAGES = obs_spec(2, 12, 12, dtype="uint8")


def network(kind, obs=None, action: ActionSpec = DISCRETE):
    spaces = Spaces(obs_spec(3) if obs is None else obs, action)
    return actor_critic(spaces, hidden_sizes=(7,), memory=f"{kind}:5")


def policy_of(net, seed=0):
    return ActingPolicy(net, PolicySnapshot(0, net.initial_parameters(seed)))


@pytest.mark.parametrize("kind", KINDS)
def test_sequences_are_steps_with_resets(kind):
    """Outputs and gradients, beside one environment and one step at a time, in float64."""
    net = network(kind)
    peer = reference.Networks(net.initial_parameters(0), kind)
    generator = torch.Generator().manual_seed(0)
    length, count = 9, 4
    obs = torch.randn(length, count, 3, generator=generator, dtype=torch.float64)
    first = torch.rand(count, net.memory_size, generator=generator, dtype=torch.float64) - 0.5
    begins = torch.rand(length, count, generator=generator) < 0.25
    heads, values = peer.unroll(obs, first, begins)
    factor = torch.randn(heads.shape, generator=generator, dtype=torch.float64)
    loss = (heads * factor).sum() + values.square().sum()
    wanted = torch.autograd.grad(loss, list(peer.named.values()))

    learned = LearnedNetwork(net)
    params = learned.layout.pack(net.initial_parameters(0)).requires_grad_()
    head, value = learned._forward(
        learned.layout.unpack(params),
        obs.float().flatten(0, 1),
        first.float(),
        begins.flatten(),
    )
    close = {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(head, heads.flatten(0, 1).float(), **close)
    torch.testing.assert_close(value, values.flatten().float(), **close)
    loss = (head * factor.float().flatten(0, 1)).sum() + value.square().sum()
    (grad,) = torch.autograd.grad(loss, params)
    named = learned.layout.unpack(grad)
    for (name, _), one in zip(peer.named.items(), wanted, strict=True):
        torch.testing.assert_close(named[name.replace("_", ".")], one.float(), **close, msg=name)


@pytest.mark.parametrize("kind", KINDS)
def test_its_operations_keep_their_contract(kind):
    """As torch checks it of each operation: schema, fakes, gradients."""
    memory = Memory(kind, 4)
    inputs = torch.randn(5, 3, memory.num_gate_values, dtype=torch.float64, requires_grad=True)
    recurrent = torch.randn(4, memory.num_gate_values, dtype=torch.float64, requires_grad=True)
    first, going_on = torch.randn(3, memory.size).double(), torch.ones(5, 3, 1).double()
    operation = getattr(torch.ops.hotloop, kind)
    torch.library.opcheck(operation, (inputs, recurrent, first, going_on))
    begins = torch.zeros(5, 3, dtype=torch.bool)
    begins[2, 1] = True
    assert torch.autograd.gradcheck(
        lambda x, u: unroll(memory, x, u, first, begins), (inputs, recurrent)
    )


@pytest.mark.parametrize("kind", KINDS)
def test_acts_without_torch_as_with_it(kind):
    memory = Memory(kind, 6)
    generator = np.random.default_rng(0)
    shapes = memory.parameter_shapes(3)
    weight, bias = (generator.standard_normal(x).astype(np.float32) for x in shapes.values())
    twin = MemoryTwin(memory)
    twin.load(weight, bias)
    ours = np.zeros((4, memory.size), np.float32)
    theirs = torch.zeros(4, memory.size)
    for k in range(20):
        if k == 10:  # an update in place
            weight *= 0.5
            twin.refresh()
        features = generator.standard_normal((4, 3)).astype(np.float32)
        output = twin.step(features, ours)
        inputs = torch.from_numpy(features @ weight[:3] + bias)
        theirs = step(kind, inputs, torch.from_numpy(weight[3:]), theirs)
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(output, ours[:, :6])


@pytest.mark.parametrize("obs", [None, IMAGES])
@pytest.mark.parametrize("kind", KINDS)
def test_acting_gives_what_is_learned_from(kind, obs):
    net = network(kind, obs)
    assert net.acts_without_torch == (obs is None)
    policy, learned = policy_of(net), LearnedNetwork(net)
    generator = np.random.default_rng(0)
    shape = (6, 2, *net.obs_spec.shape)
    seen = generator.integers(0, 255, shape).astype(net.obs_spec.dtype)
    memory = policy.new_memory(2)
    heads, values = [], []
    for one in seen:
        values.append(policy.value(one, memory))
        heads.append(policy.head(one, None, memory))
    begins = torch.zeros(12, dtype=torch.bool)
    head, value = learned._forward(
        learned.layout.unpack(learned.initial(0)),
        torch.from_numpy(seen).flatten(0, 1),
        torch.zeros(2, net.memory_size),
        begins,
    )
    np.testing.assert_allclose(np.concatenate(heads), head.detach(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(np.concatenate(values), value.detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("kind", "action"), [("gru", DISCRETE), ("lstm", BOX)])
def test_exports_remember_alike(tmp_path, kind, action):
    """NumPy's file and ONNX's graph, several environments, step after step."""
    policy = policy_of(network(kind, action=action), seed=3)
    weights, code = policy.to_numpy_file(tmp_path)
    spec = importlib.util.spec_from_file_location("exported", code)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    exported = module.Policy(weights)
    session = onnxruntime.InferenceSession(str(policy.to_onnx_file(tmp_path / "policy.onnx")))
    ours, theirs, graph = policy.new_memory(3), exported.new_memory(3), policy.new_memory(3)
    generator = np.random.default_rng(0)
    for _ in range(5):
        obs = generator.standard_normal((3, 3)).astype(np.float32)
        np.testing.assert_allclose(exported.value(obs, theirs), policy.value(obs, ours), rtol=1e-4)
        told, graph = session.run(["action", "next_memory"], {"obs": obs, "memory": graph})
        wanted = policy.act(obs, ours)
        np.testing.assert_allclose(exported.act(obs, theirs), wanted, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(told, wanted, rtol=1e-4, atol=1e-6)
        for memory in (theirs, graph):
            np.testing.assert_allclose(memory, ours, rtol=1e-4, atol=1e-6)
    with pytest.raises(ValueError, match=r"`memory` must be of shape \(3, \d+\), got none"):
        exported.act(obs)
    with pytest.raises(ValueError, match="`memory` must be an array of `new_memory`"):
        exported.act(obs[0], [0.0])


def test_what_is_forgotten_is_asked_for():
    policy = policy_of(network("gru"))
    for ask in (policy.head, policy.value, policy.greedy):
        with pytest.raises(ShapeError, match=r"float32 of shape \(B, 5\), what this policy rem"):
            ask(np.ones((2, 3), np.float32))
    with pytest.raises(ShapeError, match=r"got \[0.0, 0.0\]"):
        policy.act(np.ones(3), [0.0, 0.0])
    learned = LearnedNetwork(policy.network)
    with pytest.raises(ConfigError, match="got no `memory` or no `begins`: pass those of the"):
        learned.outputs(learned.initial(0), torch.ones(2, 3))


def test_a_user_hands_the_memory_in():
    policy = policy_of(network("lstm", action=BOX))
    memory = policy.new_memory()
    assert memory.shape == (10,)
    first = policy.act(np.ones(3), memory)
    assert memory.any()
    assert not np.array_equal(policy.act(np.ones(3), memory), first)
    np.testing.assert_array_equal(policy.act(np.ones(3), policy.new_memory()), first)
    many = policy.new_memory(2)
    np.testing.assert_allclose(policy.act(np.ones((2, 3)), many)[1], first, rtol=1e-5)
    with pytest.raises(ShapeError, match=r"float32 of shape \(10,\), .* got none: begin each"):
        policy.act(np.ones(3))
    with pytest.raises(ShapeError, match=r"shape \(2, 10\), .* got float32 of shape \(10,\)"):
        policy.act(np.ones((2, 3)), memory)
    plain = actor_critic(Spaces(obs_spec(3), BOX))
    assert policy_of(plain).new_memory() is None
    with pytest.raises(ConfigError, match="`memory` is for policies that were trained with"):
        policy_of(plain).act(np.ones(3), memory)


def test_old_networks_are_described_as_before():
    described = actor_critic(Spaces(obs_spec(3), BOX)).to_json()
    assert "memory" not in described["body"]
    described = network("gru").to_json()
    assert described["body"]["memory"] == "gru:5"
    assert type(network("gru")).from_json(described) == network("gru")


def test_an_lstm_remembers_at_first():
    bias = network("lstm").initial_parameters(0)["memory.bias"]
    np.testing.assert_array_equal(bias, [0.0] * 5 + [1.0] * 5 + [0.0] * 10)
    assert str(parse_memory("gru:64")) == "gru:64"
