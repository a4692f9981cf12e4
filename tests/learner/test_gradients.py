"""Gradients of a loss by each parameter, and clipping."""

import numpy as np
import pytest
import torch

from hotloop.learner import clip_grad_norm, value_and_grad
from hotloop.policies.parameters import ParameterLayout

LAYOUT = ParameterLayout({"a": (2, 3), "b": (), "c": (4,)})


def arrays(seed=0):
    rng = np.random.default_rng(seed)
    return {k: rng.standard_normal(s).astype(np.float32) for k, s in LAYOUT.shapes.items()}


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


def test_clip_grad_norm_literal():
    grad, norm = clip_grad_norm(torch.tensor([3.0, 4.0]), 0.5)
    assert norm.item() == pytest.approx(5.0)
    np.testing.assert_allclose(grad, [0.3, 0.4], rtol=1e-5)
    grad, _ = clip_grad_norm(torch.tensor([0.03, 0.04]), 0.5)
    np.testing.assert_allclose(grad, [0.03, 0.04])
