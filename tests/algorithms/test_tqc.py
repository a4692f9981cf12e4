"""examples/tqc.py, an algorithm in a file of the user's."""

import pytest
import torch

from examples import tqc
from hotloop.errors import ConfigError
from hotloop.training import check_algorithm
from tests.algorithms.learners import make_learner_setup
from tests.algorithms.test_sac import UNIT
from tests.reference.off_policy import random_batch

# Two critics with two atoms, τ = ¼ and ¾. α = 0.
SMALL = {"num_critics": 2, "num_quantiles": 2, "num_dropped": 1, "hidden_sizes": (4,), "alpha": 0.0}
SMALL |= {"batch_size": 8, "torch_threads": 1, "execution": "eager"}


def test_contract():
    check_algorithm(tqc.algorithm, env="Pendulum-v1", replay="prioritized", n_step=3, num_critics=3)


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
