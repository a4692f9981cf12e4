"""The accelerated off-policy classes learn and act as the originals do."""

from __future__ import annotations

import copy
import inspect
import io
from functools import partial
from typing import Any

import cloudpickle
import gymnasium as gym
import numpy as np
import pytest
import stable_baselines3
import torch
from gymnasium import spaces
from sb3_contrib import QRDQN, TQC
from stable_baselines3 import DDPG, DQN, SAC, TD3
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
from torch import nn

from hotloop.accelerate import accelerate
from hotloop.accelerate.acceleration import SETTINGS
from hotloop.accelerate.sampling import sample
from hotloop.learner import artifacts
from tests.accelerate.parity import set_up
from tests.accelerate.random_env import RandomEnv

NET = {"net_arch": [8, 8]}
SMALL: dict[str, Any] = {"buffer_size": 300, "batch_size": 16, "learning_starts": 20}
DISCRETE = partial(RandomEnv, action_space=spaces.Discrete(3))
IMAGE = spaces.Box(0, 255, (36, 36, 1), np.uint8)
DICT = spaces.Dict(
    {"b": spaces.Box(-1, 1, (2,), np.float32), "a": spaces.Box(-1, 1, (3,), np.float32)}
)


class Features(BaseFeaturesExtractor):
    """A custom features extractor with parameters."""

    def __init__(self, observation_space: spaces.Box) -> None:
        super().__init__(observation_space, 5)
        self.layer = nn.Linear(int(np.prod(observation_space.shape)), 5)

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return self.layer(obs).tanh()


class NormalizedFeatures(Features):
    """The same, with running statistics."""

    def __init__(self, observation_space: spaces.Box) -> None:
        super().__init__(observation_space)
        self.norm = nn.BatchNorm1d(5)

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return self.norm(super().forward(obs))


def vec_normalize(env: Any) -> VecNormalize:
    return VecNormalize(DummyVecEnv([env, env]))


class GoalEnv(gym.Env[Any, Any]):
    """A point that must reach a goal on a line."""

    def __init__(self) -> None:
        box = spaces.Box(-5.0, 5.0, (1,), np.float32)
        names = ("observation", "achieved_goal", "desired_goal")
        self.observation_space = spaces.Dict(dict.fromkeys(names, box))
        self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def _observe(self) -> dict[str, Any]:
        position = self._position.astype(np.float32)
        return {"observation": position, "achieved_goal": position, "desired_goal": self._goal}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._position, self._steps = np.zeros(1), 0
        self._goal = self.np_random.uniform(-2, 2, 1).astype(np.float32)
        return self._observe(), {}

    def compute_reward(self, achieved: Any, desired: Any, info: Any) -> Any:
        return -(np.abs(achieved - desired).sum(-1) > 0.3).astype(np.float32)

    def step(self, action: Any) -> Any:
        self._position = np.clip(self._position + 0.5 * action, -5, 5)
        self._steps += 1
        obs = self._observe()
        reward = float(self.compute_reward(obs["achieved_goal"], self._goal, {}))
        return obs, reward, reward == 0.0, self._steps >= 10, {}


def features(kind: type, **more: Any) -> dict[str, Any]:
    return {"policy_kwargs": {**NET, "features_extractor_class": kind, **more}}


