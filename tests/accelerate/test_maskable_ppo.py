"""MaskablePPO: the accelerated class learns and acts as the original does."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import sb3_contrib
from gymnasium import spaces

from tests.accelerate.parity import assert_equal_learning, set_up, train_both, twins
from tests.accelerate.random_env import RandomEnv

DISCRETE = partial(RandomEnv, action_space=spaces.Discrete(4))
MULTI_DISCRETE = partial(RandomEnv, action_space=spaces.MultiDiscrete([3, 2]))
SMALL: dict[str, Any] = {"n_steps": 20, "batch_size": 10, "n_epochs": 4}


@pytest.mark.parametrize("env", [DISCRETE, MULTI_DISCRETE])
def test_it_learns_the_same(env: Any) -> None:
    original, accelerated = twins(sb3_contrib.MaskablePPO, env, **SMALL)
    train_both(original, accelerated, 24)
    assert_equal_learning(original, accelerated)
    assert not accelerated.acceleration.reasons()


@pytest.mark.parametrize("env", [DISCRETE, MULTI_DISCRETE])
def test_it_acts_the_same(env: Any) -> None:
    """One seed gives the same rollout, apart from rounding, and only allowed actions."""
    buffers: list[Any] = []
    for model in twins(sb3_contrib.MaskablePPO, env, **SMALL):
        model.set_random_seed(5)
        callback = set_up(model)
        model.collect_rollouts(model.env, callback, model.rollout_buffer, 20)
        buffers.append(model.rollout_buffer)
    assert not model.acceleration.reasons()
    for name in ("observations", "actions", "values", "log_probs", "advantages", "action_masks"):
        expected, actual = (getattr(x, name) for x in buffers)
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5, err_msg=name)
    if isinstance(model.action_space, spaces.Discrete):
        masks = actual.reshape(20, -1)
        assert masks[np.arange(20), buffers[1].actions.astype(int).reshape(20)].all()
