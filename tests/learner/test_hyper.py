"""Hyper-parameters: tensors that stay, schedules that change them, nothing compiled anew."""

import shutil
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from hotloop.errors import ConfigError
from hotloop.learner import AdamState, Choice, Execution, HyperParameters, adam_step
from hotloop.learner.gradients import clip_grad_norm, value_and_grad
from hotloop.learner.state import clone
from hotloop.ops.schedules import cosine, linear, piecewise

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
CPU = torch.device("cpu")


class Hyper(NamedTuple):
    learning_rate: Any
    critic_learning_rate: Any
    clip_range: Any
    gamma: Any


def made():
    return HyperParameters(Hyper(linear(1e-3, 0.0), 3e-4, "linear:0.2,0.1,0.5", 0.99), CPU)


def test_a_run_begins_with_the_first_values():
    hyper = made()
    assert hyper.floats == Hyper(1e-3, 3e-4, 0.2, 0.99)
    assert type(hyper.floats) is type(hyper.tensors) is Hyper
    for tensor, value in zip(hyper.tensors, hyper.floats, strict=True):
        assert (tensor.dtype, tensor.shape, tensor.device) == (torch.float32, (), CPU)
        assert tensor.item() == np.float32(value)


def test_the_tensors_stay_and_their_values_follow():
    hyper = made()
    tensors = [*hyper.tensors]
    for progress, rate, clip in ((0.25, 7.5e-4, 0.15), (0.5, 5e-4, 0.1), (1.0, 0.0, 0.1)):
        hyper.set(progress)
        assert hyper.floats == pytest.approx(Hyper(rate, 3e-4, clip, 0.99), rel=1e-12)
        for now, tensor, value in zip(hyper.tensors, tensors, hyper.floats, strict=True):
            assert now is tensor
            assert tensor.item() == np.float32(value)
    hyper.set(0.0)  # also back
    assert hyper.tensors.learning_rate.item() == np.float32(1e-3)


def test_what_a_user_has_changed_stays_until_its_schedule_moves():
    hyper = made()
    hyper.tensors.gamma.fill_(0.5)
    hyper.set(0.5)
    assert hyper.tensors.gamma.item() == 0.5


def test_metrics_say_rates_and_what_has_a_schedule():
    hyper = made()
    hyper.set(0.5)
    assert hyper.reported() == {
        "learning_rate": 5e-4,
        "critic_learning_rate": 3e-4,
        "clip_range": pytest.approx(0.1),
    }


def test_a_schedule_that_is_written_wrongly():
    with pytest.raises(ConfigError, match="did you mean 'linear'"):
        HyperParameters(Hyper("linaer:1,0", 1.0, 1.0, 1.0), CPU)


def update(bound, x, y):
    """A step of least squares in which every number comes from `Hyper`."""
    (params, adam), hyper = bound

    def loss(params, x, y, hyper):
        error = (x @ params - hyper.gamma * y).clamp(-hyper.clip_range, hyper.clip_range)
        return error.square().mean(), error.abs().amax()

    value, largest, grad = value_and_grad(loss, params, x, y, hyper)
    grad, norm = clip_grad_norm(grad, hyper.clip_range)
    adam_step(params, grad, adam, learning_rate=hyper.learning_rate)
    params.mul_(1.0 - hyper.critic_learning_rate)
    return torch.stack([value, largest, norm])


@needs_compiler
def test_what_schedules_change_is_not_compiled_anew():
    """Each number changes at each step; compiled once, the result is what eager gives."""
    schedules = Hyper(
        learning_rate=cosine(0.05, 0.001),
        critic_learning_rate=linear(0.0, 0.01),
        clip_range=piecewise([(0.0, 3.0), (0.5, 0.5), (1.0, 2.0)]),
        gamma=linear(0.5, 1.0),
    )
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.standard_normal((16, 4), np.float32))
    y = torch.from_numpy(rng.standard_normal(16, np.float32))
    params = torch.zeros(4)
    begun = (params, AdamState.zeros(params))
    results = []
    for is_compiled in (False, True):
        hyper = HyperParameters(schedules, CPU)
        bound = (clone(begun), hyper.tensors)
        execution = Execution(update, Choice(is_compiled, ""))
        rows = []
        for k in range(30):
            hyper.set(k / 30)
            rows.append(execution(bound, x, y))
        assert execution.num_recompilations == 0
        assert (execution.compile_s > 0) == is_compiled
        results.append((torch.stack(rows), *bound[0][:1], *vars_of(bound[0][1])))
    for eager, compiled in zip(*results, strict=True):
        torch.testing.assert_close(compiled, eager, rtol=1e-4, atol=1e-5)
    assert results[0][1].abs().min() > 0.01  # it has learned

    # And they do count: with the first values throughout, the parameters would be others.
    still = HyperParameters(schedules, CPU)
    bound = (clone(begun), still.tensors)
    for _ in range(30):
        update(bound, x, y)
    assert not torch.allclose(bound[0][0], results[0][1], atol=1e-2)


def vars_of(adam):
    return adam.mean, adam.square, adam.step