HER: dict[str, Any] = {
    "policy": "MultiInputPolicy",
    "policy_kwargs": NET,
    "replay_buffer_class": stable_baselines3.HerReplayBuffer,
    "replay_buffer_kwargs": {"n_sampled_goal": 2},
}
NO_TIMEOUTS = {"handle_timeout_termination": False}
OPTIONS: dict[str, tuple[Any, dict[str, Any]]] = {
    "defaults": (RandomEnv, {}),
    "n_critics_1": (RandomEnv, {"policy_kwargs": {**NET, "n_critics": 1}}),
    "n_critics_3": (RandomEnv, {"policy_kwargs": {**NET, "n_critics": 3}}),
    "net_arch": (RandomEnv, {"policy_kwargs": {"net_arch": {"pi": [8], "qf": [9, 4]}}}),
    "no_hidden_layers": (RandomEnv, {"policy_kwargs": {"net_arch": []}}),
    "tau_1": (RandomEnv, {"tau": 1.0, "gamma": 0.9}),
    "schedule": (RandomEnv, {"learning_rate": lambda progress: 1e-2 * progress}),
    "two_envs": (lambda: DummyVecEnv([RandomEnv, RandomEnv]), {}),
    "vec_normalize": (lambda: vec_normalize(RandomEnv), {}),
    "optimize_memory": (
        RandomEnv,
        {"optimize_memory_usage": True, "replay_buffer_kwargs": NO_TIMEOUTS},
    ),
    "n_steps": (RandomEnv, {"n_steps": 3}),
    "dict": (
        partial(RandomEnv, observation_space=DICT),
        {"policy": "MultiInputPolicy", "policy_kwargs": NET},
    ),
    "her": (GoalEnv, HER),
    "images": (
        partial(RandomEnv, observation_space=IMAGE),
        {
            "policy": "CnnPolicy",
            "batch_size": 4,
            "buffer_size": 60,
            "policy_kwargs": {**NET, "features_extractor_kwargs": {"features_dim": 8}},
        },
    ),
    "extractor": (RandomEnv, features(Features)),
    "running_statistics": (RandomEnv, features(NormalizedFeatures)),
    "elu_adamw": (
        RandomEnv,
        {
            "policy_kwargs": {
                **NET,
                "activation_fn": nn.ELU,
                "optimizer_class": torch.optim.AdamW,
                "optimizer_kwargs": {"weight_decay": 0.01},
            }
        },
    ),
}
SAC_OPTIONS: dict[str, tuple[Any, dict[str, Any]]] = {
    **OPTIONS,
    "fixed_ent_coef": (RandomEnv, {"ent_coef": 0.05}),
    "initial_ent_coef": (RandomEnv, {"ent_coef": "auto_0.1", "target_entropy": -0.5}),
    "target_update_interval": (RandomEnv, {"target_update_interval": 3, "tau": 0.5}),
    "gsde": (RandomEnv, {"use_sde": True}),
    "gsde_expln": (
        RandomEnv,
        {"use_sde": True, "policy_kwargs": {**NET, "use_expln": True, "clip_mean": 0.0}},
    ),
    "shared_extractor": (RandomEnv, features(Features, share_features_extractor=True)),
    "shared_statistics": (RandomEnv, features(NormalizedFeatures, share_features_extractor=True)),
}
TD3_OPTIONS: dict[str, tuple[Any, dict[str, Any]]] = {
    **OPTIONS,
    "policy_delay": (RandomEnv, {"policy_delay": 3, "target_noise_clip": 0.1}),
    "shared_empty_extractor": (
        RandomEnv,
        {"policy_kwargs": {**NET, "share_features_extractor": True}},
    ),
}
DQN_OPTIONS: dict[str, tuple[Any, dict[str, Any]]] = {
    **{
        name: (env if name != "defaults" else DISCRETE, options)
        for name, (env, options) in OPTIONS.items()
        if name in ("defaults", "schedule", "n_steps", "extractor", "images", "running_statistics")
    },
    "max_grad_norm": (DISCRETE, {"max_grad_norm": 0.1, "gamma": 0.9}),
}
for _name in ("schedule", "n_steps", "extractor", "running_statistics"):
    DQN_OPTIONS[_name] = (DISCRETE, DQN_OPTIONS[_name][1])
