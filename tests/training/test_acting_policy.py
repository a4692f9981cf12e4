"""Acting on the learner's device with the learner's parameters, compared with the host's policy.

The device is the CPU under another name, `cpu:0`, which counts as a separate device.
"""

import contextlib
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from hotloop.algorithms import dqn, ppo
from hotloop.envs import EnvSpec, make_vec
from hotloop.learner import Execution, ExecutionChoice, Learner
from hotloop.policies import (
    ActingPolicy,
    EpsilonGreedy,
    ObsScale,
    PolicySnapshot,
    actor,
    actor_critic,
)
from hotloop.policies.forward import LearnedNetwork
from hotloop.policies.heads import Dueling, Greedy
from hotloop.policies.torch_acting import LearnerForward
from hotloop.rollouts.inline import InlineRollout
from hotloop.training import sources
from hotloop.training.acting_policy import acting_choice, make_acting_policy
from hotloop.training.lanes import train_lanes
from tests.learner.test_cuda_graphs import FakeCapturer
from tests.policies import nets as custom_nets

CATCH, SIGNS = "tests.toy_images:Catch", "tests.toy_images:Signs"
DEVICE = torch.device("cpu:0")
NUM_ENVS, NUM_STEPS = 3, 16
SCALE = ObsScale(np.full(4, 0.1, np.float32), np.full(4, 0.5, np.float32), 2.0)
NETWORKS = {
    "images": (CATCH, lambda spaces: actor_critic(spaces), None),
    "images and numbers": (SIGNS, lambda spaces: actor_critic(spaces), None),
    "recurrent": (CATCH, lambda spaces: actor_critic(spaces, memory="gru:8"), None),
    "normalized": (
        "CartPole-v1",
        lambda spaces: actor_critic(spaces, network=custom_nets.Net),
        SCALE,
    ),
    "greedy": (CATCH, lambda spaces: actor(spaces, Greedy(), hidden_sizes=(16,)), None),
    "dueling": (CATCH, lambda spaces: actor(spaces, Dueling(), hidden_sizes=(16,)), None),
    "recurrent greedy": (
        CATCH,
        lambda spaces: actor(spaces, Greedy(), hidden_sizes=(16,), memory="lstm:8"),
        None,
    ),
    "continuous": (
        "Pendulum-v1",
        lambda spaces: actor_critic(spaces, network=custom_nets.Net),
        None,
    ),
}


def captured(function, name):
    """Return a function that runs as a graph on a stand-in for the device."""
    device = FakeCapturer(None)
    execution = Execution(
        function, ExecutionChoice(False, "for the test", is_captured=True), name, capturer=device
    )

    def run(staged):
        device.state = staged
        return execution(staged)

    return run


def eager(function, name):
    return function


