import numpy as np
import pytest
import torch

from hotloop.learner import (
    AdamState,
    ParameterLayout,
    adam_step,
    clip_grad_norm,
    move_towards,
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


def test_views_change_with_the_parameters():
    """They are the tensor's own memory, both ways, whatever their shapes."""
    flat = LAYOUT.pack(arrays())
    views = LAYOUT.views(flat)
    assert {name: x.shape for name, x in views.items()} == LAYOUT.shapes
    for name, x in views.items():
        np.testing.assert_array_equal(x, arrays()[name])
    flat.mul_(2.0)
    for name, x in views.items():
        np.testing.assert_array_equal(x, 2.0 * arrays()[name])
    views["a"][0, 0] = 77.0
    assert LAYOUT.unpack(flat)["a"][0, 0] == 77.0
    # Of what is being differentiated, too.
    of_leaf = LAYOUT.views(flat.requires_grad_())
    assert of_leaf["a"].ctypes.data == views["a"].ctypes.data


@pytest.mark.parametrize(
    ("tau", "want"), [(0.0, [1.0, -2.0]), (0.25, [2.0, 0.0]), (0.5, [3.0, 2.0]), (1.0, [5.0, 6.0])]
)
def test_a_target_moves_part_of_the_way(tau, want):
    target, params = torch.tensor([1.0, -2.0]), torch.tensor([5.0, 6.0])
    place = target.data_ptr()
    move_towards(target, params, tau)
    assert target.tolist() == want
    assert target.data_ptr() == place
    assert params.tolist() == [5.0, 6.0]


def test_a_copied_target_stays_when_the_parameters_move_on():
    target, params = torch.zeros(2), torch.tensor([0.1, 1e30])
    move_towards(target, params, 1.0)
    assert torch.equal(target, params)
    params.add_(1.0)
    assert target.tolist() == torch.tensor([0.1, 1e30]).tolist()


def test_a_target_follows_geometrically():
    """After n moves towards parameters that stand still, (1 − τ)ⁿ of the way is left."""
    target, params = torch.zeros(1), torch.ones(1)
    for _ in range(200):
        move_towards(target, params, 0.005)
    assert target.item() == pytest.approx(1.0 - 0.995**200, rel=1e-4)


def test_optimizers_of_several_networks_are_kept_apart():
    states = {name: AdamState.zeros(torch.zeros(3)) for name in ("policy_adam", "critics_adam")}
    for number, (name, state) in enumerate(states.items(), 1):
        params = torch.zeros(3)
        for _ in range(number):
            adam_step(
                params, torch.full((3,), 0.5 * number), state, learning_rate=torch.tensor(0.1)
            )
        assert set(state.to_arrays(name)) == {f"{name}.mean", f"{name}.square", f"{name}.step"}
    arrays = {k: x for name, state in states.items() for k, x in state.to_arrays(name).items()}
    assert len(arrays) == 6
    before = {name: x.copy() for name, x in arrays.items()}
    for number, (name, state) in enumerate(states.items(), 1):
        restored = AdamState.zeros(torch.zeros(3))
        mean = restored.mean
        restored.load(arrays, name)
        assert restored.mean is mean  # in place: a compiled update goes on with it
        assert restored.step.item() == number
        assert torch.equal(restored.mean, state.mean)
        assert torch.equal(restored.square, state.square)
        adam_step(torch.zeros(3), torch.ones(3), state, learning_rate=torch.tensor(0.1))
        adam_step(torch.zeros(3), torch.ones(3), restored, learning_rate=torch.tensor(0.1))
        assert torch.equal(restored.mean, state.mean)
    for name, x in arrays.items():  # copies
        np.testing.assert_array_equal(x, before[name])
    assert set(AdamState.zeros(torch.zeros(3)).to_arrays()) == {
        "adam.mean",
        "adam.square",
        "adam.step",
    }
    with pytest.raises(KeyError, match="adam"):
        AdamState.zeros(torch.zeros(3)).load(arrays)