DQN_OPTIONS["images"] = (
    partial(RandomEnv, observation_space=IMAGE, action_space=spaces.Discrete(3)),
    OPTIONS["images"][1],
)
FEW_QUANTILES = {"policy_kwargs": {**NET, "n_quantiles": 6}}
TQC_OPTIONS = {
    name: SAC_OPTIONS[name]
    for name in ("defaults", "fixed_ent_coef", "gsde", "shared_extractor", "n_steps")
}
CASES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    f"{cls.__name__}-{name}": (cls, env, options)
    for cls, cases in (
        (SAC, SAC_OPTIONS),
        (TD3, TD3_OPTIONS),
        (DDPG, {"defaults": (RandomEnv, {})}),
        (DQN, DQN_OPTIONS),
        (TQC, TQC_OPTIONS),
        (
            QRDQN,
            {
                "defaults": (DISCRETE, FEW_QUANTILES),
                "max_grad_norm": (DISCRETE, {"max_grad_norm": 0.1, **FEW_QUANTILES}),
            },
        ),
    )
    for name, (env, options) in cases.items()
}
if "n_steps" not in inspect.signature(SAC).parameters:  # Stable-Baselines3 before 2.7
    CASES = {name: case for name, case in CASES.items() if "n_steps" not in case[2]}
# `make test-slow` has all cases, with more updates.
QUICK_CASES = [
    *("SAC-defaults", "SAC-n_critics_3", "SAC-gsde", "SAC-her", "SAC-images"),
    *("SAC-shared_statistics", "SAC-target_update_interval"),
    *("TD3-defaults", "TD3-policy_delay", "TD3-dict", "TD3-elu_adamw", "DDPG-defaults"),
    *("DQN-defaults", "DQN-n_steps", "TQC-shared_extractor", "QRDQN-max_grad_norm"),
]


def twins(cls: Any, env: Any, **options: Any) -> tuple[Any, Any]:
    """Return an original model and an accelerated one with equal parameters and environments."""
    if options.get("policy", "MlpPolicy") == "MlpPolicy" and "policy_kwargs" not in options:
        options["policy_kwargs"] = NET
    options = {"policy": "MlpPolicy", **SMALL, **options}
    # A model changes its `policy_kwargs`.
    original, accelerated = (
        cls(env=env(), seed=3, device="cpu", **copy.deepcopy(options)) for _ in range(2)
    )
    return original, accelerate(accelerated)


def collect(model: Any, num_steps: int) -> None:
    """Fill the replay buffer with random actions."""
    callback = set_up(model)
    model.learning_starts = 10**6
    model.action_space.seed(3)
    model.collect_rollouts(
        model.env,
        callback,
        model.train_freq._replace(frequency=num_steps),
        model.replay_buffer,
        learning_starts=10**6,
    )


def flat(model: Any) -> torch.Tensor:
    """Return all parameters and buffers of a model, and its temperature, as one vector."""
    values = [*model.policy.state_dict().values()]
    if getattr(model, "log_ent_coef", None) is not None:
        values.append(model.log_ent_coef)
    return torch.cat([x.detach().flatten().to(torch.float32) for x in values])


def train_both(models: Any, num_calls: int, gradient_steps: int) -> None:
    """Let models learn from equal batches and noise."""
    for k in range(num_calls):
        for model in models:
            model._current_progress_remaining = 1.0 - k / 20
            np.random.seed(k)
            torch.manual_seed(k)
            model.train(gradient_steps, model.batch_size)


def assert_equal(original: Any, accelerated: Any, tolerance: float = 1e-4) -> None:
    """Compare parameters, numbers of updates and logged values of two models."""
    difference = (flat(accelerated) - flat(original)).norm()
    assert difference <= tolerance * flat(original).norm()
    assert accelerated._n_updates == original._n_updates
    logs = [
        {k: v for k, v in x.logger.name_to_value.items() if k.startswith("train/")}
        for x in (original, accelerated)
    ]
    assert logs[0].keys() == logs[1].keys()
    for name, value in logs[0].items():
        np.testing.assert_allclose(logs[1][name], value, rtol=1e-3, atol=1e-4, err_msg=name)
        assert isinstance(logs[1][name], float) == isinstance(value, float), name  # for its digits


