"""TQC: its loss, its update against the reference, restoring, lanes."""

import pytest
import torch

from hotloop.algorithms import tqc
from hotloop.errors import ConfigError
from hotloop.learner import torch_threads
from tests.algorithms.learners import assert_learner_is_restored, make_learner_setup
from tests.algorithms.test_sac import UNEVEN, UNIT
from tests.reference import off_policy as reference
from tests.reference.off_policy import random_batch

# Two critics with two atoms, τ = ¼ and ¾. α = 0.
SMALL = {"num_critics": 2, "num_quantiles": 2, "num_dropped": 1, "hidden_sizes": (4,), "alpha": 0.0}
SMALL |= {"batch_size": 8, "torch_threads": 1, "execution": "eager"}


@pytest.fixture(autouse=True)
def one_thread():
    with torch_threads(1):
        yield


@pytest.mark.parametrize(
    ("options", "action_spec", "weighed"),
    [
        ({"num_critics": 3, "num_quantiles": 5}, UNIT, False),
        ({"num_critics": 2, "num_dropped": 0, "policy_frequency": 2, "alpha": 0.3}, UNEVEN, True),
        ({"num_critics": 1, "num_quantiles": 4, "layer_norm": True, "tau": 0.3}, UNEVEN, True),
    ],
)
def test_update_equals_the_reference(options, action_spec, weighed):
    """20 updates, compared with torch modules in float64 and torch's Adam."""
    rates = {"policy_learning_rate": 3e-3, "critic_learning_rate": 5e-3}
    base = {"batch_size": 32, "hidden_sizes": (16, 12), "execution": "eager", "torch_threads": 1}
    setup = make_learner_setup(tqc.algorithm, action_spec, **base, **rates, **options)
    config, nets, state = setup.config, setup.nets, setup.state
    peer = reference.TQC(
        action_spec,
        nets.policy.layout.unpack(state.policy),
        nets.critics.layout.unpack(state.critics),
        config,
    )
    draw_noise, rows, policy_rows = setup.draw_noise(), [], []
    for k in range(20):
        batch = random_batch(3, action_spec, 32, seed=k, weighed=weighed)
        td_error = setup.update(batch)
        metrics, new_rows, expected_error = peer.update(batch, draw_noise)
        rows.append(metrics)
        policy_rows += new_rows
        torch.testing.assert_close(td_error.double(), expected_error, rtol=1e-3, atol=1e-3)
    expected = reference.means(rows) | reference.means(policy_rows)
    assert setup.means() == pytest.approx(expected, rel=1e-3, abs=1e-4)
    reference.assert_same_parameters(
        reference.actor_module(config, nets.policy.layout.unpack(state.policy)), peer.policy
    )
    for flat, modules in (
        (state.critics, peer.critics.modules),
        (state.targets, peer.critics.targets),
    ):
        named = nets.critics.layout.unpack(flat)
        reference.assert_same_parameters(reference.critic_modules(config, named), modules)


def test_learner_is_restored():
    assert_learner_is_restored(
        tqc.algorithm, UNIT, lambda k: random_batch(3, UNIT, 8, seed=k), **SMALL
    )


def test_quantile_loss_literal():
    """Atoms are 0. With y = 2 and −½, the Huber losses are 1½ and ⅛."""
    nets = make_learner_setup(tqc.algorithm, UNIT, **SMALL).nets
    batch = random_batch(3, UNIT, 8, seed=0)
    target = torch.tensor([[2.0, -0.5]]).expand(8, 2)
    params = torch.zeros(nets.critics.num_params)
    loss, atoms = tqc.quantile_loss(params, batch, batch.action, target, nets)
    assert atoms.shape == (2, 8, 2)
    # ¼ · 1½ + ¾ · ⅛ for the first atom, ¾ · 1½ + ¼ · ⅛ for the second; both critics have the same.
    assert loss.item() == pytest.approx(2 * (0.375 + 0.09375 + 1.125 + 0.03125) / 4)


def test_target_drops_the_largest_atoms_of_all_critics():
    """Of 1, 4 and 2, 3, the target keeps 1 and 2: y = 1 + ½ · 1 and 1 + ½ · 2."""
    setup = make_learner_setup(tqc.algorithm, UNIT, **SMALL)
    setup.state.critics.zero_()
    setup.state.targets.zero_()
    biases = setup.nets.critics.layout.unpack(setup.state.targets)["critic.1.bias"]
    biases.copy_(torch.tensor([[[1.0, 4.0]], [[2.0, 3.0]]]))
    batch = random_batch(3, UNIT, 8, seed=0)
    batch = batch._replace(reward=torch.ones(8), discount=torch.full((8,), 0.5))
    td_error = setup.update(batch)
    torch.testing.assert_close(td_error, torch.full((8,), (1.5 + 2.0) / 2))
    # Both errors are positive: (¼ + ¾) · (1 + 1½) / 4 for each critic.
    assert setup.means()["critic_loss"] == pytest.approx(1.25)


def test_target_needs_an_atom():
    with pytest.raises(ConfigError, match="`num_dropped` must be less than `num_quantiles` = 3"):
        tqc.Config(num_quantiles=3, num_dropped=3)
