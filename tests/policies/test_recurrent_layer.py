"""Recurrent networks: learning, acting with and without torch, and exports."""

import importlib.util

import numpy as np
import onnxruntime
import pytest
import torch

from hotloop.envs.spaces import ActionSpec
from hotloop.errors import ConfigError, ShapeError
from hotloop.policies import ActingPolicy, PolicySnapshot, TrainedPolicy, actor_critic
from hotloop.policies.forward import LearnedNetwork
from hotloop.policies.recurrence import step, unroll
from hotloop.policies.recurrent_layer import NumpyRecurrentLayer, RecurrentLayer, parse_memory
from tests.policies.nets import Spaces
from tests.policies.test_policies import BOX, DISCRETE, obs_spec
from tests.reference import memory as reference

KINDS = ["lstm", "gru"]
IMAGES = obs_spec(2, 12, 12, dtype="uint8")


def make_network(kind, obs=None, action: ActionSpec = DISCRETE):
    spaces = Spaces(obs_spec(3) if obs is None else obs, action)
    return actor_critic(spaces, hidden_sizes=(7,), memory=f"{kind}:5")


def make_policy(net, seed=0):
    return TrainedPolicy(ActingPolicy(net, PolicySnapshot(0, net.initial_parameters(seed))))


@pytest.mark.parametrize("kind", KINDS)
def test_unrolling_matches_single_steps_with_resets(kind):
    """Compare outputs and gradients with single steps of single environments, in float64."""
    net = make_network(kind)
    twin = reference.RecurrentNetworks(net.initial_parameters(0), kind)
    generator = torch.Generator().manual_seed(0)
    length, num_envs = 9, 4
    obs = torch.randn(length, num_envs, 3, generator=generator, dtype=torch.float64)
    start = torch.rand(num_envs, net.memory_size, generator=generator, dtype=torch.float64) - 0.5
    episode_starts = torch.rand(length, num_envs, generator=generator) < 0.25
    heads, values = twin.unroll(obs, start, episode_starts)
    loss_weights = torch.randn(heads.shape, generator=generator, dtype=torch.float64)
    loss = (heads * loss_weights).sum() + values.square().sum()
    grads = torch.autograd.grad(loss, list(twin.named.values()))

    learned = LearnedNetwork(net)
    params = learned.layout.pack(net.initial_parameters(0)).requires_grad_()
    head, value = learned._forward(
        learned.layout.unpack(params),
        obs.float().flatten(0, 1),
        start.float(),
        episode_starts.flatten(),
    )
    tolerance = {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(head, heads.flatten(0, 1).float(), **tolerance)
    torch.testing.assert_close(value, values.flatten().float(), **tolerance)
    loss = (head * loss_weights.float().flatten(0, 1)).sum() + value.square().sum()
    (grad,) = torch.autograd.grad(loss, params)
    learned_grads = learned.layout.unpack(grad)
    for (name, _), expected in zip(twin.named.items(), grads, strict=True):
        torch.testing.assert_close(
            learned_grads[name.replace("_", ".")], expected.float(), **tolerance, msg=name
        )


@pytest.mark.parametrize("kind", KINDS)
def test_operations_pass_torchs_checks(kind):
    """torch checks the schema, fake tensors and gradients."""
    memory = RecurrentLayer(kind, 4)
    inputs = torch.randn(5, 3, memory.num_gate_values, dtype=torch.float64, requires_grad=True)
    recurrent = torch.randn(4, memory.num_gate_values, dtype=torch.float64, requires_grad=True)
    initial_memory, continues = torch.randn(3, memory.size).double(), torch.ones(5, 3, 1).double()
    operation = getattr(torch.ops.hotloop, kind)
    torch.library.opcheck(operation, (inputs, recurrent, initial_memory, continues))
    episode_starts = torch.zeros(5, 3, dtype=torch.bool)
    episode_starts[2, 1] = True
    assert torch.autograd.gradcheck(
        lambda x, u: unroll(memory, x, u, initial_memory, episode_starts), (inputs, recurrent)
    )


@pytest.mark.parametrize("kind", KINDS)
def test_numpy_layer_matches_torchs(kind):
    memory = RecurrentLayer(kind, 6)
    generator = np.random.default_rng(0)
    shapes = memory.parameter_shapes(3)
    weight, bias = (generator.standard_normal(x).astype(np.float32) for x in shapes.values())
    numpy_layer = NumpyRecurrentLayer(memory)
    numpy_layer.load(weight, bias)
    numpy_memory = np.zeros((4, memory.size), np.float32)
    torch_memory = torch.zeros(4, memory.size)
    for k in range(20):
        if k == 10:  # an update in place
            weight *= 0.5
            numpy_layer.refresh()
        features = generator.standard_normal((4, 3)).astype(np.float32)
        output = numpy_layer.step(features, numpy_memory)
        inputs = torch.from_numpy(features @ weight[:3] + bias)
        torch_memory = step(kind, inputs, torch.from_numpy(weight[3:]), torch_memory)
        np.testing.assert_allclose(numpy_memory, torch_memory.numpy(), rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(output, numpy_memory[:, :6])


@pytest.mark.parametrize("obs", [None, IMAGES])
@pytest.mark.parametrize("kind", KINDS)
def test_acting_matches_learning(kind, obs):
    net = make_network(kind, obs)
    assert net.acts_without_torch == (obs is None)
    policy, learned = make_policy(net), LearnedNetwork(net)
    generator = np.random.default_rng(0)
    shape = (6, 2, *net.obs_spec.shape)
    observations = generator.integers(0, 255, shape).astype(net.obs_spec.dtype)
    memory = policy.new_memory(2)
    heads, values = [], []
    for obs_t in observations:
        values.append(policy.value(obs_t, memory))
        heads.append(policy.head(obs_t, memory))
    episode_starts = torch.zeros(12, dtype=torch.bool)
    head, value = learned._forward(
        learned.layout.unpack(learned.initial(0)),
        torch.from_numpy(observations).flatten(0, 1),
        torch.zeros(2, net.memory_size),
        episode_starts,
    )
    np.testing.assert_allclose(np.concatenate(heads), head.detach(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(np.concatenate(values), value.detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("kind", "action"), [("gru", DISCRETE), ("lstm", BOX)])
def test_exports_match_the_policys_memory(tmp_path, kind, action):
    """Step several environments with the policy, the NumPy file and the ONNX graph."""
    policy = make_policy(make_network(kind, action=action), seed=3)
    weights, code = policy.to_numpy_file(tmp_path)
    spec = importlib.util.spec_from_file_location("exported", code)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    exported = module.Policy(weights)
    session = onnxruntime.InferenceSession(str(policy.to_onnx_file(tmp_path / "policy.onnx")))
    state, numpy_state, onnx_state = (
        policy.new_memory(3),
        exported.new_memory(3),
        policy.new_memory(3),
    )
    generator = np.random.default_rng(0)
    for _ in range(5):
        obs = generator.standard_normal((3, 3)).astype(np.float32)
        np.testing.assert_allclose(
            exported.value(obs, numpy_state), policy.value(obs, state), rtol=1e-4
        )
        got, onnx_state = session.run(["action", "next_memory"], {"obs": obs, "memory": onnx_state})
        expected = policy.act(obs, state)
        np.testing.assert_allclose(exported.act(obs, numpy_state), expected, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-6)
        for memory in (numpy_state, onnx_state):
            np.testing.assert_allclose(memory, state, rtol=1e-4, atol=1e-6)
    with pytest.raises(ValueError, match=r"`memory` must be of shape \(3, \d+\), got none"):
        exported.act(obs)
    with pytest.raises(ValueError, match="`memory` must be an array of `new_memory`"):
        exported.act(obs[0], [0.0])


def test_missing_memory_raises():
    policy = make_policy(make_network("gru"))
    for call in (policy.head, policy.value, policy.act):
        with pytest.raises(
            ShapeError, match=r"shape \(2, 5\), got none: start each .*_memory\(2\)"
        ):
            call(np.ones((2, 3), np.float32))
    with pytest.raises(ShapeError, match=r"got \[0.0, 0.0\]"):
        policy.act(np.ones(3), [0.0, 0.0])
    learned = LearnedNetwork(policy.network)
    with pytest.raises(ConfigError, match="got no `memory` or no `begins`: pass those of the"):
        learned.outputs(learned.initial(0), torch.ones(2, 3))


def test_act_updates_the_given_memory():
    policy = make_policy(make_network("lstm", action=BOX))
    memory = policy.new_memory()
    assert memory.shape == (10,)
    first = policy.act(np.ones(3), memory)
    assert memory.any()
    assert not np.array_equal(policy.act(np.ones(3), memory), first)
    np.testing.assert_array_equal(policy.act(np.ones(3), policy.new_memory()), first)
    two_memories = policy.new_memory(2)
    np.testing.assert_allclose(policy.act(np.ones((2, 3)), two_memories)[1], first, rtol=1e-5)
    with pytest.raises(ShapeError, match=r"float32 of shape \(10,\), got none: start each"):
        policy.act(np.ones(3))
    with pytest.raises(ShapeError, match=r"shape \(2, 10\), got float32 of shape \(10,\)"):
        policy.act(np.ones((2, 3)), memory)
    plain = actor_critic(Spaces(obs_spec(3), BOX))
    assert make_policy(plain).new_memory() is None
    with pytest.raises(ConfigError, match="`memory` is for policies that were trained with"):
        make_policy(plain).act(np.ones(3), memory)


def test_json_of_networks_without_memory_is_unchanged():
    fields = actor_critic(Spaces(obs_spec(3), BOX)).to_json()
    assert "memory" not in fields["body"]
    fields = make_network("gru").to_json()
    assert fields["body"]["memory"] == "gru:5"
    assert type(make_network("gru")).from_json(fields) == make_network("gru")


def test_lstm_forget_gates_start_open():
    bias = make_network("lstm").initial_parameters(0)["memory.bias"]
    np.testing.assert_array_equal(bias, [0.0] * 5 + [1.0] * 5 + [0.0] * 10)
    assert str(parse_memory("gru:64")) == "gru:64"