@pytest.mark.parametrize("execute", [eager, captured])
@pytest.mark.parametrize("name", NETWORKS)
def test_rollout_on_the_device_equals_the_hosts(name, execute):
    env_id, make, scale = NETWORKS[name]
    exploration = EpsilonGreedy(random_steps=4, start=0.5, end=0.1, num_steps=30)
    with contextlib.ExitStack() as exits:
        envs = [make_vec(EnvSpec(env_id, seed=0), NUM_ENVS) for _ in range(2)]
        for vec_env in envs:
            exits.callback(vec_env.close)
        network = make(envs[0])
        nets = LearnedNetwork(network, device=DEVICE)
        params = nets.initial(3)
        snapshot = PolicySnapshot(0, nets.layout.views(params.clone()), scale)
        forward = LearnerForward(nets, params, DEVICE, num_rows=NUM_ENVS, execute=execute)
        policy_exploration = None if network.has_value else exploration
        policies = [
            ActingPolicy(network, snapshot, exploration=policy_exploration),
            ActingPolicy(network, snapshot, exploration=policy_exploration, forward=forward),
        ]
        rollouts = [
            InlineRollout(vec_env, policy, num_steps=NUM_STEPS, seed=7)
            for vec_env, policy in zip(envs, policies, strict=True)
        ]
        for version in range(3):
            host, device = (rollout.collect()[0] for rollout in rollouts)
            for field in ("obs", "action", "reward", "terminated", "truncated", "next_obs"):
                actual, expected = getattr(device, field), getattr(host, field)
                if name == "continuous":
                    np.testing.assert_allclose(actual, expected, rtol=1e-3, atol=1e-3)
                else:
                    np.testing.assert_array_equal(actual, expected)
            for field in ("log_prob", "value", "next_value", "memory"):
                actual, expected = getattr(device, field), getattr(host, field)
                np.testing.assert_allclose(actual, expected, rtol=1e-3, atol=1e-4, err_msg=field)
            assert device.terminated.any() or "Pole" not in env_id
            params.mul_(1.05)  # as learning does; the host's policy needs the new values
            arrays = nets.layout.views(params.clone())
            rollouts[0].publish(PolicySnapshot(version + 1, arrays, scale))
            if not policies[1].needs_parameters:
                arrays = snapshot.params
            rollouts[1].publish(PolicySnapshot(version + 1, arrays, scale))
            assert policies[1].version == version + 1
        assert policies[1].needs_parameters == (name == "continuous")


SHORT = {"total_timesteps": 256, "execution": "eager", "num_envs": 2, "torch_threads": 1}
OPTIONS = {
    ppo: {"num_steps": 32, "update_epochs": 2, "num_minibatches": 2, "checkpoint_interval": 64},
    dqn: {
        "learning_starts": 60,
        "batch_size": 16,
        "buffer_size": 1_000,
        "report_interval": 64,
        "checkpoint_interval": 64,
        "save_replay": True,
    },
}
RUNS = {
    "ppo": (ppo, CATCH, {}),
    "ppo recurrent": (ppo, CATCH, {"memory": "gru:8", "num_minibatches": 1}),
    "ppo normalized": (ppo, "CartPole-v1", {"network": custom_nets.Net, "normalize_obs": True}),
    "dqn": (dqn, CATCH, {}),
    "dqn normalized": (
        dqn,
        "CartPole-v1",
        {"network": custom_nets.ActorNet, "normalize_obs": True},
    ),
}


@pytest.fixture
def counts(monkeypatch):
    """Count publications of parameters and forward passes on the device."""
    counter = Counter()
    publish, outputs = Learner.publish, LearnerForward._outputs

    def counted_publish(self, *args, **kwargs):
        counter["publish"] += 1
        return publish(self, *args, **kwargs)

    def counted_outputs(self, *args):
        counter["device"] += 1
        return outputs(self, *args)

    monkeypatch.setattr(Learner, "publish", counted_publish)
    monkeypatch.setattr(LearnerForward, "_outputs", counted_outputs)
    return counter


def run(name, path, monkeypatch, *, device, on_report=None, resume_from=None, **options):
    algorithm, env_id, overrides = RUNS[name]
    with monkeypatch.context() as patch:
        if device == "other":
            patch.setattr(sources, "choose_device", lambda _: DEVICE)
        fields = {**SHORT, **OPTIONS[algorithm], **overrides, **options, "env_id": env_id}
        kwargs = {"network": fields.pop("network", None), "on_report": on_report}
        device = "cpu" if device == "cpu" else "auto"
        config = algorithm.Config(run_dir=str(path), device=device, **fields)
        return algorithm.train(config, resume_from=resume_from, progress=False, **kwargs)


