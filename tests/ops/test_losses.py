import math

import numpy as np
import pytest
import torch

from hotloop.ops import distributions, losses


def tensor(*values):
    return torch.tensor(values)


def test_clipped_policy_loss_literal():
    # A gain of 1.5 is clipped to 1.2, and that of the second to −0.8.
    loss = losses.clipped_policy_loss(tensor(1.5, 0.5), tensor(1.0, -1.0), 0.2)
    assert loss.item() == pytest.approx(-(1.2 - 0.8) / 2)
    # Moves in the wrong direction are never clipped: min(0.5, 0.8) and min(−1.5, −1.2).
    loss = losses.clipped_policy_loss(tensor(0.5, 1.5), tensor(1.0, -1.0), 0.2)
    assert loss.item() == pytest.approx(-(0.5 - 1.5) / 2)


def test_clipped_policy_loss_has_no_gradient_where_clipped():
    ratio = tensor(1.5, 0.5, 1.1).requires_grad_()
    losses.clipped_policy_loss(ratio, tensor(1.0, -1.0, 3.0), 0.2).backward()
    np.testing.assert_allclose(ratio.grad, [0.0, 0.0, -1.0])


def test_value_losses_literal():
    value, old, returns = tensor(2.0, 1.2), tensor(1.0, 1.0), tensor(3.0, 1.0)
    assert losses.value_loss(value, old, returns).item() == pytest.approx((1.0 + 0.04) / 2)
    # The first value moved by 1, beyond 0.5: (1.5 − 3)² = 2.25 is the larger loss.
    loss = losses.value_loss(value, old, returns, clip_range=0.5)
    assert loss.item() == pytest.approx((2.25 + 0.04) / 2)
    # In units of 2 it moved by 0.5, beyond 0.25: ((1.5 − 3) / 2)².
    loss = losses.value_loss(value, old, returns, clip_range=0.25, unit=torch.tensor(2.0))
    assert loss.item() == pytest.approx((2.25 + 0.04) / 2 / 4)


def test_rows_without_weight_stay_finite():
    """A minibatch of sequences may have no transition, if an agent of a game is dead."""
    advantages = losses.normalized(tensor(1.0, 3.0), torch.zeros(2))
    assert losses.mean(advantages, torch.zeros(2)) == 0.0


def test_normalized_values_and_clip_fraction_literal():
    values = losses.normalized(tensor(1.0, 3.0), tensor(0.5, 1.5))
    # Mean 2.5, variance (0.5 · 1.5² + 1.5 · 0.5²) / 2 · 2 = 1.5.
    np.testing.assert_allclose(values, np.array([-1.5, 0.5]) / math.sqrt(1.5), rtol=1e-6)
    ratio, weight = tensor(1.1, 1.3, 0.7, 0.9), tensor(1.0, 2.0, 0.5, 0.5)
    assert losses.clip_fraction(ratio, 0.2).item() == 0.5
    assert losses.clip_fraction(ratio, 0.2, weight).item() == 2.5 / 4


def test_approximate_kl_literal():
    loss = losses.approximate_kl(tensor(math.log(2.0), 0.0))
    assert loss.item() == pytest.approx((1 - math.log(2.0)) / 2)


def test_categorical_literal():
    # Probabilities ¼ and ¾.
    log_prob, entropy = distributions.categorical(
        torch.tensor([[0.0, math.log(3.0)]]), torch.tensor([1])
    )
    assert log_prob.item() == pytest.approx(math.log(0.75))
    assert entropy.item() == pytest.approx(-0.25 * math.log(0.25) - 0.75 * math.log(0.75))


def test_multi_categorical_sums_its_parts():
    logits = torch.tensor([[0.0, math.log(3.0), 1.0, 1.0, 1.0]])
    log_prob, entropy = distributions.multi_categorical(logits, torch.tensor([[1, 2]]), (2, 3))
    assert log_prob.item() == pytest.approx(math.log(0.75) - math.log(3.0))
    assert entropy.item() == pytest.approx(0.5623351446 + math.log(3.0))


def test_diagonal_gaussian_literal():
    log_prob, entropy = distributions.diagonal_gaussian(
        torch.tensor([[1.0, 0.0]]),
        torch.tensor([math.log(2.0), 0.0]),
        torch.tensor([[3.0, 0.0]]),
    )
    half_log_2pi = 0.5 * math.log(2 * math.pi)
    assert log_prob.item() == pytest.approx(-0.5 - math.log(2.0) - 2 * half_log_2pi)
    assert entropy.item() == pytest.approx(1.0 + math.log(2.0) + 2 * half_log_2pi)
