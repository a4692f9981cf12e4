"""The example `examples/c51.py`: a head and an algorithm in a file of the user's."""

import importlib
import json
import math
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
def c51(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    yield importlib.import_module("c51")
    sys.modules.pop("c51")


# --- the projection -------------------------------------------------------------------------------

PROJECTIONS = {
    # The atoms are 0, 1 and 2. In the first case, they move to 0.5, 1.5 and 2.5, clipped to 2.
    "between atoms": ([0.5, 0.25, 0.25], 0.5, 1.0, [0.25, 0.375, 0.375]),
    "on an atom": ([0.0, 0.0, 1.0], 0.0, 0.5, [0.0, 1.0, 0.0]),
    "after a terminal transition": ([0.2, 0.3, 0.5], 1.0, 0.0, [0.0, 1.0, 0.0]),
    "between atoms at the end": ([0.2, 0.3, 0.5], 0.25, 0.0, [0.75, 0.25, 0.0]),
    "above": ([0.2, 0.3, 0.5], 5.0, 0.5, [0.0, 0.0, 1.0]),
    "below": ([0.2, 0.3, 0.5], -3.0, 0.5, [1.0, 0.0, 0.0]),
}


@pytest.mark.parametrize("case", PROJECTIONS)
def test_projections_that_are_worked_by_hand(c51, case):
    probs, reward, discount, expected = PROJECTIONS[case]
    head = c51.ReturnDistribution(0.0, 2.0, 3)
    actual = head.project(*(torch.tensor([x]) for x in (probs, reward, discount)))
    assert actual.tolist() == [pytest.approx(expected, abs=1e-6)]


def project_slowly(probs, reward, discount, v_min, v_max, num_atoms):
    """Return the projection of one distribution, with a loop over its atoms."""
    spacing = (v_max - v_min) / (num_atoms - 1)
    projected = [0.0] * num_atoms
    for j, p in enumerate(probs):
        position = min(max(reward + discount * (v_min + j * spacing), v_min), v_max) - v_min
        lower = min(int(position / spacing), num_atoms - 2)
        share = position / spacing - lower
        projected[lower] += p * (1 - share)
        projected[lower + 1] += p * share
    return projected


def test_projection_equals_a_loop_over_the_atoms(c51):
    generator = np.random.default_rng(0)
    probs = generator.dirichlet(np.full(7, 0.5), 200)
    reward, discount = generator.normal(0.0, 4.0, 200), generator.choice([0.0, 0.97, 0.9], 200)
    head = c51.ReturnDistribution(-3.0, 5.0, 7)
    actual = head.project(
        *(torch.tensor(x, dtype=torch.float32) for x in (probs, reward, discount))
    )
    rows = zip(probs, reward, discount, strict=True)
    expected = [project_slowly(*row, -3.0, 5.0, 7) for row in rows]
    np.testing.assert_allclose(actual, expected, atol=1e-5)
    np.testing.assert_allclose(actual.sum(1), 1.0, rtol=1e-5)


# --- the head -------------------------------------------------------------------------------------


def make_networks(c51, **options):
    config = c51.Config(hidden_sizes=(16,), v_min=-2.0, v_max=6.0, num_atoms=5, **options)
    nets = c51.networks(config, Spaces(obs_spec(4), DISCRETE), torch.device("cpu"))
    return config, nets


def softmax(logits):
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def test_policy_takes_the_action_with_the_greatest_mean(c51):
    _, nets = make_networks(c51)
    network = nets.network
    assert network.head == c51.ReturnDistribution(-2.0, 6.0, 5)
    assert (network.head_size, network.acts_without_torch) == (15, True)
    stored = json.loads(json.dumps(network.to_json()))
    name = "c51:ReturnDistribution"
    assert stored["head"] == {"name": name, "v_min": -2.0, "v_max": 6.0, "num_atoms": 5}
    assert network_from_json(stored) == network
    params = {name: 3 * x for name, x in network.initial_parameters(0).items()}
    exploration = EpsilonGreedy(start=1.0, end=0.3, num_steps=10)
    policy = ActingPolicy(network, PolicySnapshot(0, params), exploration=exploration)
    obs = 10 * np.random.default_rng(0).standard_normal((50, 4), np.float32)
    outputs = policy.head(obs)
    means = softmax(outputs.astype(np.float64).reshape(50, 3, 5)) @ [-2.0, 0.0, 2.0, 4.0, 6.0]
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


def test_spaces_and_options_that_c51_lacks_are_refused(c51):
    head = c51.ReturnDistribution(0.0, 1.0, 5)
    with pytest.raises(SpaceError, match="one discrete action is needed, got a box space"):
        head.bind(BOX)
    masked = ActionSpec(kind="discrete", shape=(), dtype="int64", num_actions=3, is_masked=True)
    with pytest.raises(SpaceError, match=r"v_max=1.0, num_atoms=5\) has 15 outputs for 3 actions"):
        head.bind(masked)
    for options in ({"v_min": 1.0, "v_max": 1.0}, {"num_atoms": 1}):
        with pytest.raises(ConfigError, match="`v_min` must be below `v_max`, with at least 2"):
            c51.Config(**options)
    for options in ({"dueling": True}, {"huber": 1.0}):
        with pytest.raises(ConfigError, match="c51 has no `dueling` or `huber`"):
            c51.Config(**options)


# --- the algorithm --------------------------------------------------------------------------------


@pytest.mark.parametrize("double", [True, False])
def test_loss_is_the_cross_entropy_with_the_projected_target(c51, double):
    """Compare with a loop over the transitions."""
    config, nets = make_networks(c51, double=double)
    state = c51.algorithm.init(nets, config)
    state.params.mul_(3.0)
    state.target.copy_(3.0 * nets.initial(7))
    generator = np.random.default_rng(1)
    obs, next_obs = 5 * generator.standard_normal((2, 20, 4), np.float32)
    action, reward = generator.integers(0, 3, 20), generator.normal(0.0, 2.0, 20)
    discount, importance = 0.9 * generator.integers(0, 2, 20), generator.uniform(0.5, 1.5, 20)
    atoms = np.linspace(-2.0, 6.0, 5)

    def distributions(params, rows):
        outputs = nets.outputs(params, torch.from_numpy(rows))[0].double().numpy()
        return softmax(outputs.reshape(20, 3, 5))

    now, chosen = distributions(state.params, obs), []
    online, target = (distributions(p, next_obs) for p in (state.params, state.target))
    cross_entropies = np.empty(20)
    for i in range(20):
        best = ((online if double else target)[i] @ atoms).argmax()
        chosen.append(best)
        row = target[i, best], reward[i], discount[i]
        projected = project_slowly(*row, -2.0, 6.0, 5)
        cross_entropies[i] = -np.dot(projected, np.log(now[i, action[i]]))
    assert any((target[i] @ atoms).argmax() != chosen[i] for i in range(20)) is double
    tensors = (torch.tensor(x, dtype=torch.float32) for x in (reward, discount, importance))
    reward_t, discount_t, importance_t = tensors
    batch = ReplayBatch(
        obs=torch.from_numpy(obs),
        action=torch.from_numpy(action),
        reward=reward_t,
        next_obs=torch.from_numpy(next_obs),
        discount=discount_t,
        importance=importance_t,
    )
    hyper = c51.algorithm.hyper(*(torch.tensor(x) for x in (1e-9, 1.0, 0.0)))
    metrics, td_error = c51.update(state, batch, None, hyper, nets=nets, config=config)
    np.testing.assert_allclose(td_error, cross_entropies, rtol=1e-4, atol=1e-5)
    assert metrics["loss"].item() == pytest.approx((importance * cross_entropies).mean(), rel=1e-4)
    means = (now[np.arange(20), action] @ atoms).mean()
    assert metrics["q_value"].item() == pytest.approx(means, rel=1e-4)


def test_equal_logits_have_the_entropy_of_a_uniform_distribution(c51):
    config, nets = make_networks(c51)
    obs, zeros = torch.zeros(2, 4), torch.zeros(2)
    batch = ReplayBatch(obs, zeros.long(), zeros, obs, zeros, torch.ones(2))
    target = torch.tensor([[0.0, 1.0, 0.0, 0.0, 0.0]] * 2)
    loss, _ = c51.loss(torch.zeros(nets.num_params), batch, target, nets)
    assert loss.item() == pytest.approx(math.log(5), rel=1e-6)
    assert config.num_atoms == 5


def test_algorithm_keeps_the_contract(c51):
    options = {"replay": "prioritized", "n_step": 3, "max_grad_norm": 1.0, "double": False}
    check_algorithm(c51.algorithm, num_atoms=11, **options)


def test_commands_train_resume_evaluate_load_and_export(tmp_path, monkeypatch, capsys):
    """Worker processes import the head by its name."""
    monkeypatch.chdir(EXAMPLES)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    run = str(tmp_path / "run")
    options = ["--hidden-sizes", "8", "--learning-starts", "100", "--num-envs", "2"]
    options += ["--workers", "2", "--execution", "eager", "--run-dir", run]
    assert main(["train", "c51:algorithm", "--total-timesteps", "400", *options]) == 0
    assert main(["resume", run, "--total-timesteps", "600"]) == 0
    assert main(["eval", run, "--episodes", "2"]) == 0
    policy = hotloop.load(run)
    assert policy.network.head.num_atoms == 51
    assert policy.act(np.zeros(4)) in (0, 1)
    assert RunDirectory.open(run).metrics()[-1]["timesteps"] == 600
    capsys.readouterr()
    assert main(["export", run, "--format", "numpy", "--output", str(tmp_path / "numpy")]) == 2
    assert "got ReturnDistribution(v_min=0.0, v_max=100.0" in capsys.readouterr().err
    # Another user does not import it.
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other user"))
    assert main(["eval", run, "--episodes", "2"]) == 1
    assert "a head 'c51:ReturnDistribution'" in capsys.readouterr().err
