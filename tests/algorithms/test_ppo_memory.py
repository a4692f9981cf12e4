"""PPO with recurrent networks: its update compared with one environment at a time."""

import dataclasses
from functools import partial

import numpy as np
import pytest
import torch

from hotloop.algorithms import ppo
from hotloop.cli import main
from hotloop.errors import ConfigError
from hotloop.learner import UpdateRule
from hotloop.training.learners import make_learner
from hotloop.training.minibatches import Passes
from hotloop.training.run_updates import UpdateRequest, run_updates
from tests.policies.nets import Spaces
from tests.policies.test_policies import DISCRETE, obs_spec
from tests.reference import memory as reference

LENGTH, COUNT = 8, 4  # of sequences
OPTIONS = {
    "num_envs": COUNT,
    "num_steps": LENGTH,
    "num_minibatches": 2,
    "update_epochs": 8,
    "execution": "eager",
    "hidden_sizes": (6,),
    "learning_rate": 1e-3,
    "entropy_coef": 0.01,
}


def sequences(size, memory_size):
    """Return sequences in which episodes begin, with rows of weight 0."""
    rng = np.random.default_rng(0)
    shape = LENGTH, COUNT
    begins = rng.random(shape) < 0.2
    assert begins[1:].any()
    weight = (rng.random(shape) < 0.9).astype(np.float32)
    return {
        "obs": rng.standard_normal((*shape, size)).astype(np.float32),
        "action": rng.integers(0, 3, shape),
        "log_prob": np.log(rng.uniform(0.2, 0.5, shape)).astype(np.float32),
        "value": rng.standard_normal(shape).astype(np.float32),
        "advantages": rng.standard_normal(shape).astype(np.float32),
        "returns": rng.standard_normal(shape).astype(np.float32),
        "weight": weight / weight.mean(),
        "memory": rng.uniform(-1, 1, (COUNT, memory_size)).astype(np.float32),
        "begins": begins,
    }


def train_iteration(config, nets, fields):
    """Return the parameters after an iteration on these sequences."""
    learner = make_learner(
        ppo.algorithm,
        config,
        nets,
        [UpdateRule(function=partial(ppo.update, nets=nets, config=config))],
        device=torch.device("cpu"),
        stream=1,
        num_batches=config.num_updates,
        batch_size=config.minibatch_size,
    )
    batch = ppo.Batch(**{name: torch.from_numpy(x) for name, x in fields.items()})
    passes = Passes(learner, config, learner.state.active)
    run_updates(UpdateRequest(learner, passes.minibatches(batch), ("update",)))
    assert passes.metrics["num_updates"] == 16
    return learner.publish(1).params


@pytest.mark.parametrize(
    ("kind", "normalize_value"), [("lstm", None), ("gru", None), ("lstm", False)]
)
def test_update_equals_one_environment_at_a_time(kind, normalize_value):
    """16 minibatches in float64. A hidden state that leaks into an episode makes a difference."""
    config = ppo.Config(**OPTIONS, memory=f"{kind}:5", normalize_value=normalize_value, seed=0)
    nets = ppo.networks(config, Spaces(obs_spec(3), DISCRETE), torch.device("cpu"))
    params = nets.network.initial_parameters(0)
    fields = sequences(3, nets.network.memory_size)
    params_after = train_iteration(config, nets, fields)

    peer = reference.RecurrentNetworks(params, kind)
    rng = np.random.default_rng((0, 1))
    orders = [torch.from_numpy(rng.permutation(COUNT)) for _ in range(config.update_epochs)]
    optimizer = torch.optim.Adam(peer.parameters(), lr=config.learning_rate, eps=1e-5)
    double = {name: torch.from_numpy(x) for name, x in fields.items()}
    double = {name: x.double() if x.is_floating_point() else x for name, x in double.items()}
    reference.learn(peer, optimizer, double, orders, config)

    for name, expected in peer.numpy().items():
        np.testing.assert_allclose(params_after[name], expected, rtol=1e-3, atol=1e-5, err_msg=name)
        assert not np.allclose(params_after[name], params[name], rtol=1e-3, atol=1e-5)

    leaking = train_iteration(config, nets, {**fields, "begins": np.zeros_like(fields["begins"])})
    differences = [np.abs(leaking[name] - params_after[name]).max() for name in params_after]
    assert max(differences) > 1e-3  # a hundred times the tolerance above


