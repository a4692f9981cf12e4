"""A2C: the accelerated class learns as the original does."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import stable_baselines3
from gymnasium import spaces

from tests.accelerate.parity import assert_equal_learning, train_both, twins
from tests.accelerate.random_env import RandomEnv

CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "defaults": (RandomEnv, {}),
    "adam": (RandomEnv, {"use_rms_prop": False}),
    "discrete": (partial(RandomEnv, action_space=spaces.Discrete(3)), {"ent_coef": 0.01}),
    "normalized": (RandomEnv, {"normalize_advantage": True, "vf_coef": 0.25}),
    "gsde": (RandomEnv, {"use_sde": True}),
    "schedule": (RandomEnv, {"learning_rate": lambda progress: 1e-3 * progress}),
}


# `make test-slow` has all cases, with more updates.
@pytest.mark.parametrize(
    ("name", "num_calls"),
    [
        *((name, 15) for name in ("defaults", "adam", "discrete")),
        *(pytest.param(name, 100, marks=pytest.mark.slow) for name in CASES),
    ],
)
def test_it_learns_the_same(name: str, num_calls: int) -> None:
    env, options = CASES[name]
    original, accelerated = twins(stable_baselines3.A2C, env, **options)
    train_both(original, accelerated, num_calls)
    assert_equal_learning(original, accelerated)
    assert not accelerated.acceleration.reasons().get("updates")