@pytest.mark.parametrize("name", RUNS)
def test_training_on_the_device_equals_the_hosts(tmp_path, monkeypatch, counts, name):
    host = run(name, tmp_path / "host", monkeypatch, device="cpu")
    assert counts.pop("device", 0) == 0
    counts.clear()
    reports = []
    other = run(
        name,
        tmp_path / "other",
        monkeypatch,
        device="other",
        on_report=lambda report: reports.append(report.timesteps) or False,
    )
    assert counts["device"] > 100
    # Parameters are copied at the start and at each report. No step waits for a copy.
    assert counts["publish"] == len(reports)
    assert "act: operation by operation" in other.execution
    assert "act" not in host.execution
    for key, x in host.policy.snapshot.params.items():
        y = other.policy.snapshot.params[key]
        np.testing.assert_allclose(y, x, rtol=1e-2, atol=1e-3, err_msg=key)
    # The result acts on the host, with the last parameters.
    assert other.policy.acting.needs_parameters
    obs = np.zeros((2, *host.policy.network.obs_spec.shape), host.policy.network.obs_spec.dtype)
    memories = [result.policy.new_memory(2) for result in (host, other)]
    heads = [r.policy.head(obs, m) for r, m in zip((host, other), memories, strict=True)]
    np.testing.assert_allclose(*heads, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("name", ["ppo", "dqn normalized"])
def test_a_resumed_run_has_the_same_weights(tmp_path, monkeypatch, name):
    whole = run(name, tmp_path / "whole", monkeypatch, device="other")
    parts = tmp_path / "parts"
    run(name, parts, monkeypatch, device="other", on_report=lambda report: report.timesteps >= 128)
    resumed = run(name, parts, monkeypatch, device="other", resume_from=parts)
    for key, x in whole.policy.snapshot.params.items():
        np.testing.assert_array_equal(resumed.policy.snapshot.params[key], x, err_msg=key)


@pytest.mark.parametrize(
    ("options", "is_on_device"),
    [
        ({}, True),
        ({"workers": 1}, False),
        ({"workers": 2, "backend": "inline"}, True),
        ({"overlap": True}, False),
        ({"network": "perceptron"}, False),
        ({"device": "cpu"}, False),
    ],
)
def test_acting_device_follows_the_options(options, is_on_device):
    config = {"workers": 0, "backend": "processes", "overlap": False, **options}
    is_perceptron = config.pop("network", None) is not None
    device = torch.device(config.pop("device", "cpu:0"))
    config = SimpleNamespace(
        execution="eager",
        total_envs=4,
        num_groups=config["workers"] or 1,
        has_workers=config["workers"] > 0 and config["backend"] == "processes",
        overlap=config["overlap"],
    )
    with contextlib.closing(make_vec(EnvSpec("CartPole-v1", seed=0), 1)) as envs:
        network = actor_critic(envs, network=None if is_perceptron else custom_nets.Net)
    nets = LearnedNetwork(network, device=device)
    params = nets.initial(0)
    snapshot = PolicySnapshot(0, nets.layout.views(params))
    learner = SimpleNamespace(device=device, executions=[], publish=lambda *_: snapshot)
    policy = make_acting_policy(config, learner, nets, params, obs_scale=None)
    assert policy.needs_parameters != is_on_device
    assert len(learner.executions) == is_on_device
    assert (policy.on_host() is policy) != is_on_device


def test_lanes_act_with_their_own_parameters(tmp_path, monkeypatch):
    """Stacking the lanes' states after the first steps changes the address of each parameter."""

    def configs(path):
        return [
            ppo.Config(
                env_id=CATCH,
                seed=seed,
                device="auto",
                run_dir=str(path / str(seed)),
                **SHORT,
                **OPTIONS[ppo],
            )
            for seed in (1, 2)
        ]

    host = train_lanes(ppo.algorithm, configs(tmp_path / "host"))
    monkeypatch.setattr(sources, "choose_device", lambda _: DEVICE)
    other = train_lanes(ppo.algorithm, configs(tmp_path / "other"))
    for host_result, device_result in zip(host, other, strict=True):
        for key, x in host_result.policy.snapshot.params.items():
            y = device_result.policy.snapshot.params[key]
            np.testing.assert_allclose(y, x, rtol=1e-2, atol=1e-3, err_msg=key)


@pytest.mark.parametrize(
    ("execution", "device", "mode"),
    [
        ("auto", "cuda", "cudagraph"),
        ("cudagraph", "cuda", "cudagraph"),
        ("compile+cudagraph", "cuda", "cudagraph"),
        ("compile", "cuda", "eager"),
        ("eager", "cuda", "eager"),
        ("auto", "cpu:0", "eager"),
    ],
)
def test_execution_mode_of_acting(execution, device, mode):
    choice = acting_choice(execution, torch.device(device))
    assert choice.mode == mode
    assert choice.may_fall_back == (execution == "auto" and mode == "cudagraph")


def test_atari_of_envpool_acts_on_the_device(tmp_path, monkeypatch, counts):
    """The run of `--env-id envpool:Pong-v5 --device cuda --num-envs 8`, in one process."""
    pytest.importorskip("envpool")
    with monkeypatch.context() as patch:
        patch.setattr(sources, "choose_device", lambda _: DEVICE)
        fields = {**SHORT, "num_envs": 8, "num_steps": 8, "total_timesteps": 64}
        fields |= {"num_minibatches": 1, "update_epochs": 1, "run_dir": str(tmp_path / "run")}
        config = ppo.Config(env_id="envpool:Pong-v5", device="auto", **fields)
        result = ppo.train(config, progress=False)
    assert result.policy.network.encoder == "nature"
    assert counts["device"] == 9  # eight steps, and the value of the last observation
    assert counts["publish"] == 2


@pytest.mark.gpu
@pytest.mark.parametrize("execution", ["eager", "auto"])
@pytest.mark.parametrize("name", RUNS)
def test_training_acts_on_the_gpu(tmp_path, monkeypatch, counts, name, execution):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    host = run(name, tmp_path / "host", monkeypatch, device="cpu")
    result = run(name, tmp_path / "gpu", monkeypatch, device="cuda", execution=execution)
    assert counts["device"] > 100
    uses_graph = "act: a CUDA graph" in result.execution
    assert uses_graph == (execution == "auto")
    assert result.policy.snapshot.params.keys() == host.policy.snapshot.params.keys()
    assert all(np.isfinite(x).all() for x in result.policy.snapshot.params.values())


@pytest.mark.gpu
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("is_captured", [False, True])
def test_gpu_outputs_equal_the_hosts(name, is_captured):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    env_id, make, scale = NETWORKS[name]
    device, rng = torch.device("cuda"), np.random.default_rng(0)
    with contextlib.closing(make_vec(EnvSpec(env_id, seed=0), NUM_ENVS)) as envs:
        network, obs = make(envs), envs.reset()
    nets = LearnedNetwork(network, device=device)
    params = nets.initial(3)
    choice = ExecutionChoice(False, "for the test", is_captured=is_captured)
    forward = LearnerForward(
        nets,
        params,
        device,
        num_rows=NUM_ENVS,
        execute=lambda function, name: Execution(function, choice, name),
    )
    for _ in range(3):
        snapshot = PolicySnapshot(0, nets.layout.views(params.cpu()), scale)
        host = ActingPolicy(network, snapshot)
        device_policy = ActingPolicy(network, snapshot, forward=forward)
        for count in (NUM_ENVS, 1, NUM_ENVS + 2):
            batch = obs[rng.integers(0, len(obs), count)]
            memories = [policy.new_memory(count) for policy in (host, device_policy)]
            pairs = zip((host, device_policy), memories, strict=True)
            outputs = [policy.head_and_value(batch, None, memory) for policy, memory in pairs]
            for expected, actual in zip(*outputs, strict=True):
                if expected is not None:
                    np.testing.assert_allclose(actual, expected, rtol=1e-2, atol=1e-2)
            if network.memory_size:
                np.testing.assert_allclose(*memories, rtol=1e-2, atol=1e-2)
        params.mul_(1.05)
