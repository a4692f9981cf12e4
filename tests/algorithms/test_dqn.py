import copy
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from hotloop.algorithms import dqn
from hotloop.errors import ConfigError
from hotloop.learner import torch_threads
from hotloop.policies import ActingPolicy
from hotloop.runs import RunDirectory
from hotloop.training.options.arguments import parse
from tests.algorithms.learners import make_learner_setup
from tests.policies.nets import Spaces
from tests.policies.test_policies import DISCRETE, obs_spec
from tests.reference import off_policy as reference

SMALL = {
    "batch_size": 32,
    "hidden_sizes": (16, 12),
    "learning_rate": 4e-3,
    "target_interval": 30,
    "execution": "eager",
}


@pytest.fixture(autouse=True)
def one_thread():
    """Networks this small are slower with several threads."""
    with torch_threads(1):
        yield


def make_setup(**options):
    return make_learner_setup(dqn.algorithm, DISCRETE, **{**SMALL, **options})


def move_target(setup):
    dqn.algorithm.move_targets(setup.state, 1, setup.learner.hyper.tensors)


def module_of(setup, flat):
    make = reference.DuelingModule if setup.config.dueling else reference.actor_module
    return make(setup.config, setup.nets.layout.unpack(flat))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"double": False, "huber": 1.0},
        {"dueling": True, "max_grad_norm": 1.0, "tau": 0.5, "target_interval": 70},
        {"dueling": True, "double": False, "activation": "tanh", "hidden_sizes": (24,)},
        {"atoms": 7, "value_min": -6.0, "value_max": 9.0, "max_grad_norm": 0.02},
        {"atoms": 5, "value_min": -20.0, "dueling": True, "double": False, "tau": 0.3},
        {"noisy_std": 0.5, "dueling": True},
        {"noisy_std": 2.0, "atoms": 5, "value_min": -20.0, "hidden_sizes": (24,)},
        {"huber": 2.5, "max_grad_norm": 0.3, "activation": "tanh", "hidden_sizes": (8, 16, 8)},
    ],
)
@pytest.mark.parametrize("weighed", [False, True])
def test_update_equals_the_reference(options, weighed):
    """20 updates, compared with torch modules and torch's Adam."""
    setup = make_setup(**options)
    config, state = setup.config, setup.state
    start = state.params.clone()
    peer = reference.DQN(setup.nets.layout.unpack(state.params), config)
    rows, noise = [], (None,) * 4
    rng = copy.deepcopy(setup.learner.rng)
    for k in range(20):
        batch = reference.random_batch(3, DISCRETE, 32, seed=k, weighed=weighed)
        if config.noisy_std is not None:
            numbers = rng.standard_normal((4, setup.nets.num_noise), np.float32)
            noise = torch.from_numpy(numbers).double().unbind()
        td_error = setup.update(batch)
        metrics, their_error = peer.update(batch, noise)
        rows.append(metrics)
        torch.testing.assert_close(td_error.double(), their_error, rtol=1e-3, atol=1e-3)
        if (10 * k + 10) % config.target_interval == 0:
            move_target(setup)
            peer.move_target()

    assert (peer.num_linear > 50) == (config.huber is not None)
    got = setup.means()
    assert got == pytest.approx(reference.means(rows), rel=1e-3, abs=1e-4)
    if config.max_grad_norm is not None:
        assert got["grad_norm"] > config.max_grad_norm  # the bound makes a difference
    assert (state.params - start).abs().mean() > 0.01
    assert (state.params - state.target).abs().mean() > 1e-3
    reference.assert_same_parameters(module_of(setup, state.params), peer.network)
    reference.assert_same_parameters(module_of(setup, state.target), peer.target)
    # The acting policy is the same network, folded into a perceptron.
    module = module_of(setup, state.params)
    for exploration, numbers in ((None, None), (dqn.exploration(config), noise[3])):
        policy = ActingPolicy(setup.nets.network, setup.learner.publish(0), exploration=exploration)
        with torch.no_grad():
            want = reference.set_noise(module, numbers)(batch.obs.double())
        np.testing.assert_allclose(policy.head(batch.obs.numpy()), want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("tau", [1.0, 0.5])
def test_several_moves_of_the_target_equal_one_call(tau):
    """Three moves towards the same parameters leave (1 − τ)³ of the old target."""
    setup, other = make_setup(tau=tau), make_setup(tau=tau)
    for each in (setup, other):
        each.update(reference.random_batch(3, DISCRETE, 32, seed=0))
    before = setup.state.target.clone()
    dqn.algorithm.move_targets(setup.state, 3, setup.learner.hyper.tensors)
    for _ in range(3):
        move_target(other)
    assert not torch.equal(before, setup.state.target)
    torch.testing.assert_close(setup.state.target, other.state.target, rtol=1e-6, atol=1e-7)
    assert torch.equal(setup.state.target, setup.state.params) == (tau == 1.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"learning_rate": -1.0}, "`learning_rate` must be positive and finite, got -1.0"),
        ({"learning_rate": None}, "`learning_rate` must be given, got None"),
        ({"huber": 0.0}, "`huber` must be positive and finite or None, got 0.0"),
        ({"max_grad_norm": math.inf}, "`max_grad_norm` must be positive and finite, got inf"),
        ({"tau": 2.0}, r"`tau` must lie in \[0, 1\], got 2.0"),
        ({"target_interval": 0}, "`target_interval` must be a positive integer, got 0"),
        ({"epsilon_start": 1.1}, r"`epsilon_start` must lie in \[0, 1\], got 1.1"),
        ({"epsilon_end": -0.1}, r"`epsilon_end` must lie in \[0, 1\], got -0.1"),
        ({"exploration_fraction": 0.0}, "`exploration_fraction` must be positive and finite"),
        ({"exploration_fraction": 1.5}, r"`exploration_fraction` must lie in \[0, 1\]"),
        ({"double": 1}, "`double` must be True or False, got 1"),
        ({"noisy_std": 0.0}, "`noisy_std` must be positive and finite or None, got 0.0"),
        ({"noisy_std": 1.0, "network": "a:B"}, "leave `hidden_sizes`, .* and `noisy_std` out"),
        ({"atoms": 1}, "`atoms` must be an integer from 2 to 1,000, got 1"),
        ({"atoms": 51, "value_min": 10}, "`value_min` must be below `value_max`, got 10.* and 10"),
        ({"value_max": 5.0}, "`value_max` 5.0 needs `atoms`, got None"),
        ({"atoms": 51, "huber": 1.0}, "`huber` 1.0 is for `atoms` None, got 51"),
        ({"dueling": "yes"}, "`dueling` must be True or False, got 'yes'"),
    ],
)
def test_bad_values(options, message):
    with pytest.raises(ConfigError, match=message):
        dqn.Config(**options)


