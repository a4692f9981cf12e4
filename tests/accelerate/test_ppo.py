"""PPO: the accelerated class learns and acts as the original does."""

from __future__ import annotations

import io
import pickle
from functools import partial
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
import stable_baselines3
import torch
from gymnasium import spaces
from stable_baselines3.common.callbacks import BaseCallback, CheckpointCallback, EvalCallback
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
from torch import nn

from hotloop.accelerate import PPO, accelerate
from hotloop.accelerate.acceleration import LOGGER, SETTINGS
from hotloop.learner import artifacts
from tests.accelerate.parity import assert_equal_learning, flat, set_up, train_both, twins
from tests.accelerate.random_env import RandomEnv

NETS = {"pi": [8, 8], "vf": [8]}
SMALL: dict[str, Any] = {"n_steps": 20, "batch_size": 10, "n_epochs": 10}


class DoubledFeatures(stable_baselines3.common.torch_layers.BaseFeaturesExtractor):
    """A custom features extractor with a buffer that changes while it trains."""

    def __init__(self, observation_space: spaces.Box) -> None:
        super().__init__(observation_space, 2 * observation_space.shape[0])
        self.norm = nn.BatchNorm1d(observation_space.shape[0])

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        obs = self.norm(obs)
        return torch.cat([obs, obs.square()], 1)


DICT = spaces.Dict(
    {"b": spaces.Box(-1, 1, (2,), np.float32), "a": spaces.Box(-1, 1, (3,), np.float32)}
)
IMAGE = spaces.Box(0, 255, (36, 36, 1), np.uint8)
CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "defaults": (RandomEnv, {}),
    "discrete": (partial(RandomEnv, action_space=spaces.Discrete(3)), {}),
    "multi_discrete": (partial(RandomEnv, action_space=spaces.MultiDiscrete([3, 2])), {}),
    "multi_binary": (partial(RandomEnv, action_space=spaces.MultiBinary(3)), {}),
    "discrete_obs": (partial(RandomEnv, observation_space=spaces.Discrete(5)), {}),
    "dict": (partial(RandomEnv, observation_space=DICT), {"policy": "MultiInputPolicy"}),
    "images": (
        partial(RandomEnv, observation_space=IMAGE),
        {
            "policy": "CnnPolicy",
            "n_epochs": 3,
            "policy_kwargs": {"net_arch": NETS, "features_extractor_kwargs": {"features_dim": 8}},
        },
    ),
    "no_normalization": (RandomEnv, {"normalize_advantage": False}),
    "value_clip": (RandomEnv, {"clip_range_vf": 0.1, "ent_coef": 0.01, "vf_coef": 0.7}),
    "schedules": (
        RandomEnv,
        {
            "learning_rate": lambda progress: 1e-3 * progress,
            "clip_range": lambda progress: 0.2 * progress,
            "clip_range_vf": lambda progress: 0.3 * progress,
        },
    ),
    "target_kl": (RandomEnv, {"target_kl": 0.001, "learning_rate": 3e-3}),
    "gsde": (RandomEnv, {"use_sde": True, "sde_sample_freq": 4}),
    "squashed_gsde": (
        RandomEnv,
        {"use_sde": True, "policy_kwargs": {"squash_output": True, "net_arch": [8]}},
    ),
    "truncated_minibatch": (RandomEnv, {"batch_size": 8}),
    "large_minibatch": (RandomEnv, {"batch_size": 100}),
    "extractor": (
        RandomEnv,
        {"policy_kwargs": {"features_extractor_class": DoubledFeatures, "net_arch": NETS}},
    ),
    "separate_extractors": (
        RandomEnv,
        {
            "policy_kwargs": {
                "features_extractor_class": DoubledFeatures,
                "share_features_extractor": False,
                "net_arch": NETS,
            }
        },
    ),
    "elu_adamw": (
        RandomEnv,
        {
            "policy_kwargs": {
                "activation_fn": nn.ELU,
                "ortho_init": False,
                "net_arch": NETS,
                "optimizer_class": torch.optim.AdamW,
                "optimizer_kwargs": {"weight_decay": 0.01, "betas": (0.8, 0.99)},
            }
        },
    ),
    "adam_with_decay": (
        RandomEnv,
        {"policy_kwargs": {"net_arch": NETS, "optimizer_kwargs": {"weight_decay": 0.01}}},
    ),
    "no_hidden_layers": (RandomEnv, {"policy_kwargs": {"net_arch": []}}),
}


