"""Shortcuts of a rollout: the same buffers as the original's, to the last bit."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.buffers import DictRolloutBuffer, RolloutBuffer
from stable_baselines3.common.vec_env import dummy_vec_env

from hotloop.accelerate.rollout_shortcuts import FAST_COPIES, deep_copy, rollout_shortcuts
from tests.accelerate.random_env import CONTINUOUS, VECTORS

DICT = spaces.Dict({"a": VECTORS, "b": VECTORS})


def filled_buffer(kind: Any, space: Any, action_space: Any) -> Any:
    """Return a buffer with random steps of three environments."""
    rng = np.random.default_rng(1)
    buffer = kind(9, space, action_space, device="cpu", gae_lambda=0.9, gamma=0.97, n_envs=3)
    for _ in range(9):
        if isinstance(space, spaces.Dict):
            obs: Any = {name: rng.normal(size=(3, 3)) for name in space.spaces}
        else:
            obs = rng.normal(size=(3, 3))
        if isinstance(action_space, spaces.Discrete):
            action = rng.integers(4, size=(3, 1))
        else:
            action = rng.normal(size=(3, 2)).astype(np.float32)
        buffer.add(
            obs,
            action,
            rng.normal(size=3),
            rng.random(3) < 0.3,
            torch.from_numpy(rng.normal(size=(3, 1)).astype(np.float32)),
            torch.from_numpy(rng.normal(size=3).astype(np.float32)),
        )
    buffer.compute_returns_and_advantage(
        last_values=torch.tensor([[0.5], [1.5], [-0.5]]), dones=np.array([True, False, False])
    )
    return buffer


@pytest.mark.parametrize("action_space", [CONTINUOUS, spaces.Discrete(4)])
@pytest.mark.parametrize(("kind", "space"), [(RolloutBuffer, VECTORS), (DictRolloutBuffer, DICT)])
def test_buffers_are_equal(kind: Any, space: Any, action_space: Any) -> None:
    expected = filled_buffer(kind, space, action_space)

    def shortened(*args: Any, **kwargs: Any) -> Any:
        buffer = kind(*args, **kwargs)
        context = rollout_shortcuts(buffer)
        context.__enter__()
        contexts.append(context)
        return buffer

    contexts: list[Any] = []
    actual = filled_buffer(shortened, space, action_space)
    assert "compute_returns_and_advantage" in vars(actual)
    assert ("add" in vars(actual)) == (kind is RolloutBuffer)
    contexts[0].__exit__(None, None, None)
    assert "compute_returns_and_advantage" not in vars(actual)
    assert vars(actual).keys() == vars(expected).keys()
    for name, value in vars(expected).items():
        if isinstance(value, np.ndarray):
            assert np.array_equal(getattr(actual, name), value), name
            assert getattr(actual, name).dtype == value.dtype
    assert (actual.pos, actual.full) == (expected.pos, expected.full)


def test_classes_with_their_own_methods_keep_them() -> None:
    class OwnBuffer(RolloutBuffer):
        def compute_returns_and_advantage(self, *args: Any, **kwargs: Any) -> None:
            self.advantages[:] = 1.0

    buffer = OwnBuffer(2, VECTORS, CONTINUOUS, device="cpu")
    with rollout_shortcuts(buffer):
        assert "compute_returns_and_advantage" not in vars(buffer)
        assert "add" not in vars(buffer)


def test_a_copy_function_of_the_users_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    def users_copy(value: Any) -> Any:
        return copy.deepcopy(value)

    module: Any = dummy_vec_env
    monkeypatch.setattr(module, "deepcopy", users_copy)
    with FAST_COPIES:
        assert module.deepcopy is users_copy
    monkeypatch.undo()
    with FAST_COPIES, FAST_COPIES:
        assert module.deepcopy is deep_copy
    assert module.deepcopy is copy.deepcopy


@pytest.mark.parametrize(
    "value",
    [
        [{"a": 1.0, "b": np.float64(2.0)}, {"terminal_observation": np.ones(3), "c": {"d": [1]}}],
        {None: np.ones((2, 3), np.float32)},
        {"objects": np.array([[1], None], dtype=object), "numbers": np.ones(3)},
        np.ones(3),
    ],
)
def test_copies_share_nothing(value: Any) -> None:
    original, result = copy.deepcopy(value), deep_copy(value)
    assert repr(result) == repr(original)
    if isinstance(value, list):
        value[1]["terminal_observation"][0] = 5.0
        value[1]["c"]["d"].append(2)
        value[0]["a"] = 7.0
    elif isinstance(value, dict):
        next(iter(value.values()))[0] = 5.0
    else:
        value[0] = 5.0
    assert repr(result) == repr(original)