def test_priorities_of_equal_distributions_are_not_negative():
    """Rounding makes KL(p ‖ p) slightly negative, which no buffer accepts as a priority."""
    setup = make_setup(atoms=51)
    batch = reference.random_batch(3, DISCRETE, 256, seed=0)
    params = 10.0 * setup.state.params  # for probabilities that differ
    log_probs = dqn.action_log_probs(
        setup.nets.outputs(params, batch.obs)[0], batch.action, setup.nets
    )
    target = log_probs.exp()
    _, (_, error) = dqn.loss(params, batch, target, None, setup.nets, setup.config)
    assert 0.0 <= error.min() <= error.max() < 1e-5


def test_rainbow_on_the_page_builds_its_network():
    """Atari's preset has no hidden layers, which dueling streams need."""
    page = Path(__file__).parents[2] / "docs" / "algorithms" / "dqn.md"
    (command,) = re.findall(r"    hotloop train dqn (.* --dueling .*)", page.read_text("utf-8"))
    config = parse(dqn.Config, command.split(), prog="dqn", presets=dqn.algorithm.presets)
    assert (config.noisy_std, config.atoms, config.batch_size) == (0.5, 51, 32)
    spaces = Spaces(obs_spec(4, 84, 84, dtype="uint8"), DISCRETE)
    nets = dqn.networks(config, spaces, torch.device("cpu"))
    assert nets.network.encoder == "nature"
    assert nets.head.size == 51 * 3


def test_options_override_a_preset():
    assert dqn.preset("CartPole-v1").total_timesteps == 100_000
    assert dqn.preset("CartPole-v1", learning_starts=7).learning_starts == 7
    assert dqn.preset("Acrobot-v1") == dqn.Config(env_id="Acrobot-v1")


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_cartpole_is_solved(tmp_path):
    options = {"eval_interval": 100_000, "eval_episodes": 20, "run_dir": str(tmp_path / "run")}
    dqn.train(dqn.preset("CartPole-v1", seed=1, **options))
    lines = RunDirectory.open(tmp_path / "run").metrics()
    assert lines[-1]["evaluation"]["timesteps"] == 100_000
    # The best window: the return drops and recovers, and its end depends on rounding.
    returns = [x for line in lines for x in line["episode_returns"]]
    assert np.convolve(returns, np.ones(20) / 20, "valid").max() >= 475
