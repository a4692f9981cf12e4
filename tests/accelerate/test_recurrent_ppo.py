"""RecurrentPPO: the accelerated class learns and acts as the original does."""

from __future__ import annotations

import io
from functools import partial
from typing import Any

import numpy as np
import pytest
import sb3_contrib
import torch
from gymnasium import spaces
from sb3_contrib.common.recurrent.buffers import RecurrentRolloutBuffer
from sb3_contrib.common.recurrent.policies import RecurrentActorCriticPolicy
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
from torch import nn

from hotloop.accelerate import RecurrentPPO
from hotloop.accelerate.acceleration import SETTINGS
from tests.accelerate.parity import assert_equal_learning, flat, set_up, train_both, twins
from tests.accelerate.random_env import RandomEnv

DISCRETE = partial(RandomEnv, action_space=spaces.Discrete(3))
LONG = partial(RandomEnv, length=1000)
TWO_ENVS = partial(DummyVecEnv, [RandomEnv, RandomEnv])
DICT = spaces.Dict(
    {"b": spaces.Box(-1, 1, (2,), np.float32), "a": spaces.Box(-1, 1, (3,), np.float32)}
)
NETS: dict[str, Any] = {"net_arch": {"pi": [8], "vf": [8, 8]}, "lstm_hidden_size": 6}
SMALL: dict[str, Any] = {"policy": "MlpLstmPolicy", "n_steps": 20, "batch_size": 10, "n_epochs": 2}
CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "defaults": (RandomEnv, {}),
    "long_episodes": (LONG, {}),
    "discrete": (DISCRETE, {}),
    "two_envs": (TWO_ENVS, {"batch_size": 15}),
    "vec_normalize": (lambda: VecNormalize(TWO_ENVS()), {"batch_size": 40}),
    "dict": (partial(RandomEnv, observation_space=DICT), {"policy": "MultiInputLstmPolicy"}),
    "two_layers": (RandomEnv, {"policy_kwargs": {**NETS, "n_lstm_layers": 2}}),
    "shared": (
        RandomEnv,
        {"policy_kwargs": {**NETS, "shared_lstm": True, "enable_critic_lstm": False}},
    ),
    "linear_critic": (RandomEnv, {"policy_kwargs": {**NETS, "enable_critic_lstm": False}}),
    "no_bias": (RandomEnv, {"policy_kwargs": {**NETS, "lstm_kwargs": {"bias": False}}}),
    "gsde": (RandomEnv, {"use_sde": True, "sde_sample_freq": 4}),
    "value_clip": (RandomEnv, {"clip_range_vf": 0.1, "ent_coef": 0.01, "vf_coef": 0.7}),
    "target_kl": (RandomEnv, {"target_kl": 0.001, "learning_rate": 3e-3}),
    "no_normalization": (RandomEnv, {"normalize_advantage": False, "batch_size": 8}),
}


def recurrent_twins(env: Any, options: dict[str, Any]) -> tuple[Any, Any]:
    return twins(sb3_contrib.RecurrentPPO, env, **{**SMALL, "policy_kwargs": NETS, **options})


# The original needs ten seconds for 100 updates.
SLOW_CASES = [pytest.param(name, 100, marks=pytest.mark.slow) for name in CASES]


@pytest.mark.parametrize(("name", "num_updates"), [("defaults", 12), *SLOW_CASES])
def test_it_learns_the_same(name: str, num_updates: int) -> None:
    env, options = CASES[name]
    original, accelerated = recurrent_twins(env, {"n_epochs": max(2, num_updates // 10), **options})
    train_both(original, accelerated, num_updates)
    assert_equal_learning(original, accelerated)
    assert not accelerated.acceleration.reasons().get("updates")


LEARNING_ONLY = ("value_clip", "target_kl", "no_normalization")


@pytest.mark.parametrize("name", [x for x in CASES if x not in ("dict", *LEARNING_ONLY)])
def test_it_acts_the_same(name: str) -> None:
    """One seed gives the same rollout, apart from rounding."""
    buffers: list[Any] = []
    models = recurrent_twins(*CASES[name])
    for model in models:
        model.set_random_seed(5)
        callback = set_up(model)
        for _ in range(2):
            model.collect_rollouts(model.env, callback, model.rollout_buffer, 20)
        buffers.append(model.rollout_buffer)
    assert not models[1].acceleration.reasons()
    names = "observations", "actions", "rewards", "values", "log_probs", "advantages"
    states = "hidden_states_pi", "cell_states_pi", "hidden_states_vf", "cell_states_vf"
    for name in (*names, *states):
        expected, actual = (getattr(x, name) for x in buffers)
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5, err_msg=name)


def test_updates_are_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SETTINGS, "execution", "compile")
    model = recurrent_twins(RandomEnv, {})[1]
    model.learn(20)
    assert model.acceleration.compile_s == 0.0
    assert "differ in the lengths of their sequences" in model.acceleration.summary()[-1]


def test_files_are_those_of_the_original() -> None:
    models = recurrent_twins(RandomEnv, {})
    train_both(*models, 4)
    for model, loading in zip(models, (RecurrentPPO, sb3_contrib.RecurrentPPO), strict=True):
        file = io.BytesIO()
        model.save(file)
        file.seek(0)
        loaded = loading.load(file, env=RandomEnv(), device="cpu")
        assert type(loaded) is loading
        assert torch.equal(flat(loaded), flat(model))
        train_both(*((model, loaded) if loading is RecurrentPPO else (loaded, model)), 8)
        assert_equal_learning(model, loaded)


class NormalizedFeatures(BaseFeaturesExtractor):
    """A features extractor with running statistics."""

    def __init__(self, observation_space: spaces.Box) -> None:
        super().__init__(observation_space, observation_space.shape[0])
        self.norm = nn.BatchNorm1d(observation_space.shape[0])

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return self.norm(obs)


class OwnPolicy(RecurrentActorCriticPolicy):
    """A policy that evaluates its actions by its own code."""

    def evaluate_actions(
        self, obs: Any, actions: Any, lstm_states: Any, episode_starts: Any
    ) -> Any:
        return super().evaluate_actions(obs, actions, lstm_states, episode_starts)


class OwnBuffer(RecurrentRolloutBuffer):
    """A buffer of another class."""


@pytest.mark.parametrize(
    ("options", "reasons"),
    [
        (
            {"policy_kwargs": {**NETS, "n_lstm_layers": 2, "lstm_kwargs": {"dropout": 0.5}}},
            {"updates": "its LSTM's dropout is 0.5", "acting": "its LSTM's dropout is 0.5"},
        ),
        (
            {"policy_kwargs": {**NETS, "features_extractor_class": NormalizedFeatures}},
            {"updates": "the original's padding", "acting": "extractor is NormalizedFeatures"},
        ),
        ({"policy": OwnPolicy}, {"updates": "its OwnPolicy has its own evaluate_actions"}),
    ],
)
def test_what_is_not_supported_falls_back(options: dict[str, Any], reasons: dict[str, str]) -> None:
    models = recurrent_twins(RandomEnv, options)
    train_both(*models, 4)
    assert_equal_learning(*models)
    models[1].learn(20)
    actual = models[1].acceleration.reasons()
    assert actual.keys() == reasons.keys()
    for name, reason in reasons.items():
        assert reason in actual[name]


def test_another_buffer_falls_back() -> None:
    model = recurrent_twins(RandomEnv, {})[1]
    model.rollout_buffer.__class__ = OwnBuffer
    model.learn(20)
    assert model.acceleration.reasons() == {"updates": "its rollout buffer is OwnBuffer"}