@pytest.mark.parametrize(
    ("name", "num_calls"),
    [
        *((name, 3) for name in QUICK_CASES if name in CASES),
        *(pytest.param(name, 20, marks=pytest.mark.slow) for name in CASES),
    ],
)
def test_it_learns_the_same(name: str, num_calls: int) -> None:
    cls, env, options = CASES[name]
    original, accelerated = models = twins(cls, env, **options)
    for model in models:
        collect(model, 50)
    assert torch.equal(flat(original), flat(accelerated))
    before = flat(original)
    if options.get("policy") == "CnnPolicy":
        num_calls //= 3
    train_both(models, num_calls, gradient_steps=5)
    assert not torch.allclose(flat(original), before, atol=1e-4)
    assert not accelerated.acceleration.reasons()
    assert_equal(original, accelerated)
    assert_updates_can_be_recorded(accelerated)


def assert_updates_can_be_recorded(model: Any) -> None:
    """Record the operations of an update, as its compilation does."""
    update = model._prepared_update(model.batch_size)
    batch = update.next_batch(model)
    for bound in update._bound:
        noise = (
            None if bound.execution.name == "update of the actor" else update.draw_noise(batch[0])
        )
        recorded = artifacts.record(bound.run_packed, (bound._state_and_hyper, batch, noise))
        assert len(recorded.key) == 64


ACTION_NOISE = NormalActionNoise(np.zeros(2), 0.1 * np.ones(2))
LEARNING: dict[str, tuple[Any, dict[str, Any]]] = {
    "SAC-episode": (SAC, {"train_freq": (1, "episode"), "gradient_steps": -1}),
    "SAC-noise": (SAC, {"action_noise": ACTION_NOISE}),
    "SAC-gsde": (SAC, {"use_sde": True}),
    "SAC-gsde-sampled": (
        SAC,
        {"use_sde": True, "sde_sample_freq": 4, "train_freq": 8, "use_sde_at_warmup": True},
    ),
    "TD3-noise": (TD3, {"action_noise": ACTION_NOISE}),
    "TD3-episode": (TD3, {"train_freq": (2, "episode"), "gradient_steps": 7}),
    "DDPG": (DDPG, {"train_freq": 3, "gradient_steps": -1}),
    "TQC": (TQC, FEW_QUANTILES),
    "QRDQN": (QRDQN, {"target_update_interval": 16, **FEW_QUANTILES}),
    "DQN": (DQN, {"target_update_interval": 16, "exploration_fraction": 0.5}),
    "DQN-soft": (DQN, {"target_update_interval": 1, "tau": 0.1}),
}
# The others act in several environments by the code of these. Stable-Baselines3 counts episodes in
# one environment only.
TWO_ENVS = ("SAC-gsde", "TD3-noise", "DDPG", "QRDQN", "DQN")


@pytest.mark.parametrize(
    ("name", "num_envs"), [*((x, 1) for x in LEARNING), *((x, 2) for x in TWO_ENVS)]
)
def test_a_whole_run_is_the_same(name: str, num_envs: int) -> None:
    """One seed gives the same actions, transitions and parameters, apart from rounding."""
    cls, options = LEARNING[name]
    kind = DISCRETE if cls in (DQN, QRDQN) else RandomEnv
    env = kind if num_envs == 1 else lambda: DummyVecEnv([kind, kind])
    models = twins(cls, env, **options)
    for model in models:
        model.set_logger(Logger(None, []))
        model.set_random_seed(3)
        model.learn(70, log_interval=None)
    original, accelerated = models
    assert accelerated.acceleration.reasons() == {}
    assert set(accelerated.acceleration.parts) == {"updates", "acting"}
    for name in ("observations", "next_observations", "actions", "rewards", "dones", "timeouts"):
        expected, actual = (getattr(x.replay_buffer, name) for x in models)
        np.testing.assert_allclose(actual, expected, rtol=1e-3, atol=1e-4, err_msg=name)
    assert_equal(original, accelerated, 1e-3)


