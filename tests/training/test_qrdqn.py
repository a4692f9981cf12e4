"""The example `examples/qrdqn.py`: a head and an algorithm in a file of the user's."""

import importlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import hotloop
from hotloop.cli import main
from hotloop.envs.spaces import ActionSpec
from hotloop.errors import ConfigError, SpaceError
from hotloop.policies import ActingPolicy, EpsilonGreedy, PolicySnapshot, network_from_json
from hotloop.runs import RunDirectory
from hotloop.training import ReplayBatch, check_algorithm
from tests.policies.nets import Spaces
from tests.policies.test_policies import BOX, DISCRETE, obs_spec

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(autouse=True)
def qrdqn(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    yield importlib.import_module("qrdqn")
    sys.modules.pop("qrdqn")


def make_networks(qrdqn, **options):
    config = qrdqn.Config(hidden_sizes=(16,), num_quantiles=5, **options)
    spaces = Spaces(obs_spec(4), DISCRETE)
    return config, qrdqn.algorithm.networks(config, spaces, torch.device("cpu"))


def test_policy_takes_the_action_with_the_greatest_mean(qrdqn):
    _, nets = make_networks(qrdqn)
    network = nets.network
    assert network.head == qrdqn.Quantiles(5)
    assert (network.head_size, network.acts_without_torch) == (15, True)
    stored = json.loads(json.dumps(network.to_json()))
    assert stored["head"] == {"name": "qrdqn:Quantiles", "num_quantiles": 5}
    assert network_from_json(stored) == network
    params = {name: 3 * x for name, x in network.initial_parameters(0).items()}
    exploration = EpsilonGreedy(start=1.0, end=0.3, num_steps=10)
    policy = ActingPolicy(network, PolicySnapshot(0, params), exploration=exploration)
    obs = 10 * np.random.default_rng(0).standard_normal((50, 4), np.float32)
    outputs = policy.head(obs)
    means = outputs.astype(np.float64).reshape(50, 3, 5).mean(2)
    assert len(set(means.argmax(1).tolist())) == 3
    np.testing.assert_array_equal(policy.greedy(obs), means.argmax(1))
    np.testing.assert_array_equal(nets.head.mode(torch.from_numpy(outputs)), means.argmax(1))
    # Exploring environments take the actions of the noise, the others the best ones.
    noise = policy.draw_noise(0, first_step=5, num_steps=1, num_envs=50)[0]
    action = np.empty(50, np.int64)
    policy.draw(obs, noise, outputs, action)
    explores = noise[:, 0] >= 0
    assert 10 < explores.sum() < 45
    np.testing.assert_array_equal(action, np.where(explores, noise[:, 0], means.argmax(1)))


def test_spaces_and_options_that_do_not_fit_are_refused(qrdqn):
    with pytest.raises(SpaceError, match="one discrete action is needed, got a box space"):
        qrdqn.Quantiles(5).bind(BOX)
    for options in ({"dueling": True}, {"atoms": 5}, {"noisy_std": 0.5}):
        with pytest.raises(ConfigError, match="qrdqn has no `dueling`, `atoms` or `noisy_std`"):
            qrdqn.Config(**options)


def test_forbidden_actions_are_never_the_best(qrdqn):
    spec = ActionSpec(kind="discrete", shape=(), dtype="int64", num_actions=3, is_masked=True)
    nets = qrdqn.algorithm.networks(
        qrdqn.Config(num_quantiles=5), Spaces(obs_spec(4), spec), torch.device("cpu")
    )
    network = nets.network
    policy = ActingPolicy(network, PolicySnapshot(0, network.initial_parameters(0)))
    obs = 10 * np.random.default_rng(0).standard_normal((50, 4), np.float32)
    mask = np.tile([False, True, False], (50, 1))
    assert set(policy.greedy(obs, mask=mask).tolist()) == {1}


@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("huber", [None, 0.5])
def test_loss_is_that_of_a_loop_over_transitions_and_quantiles(qrdqn, double, huber):
    config, nets = make_networks(qrdqn, double=double, huber=huber)
    state = qrdqn.algorithm.init(nets, config)
    state.params.mul_(3.0)
    state.target.copy_(3.0 * nets.initial(7))
    generator = np.random.default_rng(1)
    obs, next_obs = 5 * generator.standard_normal((2, 20, 4), np.float32)
    action, reward = generator.integers(0, 3, 20), generator.normal(0.0, 2.0, 20)
    discount, importance = 0.9 * generator.integers(0, 2, 20), generator.uniform(0.5, 1.5, 20)

    def quantiles(params, rows):
        outputs = nets.outputs(params, torch.from_numpy(rows))[0].double().numpy()
        return outputs.reshape(20, 3, 5)

    now, rows, chosen = quantiles(state.params, obs), np.zeros(20), []
    online, target = (quantiles(p, next_obs) for p in (state.params, state.target))
    for b in range(20):
        chosen.append((online if double else target)[b].mean(1).argmax())
        for i in range(5):
            level = (i + 0.5) / 5
            for j in range(5):
                y = reward[b] + discount[b] * target[b, chosen[b], j]
                u = y - now[b, action[b], i]
                size = abs(u)
                if huber is not None:
                    size = u**2 / (2 * huber) if abs(u) <= huber else abs(u) - huber / 2
                rows[b] += (level if u >= 0 else 1 - level) * size / 5
    assert any(target[b].mean(1).argmax() != chosen[b] for b in range(20)) is double
    tensors = [torch.tensor(x, dtype=torch.float32) for x in (reward, discount, importance)]
    batch = ReplayBatch(
        obs=torch.from_numpy(obs),
        action=torch.from_numpy(action),
        reward=tensors[0],
        next_obs=torch.from_numpy(next_obs),
        discount=tensors[1],
        importance=tensors[2],
    )
    hyper = qrdqn.algorithm.hyper(*(torch.tensor(x) for x in (1e-9, 1.0, 0.0)))
    metrics, error = qrdqn.update(state, batch, None, hyper, nets=nets, config=config)
    np.testing.assert_allclose(error, rows, rtol=1e-4, atol=1e-5)
    assert metrics["loss"].item() == pytest.approx((importance * rows).mean(), rel=1e-4)
    mean = now[np.arange(20), action].mean()
    assert metrics["q_value"].item() == pytest.approx(mean, rel=1e-4)


def test_algorithm_keeps_the_contract(qrdqn):
    options = {"replay": "prioritized", "n_step": 3, "max_grad_norm": 1.0, "double": False}
    check_algorithm(qrdqn.algorithm, num_quantiles=11, **options)


def test_commands_train_resume_evaluate_load_and_export(tmp_path, monkeypatch, capsys):
    """Worker processes import the head by its name."""
    monkeypatch.chdir(EXAMPLES)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    run = str(tmp_path / "run")
    options = ["--hidden-sizes", "8", "--learning-starts", "100", "--num-envs", "2"]
    options += ["--workers", "1", "--execution", "eager", "--run-dir", run]
    assert main(["train", "qrdqn:algorithm", "--total-timesteps", "400", *options]) == 0
    assert main(["resume", run, "--total-timesteps", "600"]) == 0
    assert main(["eval", run, "--episodes", "2"]) == 0
    policy = hotloop.load(run)
    assert policy.network.head.num_quantiles == 51
    assert policy.act(np.zeros(4)) in (0, 1)
    assert RunDirectory.open(run).metrics()[-1]["timesteps"] == 600
    capsys.readouterr()
    assert main(["export", run, "--format", "numpy", "--output", str(tmp_path / "numpy")]) == 2
    assert "got Quantiles(num_quantiles=51)" in capsys.readouterr().err
    # Another user does not import it.
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other user"))
    assert main(["eval", run, "--episodes", "2"]) == 1
    assert "a head 'qrdqn:Quantiles'" in capsys.readouterr().err