# `make test-slow` has all cases, with more updates.
QUICK_CASES = [
    *("defaults", "multi_discrete", "dict", "images", "value_clip", "target_kl", "squashed_gsde"),
    *("truncated_minibatch", "separate_extractors", "elu_adamw"),
]


@pytest.mark.parametrize(
    ("name", "num_calls"),
    [
        *((name, 15) for name in QUICK_CASES),
        *(pytest.param(name, 100, marks=pytest.mark.slow) for name in CASES),
    ],
)
def test_it_learns_the_same(name: str, num_calls: int) -> None:
    env, options = CASES[name]
    small = {"policy_kwargs": {"net_arch": NETS}} if "policy" not in options else {}
    original, accelerated = twins(stable_baselines3.PPO, env, **{**SMALL, **small, **options})
    train_both(original, accelerated, num_calls // 10 if name == "images" else num_calls)
    assert_equal_learning(original, accelerated)
    assert not accelerated.acceleration.reasons().get("updates")


@pytest.mark.parametrize("name", CASES)
def test_updates_can_be_compiled(name: str) -> None:
    """An update's operations do not depend on values, and repeat in another process's model."""
    env, options = CASES[name]
    small = {"policy_kwargs": {"net_arch": NETS}} if "policy" not in options else {}
    keys: list[str] = []
    for model in twins(stable_baselines3.PPO, env, **{**SMALL, **small, **options}):
        accelerated = accelerate(model)
        callback = set_up(accelerated)
        accelerated.collect_rollouts(accelerated.env, callback, accelerated.rollout_buffer, 20)
        update = accelerated.prepared_update()
        minibatch = update.minibatch(next(accelerated.rollout_buffer.get(update.batch_size)))
        step = lambda *x: tuple(update.step(*x).values())  # noqa: B023, E731
        arguments = (update.parameters.state, minibatch, None, update.hyper)
        keys.append(artifacts.record(step, arguments).key)
    assert keys[0] == keys[1]


@pytest.mark.slow
def test_compiled_updates_learn_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SETTINGS, "execution", "compile")
    original, accelerated = twins(stable_baselines3.PPO, RandomEnv, **{**SMALL, "batch_size": 8})
    train_both(original, accelerated, 100)
    assert_equal_learning(original, accelerated)
    gradients = [[x.grad for x in model.policy.parameters()] for model in (original, accelerated)]
    torch.testing.assert_close(*gradients, rtol=1e-2, atol=1e-3)
    (update,) = accelerated.acceleration.updates.values()
    assert update.execution.mode_used == "compile"
    assert update.execution.num_recompilations == 0
    assert accelerated.acceleration.compile_s > 0


def test_it_compiles_when_more_updates_are_expected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many short calls of `learn` compile once enough updates have been made."""
    monkeypatch.setattr(SETTINGS, "execution", "auto")
    _, model = twins(stable_baselines3.PPO, RandomEnv, **SMALL)
    model.learn(20)
    (update,) = model.acceleration.updates.values()
    assert not update.execution.choice.is_compiled
    model.prepared_update().learn_id = 0
    model.acceleration.num_trains = 10**6
    model.prepared_update()
    assert update.execution.choice.is_compiled


GSDE: dict[str, Any] = {"use_sde": True, "sde_sample_freq": 4}
TWO_ENVS = partial(DummyVecEnv, [RandomEnv, RandomEnv])


@pytest.mark.parametrize(
    ("env", "options"),
    [
        (RandomEnv, {}),
        (partial(RandomEnv, action_space=spaces.Discrete(3)), {}),
        (partial(RandomEnv, action_space=spaces.MultiDiscrete([3, 2])), {}),
        (RandomEnv, GSDE),
        (TWO_ENVS, {**GSDE, "policy_kwargs": {"squash_output": True, "full_std": False}}),
        (TWO_ENVS, {"use_sde": True, "policy_kwargs": {"use_expln": True, "net_arch": []}}),
    ],
)
def test_it_acts_the_same(env: Any, options: dict[str, Any]) -> None:
    """One seed gives the same rollout, apart from rounding."""
    buffers: list[Any] = []
    original, accelerated = twins(stable_baselines3.PPO, env, **{**SMALL, **options})
    for model in (original, accelerated):
        model.set_random_seed(5)
        callback = set_up(model)
        model.collect_rollouts(model.env, callback, model.rollout_buffer, 20)
        buffers.append(model.rollout_buffer)
    assert not accelerated.acceleration.reasons()
    for name in ("observations", "actions", "rewards", "values", "log_probs", "advantages"):
        expected, actual = (getattr(x, name) for x in buffers)
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5, err_msg=name)


def test_it_acts_with_the_current_layers() -> None:
    """A layer that the user's code replaces acts in the next rollout."""
    _, model = twins(stable_baselines3.PPO, RandomEnv, **SMALL)
    model.learn(20)
    model.policy.value_net = nn.Linear(64, 1)
    nn.init.zeros_(model.policy.value_net.weight)
    nn.init.constant_(model.policy.value_net.bias, 3.0)
    callback = set_up(model)
    model.collect_rollouts(model.env, callback, model.rollout_buffer, 20)
    assert not model.acceleration.reasons()
    assert np.all(model.rollout_buffer.values == 3.0)