@pytest.mark.parametrize(("cls", "env"), [(SAC, RandomEnv), (TD3, RandomEnv), (DQN, DISCRETE)])
def test_files_are_those_of_the_original(cls: Any, env: Any) -> None:
    """Both classes load each other's models and replay buffers, and go on alike."""
    original, accelerated = twins(cls, env)
    collect(original, 50)
    collect(accelerated, 50)
    train_both((original, accelerated), 2, 5)
    for model, loading in ((accelerated, cls), (original, type(accelerated))):
        file, buffer = io.BytesIO(), io.BytesIO()
        model.save(file)
        model.save_replay_buffer(buffer)
        file.seek(0)
        buffer.seek(0)
        loaded = loading.load(file, env=env(), device="cpu")
        loaded.load_replay_buffer(buffer)
        assert type(loaded) is loading
        assert torch.equal(flat(loaded), flat(model))
        loaded.set_logger(Logger(None, []))
        train_both((model, loaded), 2, 5)
        pair = (loaded, model) if loading is cls else (model, loaded)
        assert_equal(*pair)


def test_a_copy_is_independent() -> None:
    model = twins(SAC, RandomEnv)[1]
    model.learn(60)
    # As `model.save`: schedules of Stable-Baselines3 before 2.7 are functions without a name.
    duplicate = cloudpickle.loads(cloudpickle.dumps(model))
    assert type(duplicate) is type(model)
    assert duplicate._hotloop is None
    assert torch.equal(flat(duplicate), flat(model))
    before = flat(model)
    duplicate.learn(60)
    assert torch.equal(flat(model), before)
    assert not torch.equal(flat(duplicate), before)


def test_replaced_values_are_taken_over() -> None:
    """`set_parameters`, other optimizers and settings have effect between two updates."""
    models = twins(SAC, RandomEnv)
    for model in models:
        collect(model, 50)
    for k in range(5):
        for model in models:
            torch.manual_seed(k)
            if k == 1:
                parameters = model.get_parameters()
                for x in parameters["policy"].values():
                    x.mul_(0.5)
                model.set_parameters(parameters)
            elif k == 2:
                model.actor.optimizer = torch.optim.Adam(model.actor.parameters(), lr=1e-3)
            elif k == 3:
                model.gamma, model.tau, model.target_entropy = 0.5, 0.5, -1.0
                model.log_ent_coef.data = torch.full((1,), -2.0)
            elif k == 4:
                model.critic.qf0[0] = nn.Linear(5, 8)
                model.critic.optimizer = torch.optim.Adam(model.critic.parameters(), lr=1e-3)
        train_both(models, 1, 5)
    assert not models[1].acceleration.reasons()
    assert_equal(*models)


def test_new_layers_act_if_the_updates_are_not_accelerated() -> None:
    models = twins(SAC, RandomEnv, policy_kwargs={"optimizer_class": torch.optim.SGD, **NET})
    for model in models:
        model.set_logger(Logger(None, []))
        for seed in range(2):
            model.set_random_seed(seed)
            model.learn(30, log_interval=None)
            torch.manual_seed(5)
            model.actor.mu = nn.Linear(8, model.action_space.shape[0])
            model.actor.mu.bias.data.fill_(1.0)
        model.learn(20, log_interval=None, reset_num_timesteps=False)
    assert "acting" not in models[1].acceleration.reasons()
    first, second = (model.replay_buffer.actions for model in models)
    np.testing.assert_allclose(first, second, atol=1e-5)


class OwnActor(stable_baselines3.sac.policies.Actor):
    """An actor whose distribution is computed in another way."""

    def action_log_prob(self, obs: Any) -> Any:
        return super().action_log_prob(obs)


class OwnPolicy(stable_baselines3.sac.policies.SACPolicy):
    """A policy with its own actor."""

    def make_actor(self, features_extractor: Any = None) -> Any:
        return OwnActor(**self._update_features_extractor(self.actor_kwargs, features_extractor))


class Dropout(Features):
    """A features extractor that draws random numbers."""

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(super().forward(obs), training=self.training)


SGD = {"optimizer_class": torch.optim.SGD, **NET}


