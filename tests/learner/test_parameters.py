"""Soft updates of target networks."""

import pytest
import torch

from hotloop.learner import move_towards


@pytest.mark.parametrize(
    ("tau", "want"), [(0.0, [1.0, -2.0]), (0.25, [2.0, 0.0]), (0.5, [3.0, 2.0]), (1.0, [5.0, 6.0])]
)
def test_a_target_moves_part_of_the_way(tau, want):
    target, params = torch.tensor([1.0, -2.0]), torch.tensor([5.0, 6.0])
    address = target.data_ptr()
    move_towards(target, params, tau)
    assert target.tolist() == want
    assert target.data_ptr() == address
    assert params.tolist() == [5.0, 6.0]


def test_a_copied_target_stays_when_the_parameters_move_on():
    target, params = torch.zeros(2), torch.tensor([0.1, 1e30])
    move_towards(target, params, 1.0)
    assert torch.equal(target, params)
    params.add_(1.0)
    assert target.tolist() == torch.tensor([0.1, 1e30]).tolist()


def test_a_target_follows_geometrically():
    """After n moves towards fixed parameters, (1 − τ)ⁿ of the distance is left."""
    target, params = torch.zeros(1), torch.ones(1)
    for _ in range(200):
        move_towards(target, params, 0.005)
    assert target.item() == pytest.approx(1.0 - 0.995**200, rel=1e-4)
