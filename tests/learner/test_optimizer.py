"""Adam compared with torch's."""

import numpy as np
import pytest
import torch

from hotloop.errors import CheckpointError
from hotloop.learner import AdamState, adam_step
from hotloop.learner.state import clone, load_arrays, to_arrays


@pytest.mark.parametrize("use_active", [False, True])
def test_adam_is_torchs_adam(use_active):
    torch.manual_seed(0)
    start = torch.randn(7)
    peer = start.clone().requires_grad_()
    optimizer = torch.optim.Adam([peer], lr=0.01, eps=1e-5)
    params, state = start.clone(), AdamState.zeros(start)
    active = torch.tensor(True) if use_active else None
    for _ in range(50):
        grad = torch.randn(7) * torch.logspace(-6, 3, 7)
        peer.grad = grad.clone()
        optimizer.step()
        adam_step(params, grad, state, learning_rate=torch.tensor(0.01), eps=1e-5, active=active)
    torch.testing.assert_close(params, peer.detach(), rtol=1e-5, atol=1e-6)
    assert state.step.item() == 50


def test_adam_changes_nothing_where_inactive():
    params = torch.randn(5)
    state = AdamState.zeros(params)
    rate = torch.tensor(0.1)
    for _ in range(2):  # also before the first step, where both corrections are 0 / 0
        before = (params.clone(), state.mean.clone(), state.square.clone(), state.step.clone())
        adam_step(
            params,
            torch.full((5,), float("nan")),
            state,
            learning_rate=rate,
            active=torch.tensor(False),
        )
        after = (params, state.mean, state.square, state.step)
        assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
        adam_step(params, torch.ones(5), state, learning_rate=rate, active=torch.tensor(True))
        assert not torch.equal(params, before[0])


def test_optimizers_of_several_networks_are_stored_separately():
    states = {name: AdamState.zeros(torch.zeros(3)) for name in ("policy_adam", "critics_adam")}
    for number, state in enumerate(states.values(), 1):
        params = torch.zeros(3)
        for _ in range(number):
            adam_step(
                params, torch.full((3,), 0.5 * number), state, learning_rate=torch.tensor(0.1)
            )
    arrays = to_arrays(clone(states))
    assert set(arrays) == {
        f"state.{name}.{part}" for name in states for part in ("mean", "square", "step")
    }
    before = {name: x.copy() for name, x in arrays.items()}
    restored_states = {name: AdamState.zeros(torch.zeros(3)) for name in states}
    means = {name: state.mean for name, state in restored_states.items()}
    load_arrays(restored_states, arrays)
    for number, (name, state) in enumerate(states.items(), 1):
        restored = restored_states[name]
        assert restored.mean is means[name]  # in place: a compiled update keeps using it
        assert restored.step.item() == number
        assert torch.equal(restored.mean, state.mean)
        assert torch.equal(restored.square, state.square)
        adam_step(torch.zeros(3), torch.ones(3), state, learning_rate=torch.tensor(0.1))
        adam_step(torch.zeros(3), torch.ones(3), restored, learning_rate=torch.tensor(0.1))
        assert torch.equal(restored.mean, state.mean)
    for name, x in arrays.items():  # copies
        np.testing.assert_array_equal(x, before[name])
    assert set(to_arrays({"adam": states["policy_adam"]}, "")) == {
        "adam.mean",
        "adam.square",
        "adam.step",
    }
    with pytest.raises(CheckpointError, match="adam"):
        load_arrays({"adam": AdamState.zeros(torch.zeros(3))}, arrays)
