"""Hyper-parameters: tensors that stay, schedules that change them."""

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from hotloop.errors import ConfigError
from hotloop.learner import HyperParameters
from hotloop.ops.schedules import linear

CPU = torch.device("cpu")


class Hyper(NamedTuple):
    learning_rate: Any
    critic_learning_rate: Any
    clip_range: Any
    gamma: Any


def make_hyper():
    return HyperParameters(Hyper(linear(1e-3, 0.0), 3e-4, "linear:0.2,0.1,0.5", 0.99), CPU)


def test_a_run_begins_with_the_first_values():
    hyper = make_hyper()
    assert hyper.floats == Hyper(1e-3, 3e-4, 0.2, 0.99)
    assert type(hyper.floats) is type(hyper.tensors) is Hyper
    for tensor, value in zip(hyper.tensors, hyper.floats, strict=True):
        assert (tensor.dtype, tensor.shape, tensor.device) == (torch.float32, (), CPU)
        assert tensor.item() == np.float32(value)


def test_the_tensors_stay_and_their_values_follow():
    hyper = make_hyper()
    tensors = [*hyper.tensors]
    for progress, rate, clip in ((0.25, 7.5e-4, 0.15), (0.5, 5e-4, 0.1), (1.0, 0.0, 0.1)):
        hyper.set(progress)
        assert hyper.floats == pytest.approx(Hyper(rate, 3e-4, clip, 0.99), rel=1e-12)
        for current, tensor, value in zip(hyper.tensors, tensors, hyper.floats, strict=True):
            assert current is tensor
            assert tensor.item() == np.float32(value)
    hyper.set(0.0)  # also back
    assert hyper.tensors.learning_rate.item() == np.float32(1e-3)


def test_changed_value_stays_until_its_schedule_moves():
    hyper = make_hyper()
    hyper.tensors.gamma.fill_(0.5)
    hyper.set(0.5)
    assert hyper.tensors.gamma.item() == 0.5


def test_metrics_contain_rates_and_scheduled_values():
    hyper = make_hyper()
    hyper.set(0.5)
    assert hyper.reported_values() == {
        "learning_rate": 5e-4,
        "critic_learning_rate": 3e-4,
        "clip_range": pytest.approx(0.1),
    }


def test_misspelled_schedule_is_refused():
    with pytest.raises(ConfigError, match="did you mean 'linear'"):
        HyperParameters(Hyper("linaer:1,0", 1.0, 1.0, 1.0), CPU)