def test_files_are_those_of_the_original() -> None:
    """A model is saved and loaded by both classes, with the state of its optimizer."""
    original, accelerated = twins(stable_baselines3.PPO, RandomEnv, **SMALL)
    train_both(original, accelerated, 10)
    for model, loading in ((accelerated, stable_baselines3.PPO), (original, PPO)):
        file = io.BytesIO()
        model.save(file)
        file.seek(0)
        loaded = loading.load(file, env=RandomEnv(), device="cpu")
        assert type(loaded) is loading
        assert torch.equal(flat(loaded), flat(model))
        states = [x.policy.optimizer.state_dict() for x in (model, loaded)]
        assert repr(states[0]) == repr(states[1])
        assert "_hotloop" not in vars(loaded)
        obs = model.observation_space.sample()
        expected = model.predict(obs, deterministic=True)[0]
        assert np.array_equal(loaded.predict(obs, deterministic=True)[0], expected)
        # Both go on alike.
        train_both(*((loaded, model) if loading is stable_baselines3.PPO else (model, loaded)), 30)
        assert_equal_learning(*((loaded, model) if model is accelerated else (model, loaded)))


def test_replaced_values_are_taken_over() -> None:
    """`set_parameters`, a new optimizer, tensor and layer have effect between two updates."""

    def change(model: Any, k: int) -> None:
        torch.manual_seed(k)
        if k == 1:
            parameters = model.get_parameters()
            for x in parameters["policy"].values():
                x.mul_(0.5)
            model.set_parameters(parameters)
        elif k == 2:
            model.policy.optimizer = torch.optim.Adam(model.policy.parameters(), lr=1e-3)
        elif k == 3:
            model.policy.log_std.data = torch.full_like(model.policy.log_std.data, -1.0)
        elif k == 4:
            model.policy.value_net = nn.Linear(8, 1)
            model.policy.optimizer = torch.optim.Adam(model.policy.parameters(), lr=1e-3)
        elif k == 5:
            model.ent_coef, model.max_grad_norm = 0.02, 0.1
            model.normalize_advantage = False
        elif k == 6:
            model.policy.action_net.bias.requires_grad_(False)

    options = {**SMALL, "policy_kwargs": {"net_arch": NETS}}
    original, accelerated = twins(stable_baselines3.PPO, RandomEnv, **options)
    train_both(original, accelerated, 50, change)
    assert_equal_learning(original, accelerated)
    assert not accelerated.acceleration.reasons()


def test_a_parameter_that_is_unfrozen_learns_again() -> None:
    def change(model: Any, k: int) -> None:
        model.policy.action_net.bias.requires_grad_(k > 0)

    models = twins(stable_baselines3.PPO, RandomEnv, **{**SMALL, "n_epochs": 2})
    train_both(*models, 8, change)
    assert not models[1].acceleration.reasons()
    assert all(model.policy.action_net.bias.detach().abs().min() > 0 for model in models)


def test_models_are_pickled_and_copied() -> None:
    _, model = twins(stable_baselines3.PPO, RandomEnv, **SMALL)
    model.learn(20)
    copy = pickle.loads(cloudpickle.dumps(model))
    assert type(copy) is PPO
    assert copy._hotloop is None
    assert torch.equal(flat(copy), flat(model))
    before = flat(model)
    copy.learn(20)
    assert torch.equal(flat(model), before)
    assert not torch.equal(flat(copy), before)


