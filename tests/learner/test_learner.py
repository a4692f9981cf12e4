import numpy as np
import pytest
import torch

from hotloop.learner import (
    AdamState,
    ParameterLayout,
    adam_step,
    clip_grad_norm,
    torch_threads,
    value_and_grad,
)

LAYOUT = ParameterLayout({"a": (2, 3), "b": (), "c": (4,)})


def arrays(seed=0):
    rng = np.random.default_rng(seed)
    return {k: rng.standard_normal(s).astype(np.float32) for k, s in LAYOUT.shapes.items()}


def test_pack_and_unpack_are_inverse():
    given = arrays()
    flat = LAYOUT.pack(given)
    assert flat.shape == (11,)
    for name, part in LAYOUT.unpack(flat).items():
        np.testing.assert_array_equal(part.numpy(), given[name])
    for name, part in LAYOUT.to_numpy(flat).items():
        np.testing.assert_array_equal(part, given[name])


def test_published_copies_stay_when_parameters_move():
    flat = LAYOUT.pack(arrays())
    published = LAYOUT.to_numpy(flat)
    before = {name: array.copy() for name, array in published.items()}
    flat.add_(1.0)
    for name, array in before.items():
        np.testing.assert_array_equal(published[name], array)


def test_value_and_grad_is_the_gradient_by_each_parameter():
    flat = LAYOUT.pack(arrays())

    def loss(params, scale):
        named = LAYOUT.unpack(params)
        value = scale * (named["a"].square().sum() + named["c"].sum() * named["b"])
        return value, named["b"].detach()

    value, aux, grad = value_and_grad(loss, flat, 3.0)
    got = {name: part.numpy() for name, part in LAYOUT.unpack(grad).items()}
    named = arrays()
    np.testing.assert_allclose(got["a"], 6.0 * named["a"], rtol=1e-6)
    np.testing.assert_allclose(got["b"], 3.0 * named["c"].sum(), rtol=1e-5)
    np.testing.assert_allclose(got["c"], np.full(4, 3.0 * named["b"]), rtol=1e-6)
    assert aux.item() == named["b"]
    assert not value.requires_grad
    assert not flat.requires_grad


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


def test_clip_grad_norm_literal():
    grad, norm = clip_grad_norm(torch.tensor([3.0, 4.0]), 0.5)
    assert norm.item() == pytest.approx(5.0)
    np.testing.assert_allclose(grad, [0.3, 0.4], rtol=1e-5)
    grad, _ = clip_grad_norm(torch.tensor([0.03, 0.04]), 0.5)
    np.testing.assert_allclose(grad, [0.03, 0.04])


def test_threads_are_given_back():
    before = torch.get_num_threads()

    def fail():
        with torch_threads(before + 1):
            assert torch.get_num_threads() == before + 1
            raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"):
        fail()
    assert torch.get_num_threads() == before