@pytest.mark.parametrize(
    ("cls", "options", "reasons"),
    [
        (SAC, {"policy_kwargs": SGD}, {"updates": "its optimizer is SGD, not Adam"}),
        (
            SAC,
            {"policy": OwnPolicy, "policy_kwargs": NET},
            {"updates": "its OwnActor has its own action_log_prob", "acting": "is OwnActor"},
        ),
        (
            TD3,
            features(Features, share_features_extractor=True),
            {"updates": "share a features extractor", "acting": "extractor is Features"},
        ),
        (TD3, features(Dropout), {"updates": "draw random numbers", "acting": "Dropout"}),
        (DQN, {"policy_kwargs": SGD}, {"updates": "its optimizer is SGD, not Adam"}),
    ],
)
def test_what_is_not_supported_falls_back(
    cls: Any, options: dict[str, Any], reasons: dict[str, str]
) -> None:
    models = twins(cls, DISCRETE if cls is DQN else RandomEnv, **options)
    for model in models:
        model.set_logger(Logger(None, []))
        model.set_random_seed(3)
        model.learn(35, log_interval=None)
    actual = models[1].acceleration.reasons()
    assert actual.keys() == reasons.keys()
    for name, reason in reasons.items():
        assert reason in actual[name]
    assert_equal(*models)


@pytest.mark.parametrize("name", ["vectors", "images"])
def test_bfloat16_learns_nearly_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of at least 64 numbers and convolutions are rounded, and no other operations."""
    monkeypatch.setattr(SETTINGS, "precision", "bfloat16")
    env, options = SAC_OPTIONS["images" if name == "images" else "defaults"]
    layers = {**options.get("policy_kwargs", {}), "net_arch": [64, 64]}
    options = {**options, "policy_kwargs": layers}
    original, accelerated = models = twins(SAC, env, **options)
    for model in models:
        collect(model, 50)
    before = flat(original)
    train_both(models, 2, 5)
    difference = (flat(accelerated) - flat(original)).norm()
    assert 1e-6 * before.norm() < difference < 0.2 * (flat(original) - before).norm()


def test_bfloat16_leaves_small_layers_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SETTINGS, "precision", "bfloat16")
    original, accelerated = models = twins(SAC, RandomEnv)
    for model in models:
        collect(model, 50)
    train_both(models, 6, 5)
    assert_equal(original, accelerated)


class OwnGenerator(ReplayBuffer):
    """A buffer whose batches do not depend on the global generators."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.rng, self.count = np.random.default_rng(5), 0

    def sample(self, batch_size: int, env: Any = None) -> Any:
        self.count += 1
        return self._get_samples(self.rng.integers(0, self.size(), batch_size), env)


@pytest.mark.parametrize("cls", [SAC, TD3, DQN])
def test_a_buffer_of_the_users_returns_each_batch_once(cls: Any) -> None:
    env = DISCRETE if cls is DQN else RandomEnv
    original, accelerated = models = twins(cls, env, replay_buffer_class=OwnGenerator)
    for model in models:
        collect(model, 50)
    train_both(models, 2, 5)
    assert [x.replay_buffer.count for x in models] == [10, 10]
    assert_equal(original, accelerated)


@pytest.mark.parametrize("space", [np.float32, np.float64])
@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("is_full", [False, True])
@pytest.mark.parametrize("options", [{}, {"optimize_memory_usage": True, **NO_TIMEOUTS}])
def test_batches_are_those_of_the_buffer(
    space: Any, num_envs: int, is_full: bool, options: dict[str, Any]
) -> None:
    box = spaces.Box(-1, 1, (3,), space)
    buffer = ReplayBuffer(60, box, spaces.Discrete(4), device="cpu", n_envs=num_envs, **options)
    rng = np.random.default_rng(1)
    for _ in range(70 if is_full else 11):
        obs, next_obs = rng.normal(size=(2, num_envs, 3))
        infos = [{"TimeLimit.truncated": bool(rng.random() < 0.5)} for _ in range(num_envs)]
        actions, reward = rng.integers(4, size=num_envs), rng.normal(size=num_envs)
        buffer.add(obs, next_obs, actions, reward, rng.random(num_envs) < 0.5, infos)
    np.random.seed(4)
    expected = buffer.sample(32)
    np.random.seed(4)
    for one, other in zip(expected, sample(buffer, 32), strict=True):
        assert (one is None and other is None) or torch.equal(one, other)