class Dropout(stable_baselines3.common.torch_layers.BaseFeaturesExtractor):
    """A features extractor that draws random numbers."""

    def __init__(self, observation_space: spaces.Box) -> None:
        super().__init__(observation_space, observation_space.shape[0])
        self.dropout = nn.Dropout()

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return self.dropout(obs)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (
            {"policy_kwargs": {"optimizer_class": torch.optim.SGD}},
            "its optimizer is SGD, not Adam, AdamW or RMSprop",
        ),
        (
            {"policy_kwargs": {"optimizer_kwargs": {"amsgrad": True}}},
            "its optimizer's amsgrad is True",
        ),
        ({"policy_kwargs": {"features_extractor_class": Dropout}}, "draw random numbers"),
    ],
)
def test_what_is_not_supported_falls_back(
    options: dict[str, Any], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    options = {**SMALL, "n_epochs": 1, **options}
    accelerated = twins(stable_baselines3.PPO, RandomEnv, **options)[1]
    for _ in range(2):
        accelerated.learn(40)
    assert reason in accelerated.acceleration.reasons()["updates"]


def test_other_classes_stay_as_they_are() -> None:
    class Own(stable_baselines3.PPO):
        pass

    model = Own("MlpPolicy", RandomEnv(), device="cpu")
    assert type(accelerate(model)) is Own


class OwnForward(stable_baselines3.common.policies.ActorCriticPolicy):
    """A policy with a forward of its own."""

    def forward(self, obs: torch.Tensor, deterministic: bool = False) -> Any:
        return super().forward(obs, deterministic=True)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"policy": OwnForward}, "its OwnForward has its own forward"),
        ({"policy_kwargs": {"activation_fn": nn.ELU}}, "its activations are ELU, not Tanh or ReLU"),
    ],
)
def test_acting_falls_back_alone(
    options: dict[str, Any], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages: list[str] = []
    monkeypatch.setattr(LOGGER, "warning", lambda text, *args: messages.append(text % args))
    _, model = twins(stable_baselines3.PPO, RandomEnv, **SMALL, **options)
    model.learn(60)
    assert model.acceleration.reasons() == {"acting": reason}
    assert messages == [f"PPO: acting: Stable-Baselines3's own code, since {reason}"]


def test_parameters_that_are_not_finite_raise_the_originals_error() -> None:
    _, model = twins(stable_baselines3.PPO, RandomEnv, **SMALL)
    model.learn(20)
    with torch.no_grad():
        model.policy.action_net.bias.fill_(float("nan"))
    with pytest.raises(ValueError, match="to satisfy the constraint"):
        model.learn(20)


def test_callbacks_and_wrappers_see_the_original_loop(tmp_path: Path) -> None:
    """Evaluation, checkpoints and normalized environments work, and read the same locals."""
    seen: list[set[str]] = []

    class Reader(BaseCallback):
        def _on_step(self) -> bool:
            seen.append(set(self.locals))
            assert isinstance(self.locals["values"], torch.Tensor)
            assert "TimeLimit.truncated" in self.locals["infos"][0]
            return True

    results: list[Any] = []
    for cls in (stable_baselines3.PPO, PPO):
        env = VecNormalize(DummyVecEnv([RandomEnv, RandomEnv]))
        model = cls("MlpPolicy", env, seed=1, device="cpu", **{**SMALL, "n_epochs": 1})
        folder = tmp_path / cls.__module__
        callbacks = [
            Reader(),
            CheckpointCallback(20, str(folder), save_vecnormalize=True),
            EvalCallback(
                VecNormalize(DummyVecEnv([lambda: Monitor(RandomEnv())]), training=False),
                eval_freq=20,
                n_eval_episodes=2,
                verbose=0,
            ),
        ]
        model.learn(120, callback=callbacks)
        files = sorted(x.name for x in folder.iterdir())
        results.append((files, seen[-1], model.num_timesteps, len(model.ep_info_buffer)))
        loaded = cls.load(folder / "rl_model_40_steps.zip", env=env, device="cpu")
        assert loaded.num_timesteps == 40
    assert results[0] == results[1]