@pytest.mark.parametrize("scale", [1e-4, 1e4])
@pytest.mark.parametrize("options", [{}, {"clip_value_loss": True}])
def test_scale_of_returns_does_not_matter(scale, options):
    config = ppo.Config(**OPTIONS, **options, memory="lstm:5", seed=0)
    nets = ppo.networks(config, Spaces(obs_spec(3), DISCRETE), torch.device("cpu"))
    fields = sequences(3, nets.network.memory_size)
    fields["returns"] += 3.0  # a mean that is not 0
    params = train_iteration(config, nets, fields)
    scaled = {name: fields[name] * np.float32(scale) for name in ("value", "returns")}
    scaled_params = train_iteration(config, nets, {**fields, **scaled})
    for name, expected in params.items():
        unit = scale if name.startswith("value.1") else 1.0  # the value's last layer
        np.testing.assert_allclose(
            scaled_params[name] / unit, expected, rtol=1e-3, atol=1e-4, err_msg=name
        )


def test_value_of_a_custom_network_cannot_be_normalized():
    config = ppo.Config(network="tests.policies.nets:Net", normalize_value=True)
    nets = ppo.networks(config, Spaces(obs_spec(3), DISCRETE), torch.device("cpu"))
    with pytest.raises(ConfigError, match="its last layer is unknown: leave out `normalize_value`"):
        ppo.init(nets, config)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"memory": "lstm"}, "`memory` must be lstm:UNITS or gru:UNITS, such as lstm:128, got"),
        ({"memory": "lstm:0"}, "got 'lstm:0'"),
        ({"memory": "rnn:8"}, "got 'rnn:8'"),
        ({"sequence_length": 16}, "`sequence_length` 16 needs `memory`, got None: set `memory`"),
        (
            {"memory": "gru:8", "sequence_length": 64},
            "`sequence_length` must divide a fragment, `num_steps` = 32, got 64",
        ),
        (
            {"memory": "gru:8", "sequence_length": 5},
            "divide a fragment, `num_steps` = 32, got 5",
        ),
        (
            {"memory": "gru:8", "num_minibatches": 8},
            "must divide the number of sequences, 4, as a minibatch holds whole ones, got 8",
        ),
        (
            {"memory": "gru:8", "schedule": "variable", "workers": 2},
            "`schedule` 'variable' collects different numbers of steps: choose 'barrier'",
        ),
        (
            {"memory": "gru:8", "network": "tests.policies.nets:Net", "hidden_sizes": (64, 64)},
            "`memory` adds a recurrent layer to hotloop's own networks",
        ),
    ],
)
def test_bad_options_are_refused(options, message):
    def make():
        config = ppo.Config(**{"num_envs": 4, "num_steps": 32, "num_minibatches": 2, **options})
        ppo.networks(config, Spaces(obs_spec(3), DISCRETE), torch.device("cpu"))

    with pytest.raises(ConfigError, match=message):
        make()


def test_memory_without_recurrent_networks_is_refused(tmp_path):
    def forgetful(config, spaces, device):
        return ppo.networks(dataclasses.replace(config, memory=None), spaces, device)

    algorithm = dataclasses.replace(ppo.algorithm, networks=forgetful)
    config = ppo.Config(memory="gru:4", runs_dir=str(tmp_path))
    with pytest.raises(ConfigError, match="are not recurrent, got `memory` 'gru:4': pass `memory="):
        algorithm.train(config, progress=False)


@pytest.mark.parametrize("option", ["--memory", "--sequence-length", "--burn-in"])
def test_memory_options_of_crossq_are_refused(capsys, option):
    assert main(["train", "crossq", option, "8"]) == 2
    name = option.removeprefix("--").replace("-", "_")
    assert f"`{name}` is not an option of crossq; " in capsys.readouterr().err
