"""Hooks, gradients, replaced methods and other code of a user's that reads or changes a model."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable
from functools import partial
from types import MethodType
from typing import Any

import numpy as np
import pytest
import stable_baselines3
import torch
from gymnasium import spaces
from stable_baselines3 import DDPG, DQN, SAC, TD3
from stable_baselines3.common.buffers import ReplayBuffer, RolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.sac.policies import Actor
from torch import nn
from torch.distributions import Distribution

import hotloop.accelerate
from hotloop.accelerate import report
from hotloop.accelerate.module_calls import WITHOUT_VALUE_READS
from tests.accelerate.parity import assert_equal_learning, train_both, twins
from tests.accelerate.random_env import RandomEnv

PPO: dict[str, Any] = {"n_steps": 20, "batch_size": 10, "n_epochs": 2}
REPLAY: dict[str, Any] = {"learning_starts": 2, "batch_size": 4}
NET = {"net_arch": [4]}
DISCRETE = partial(RandomEnv, action_space=spaces.Discrete(3))


def ppo(**options: Any) -> Any:
    return twins(stable_baselines3.PPO, RandomEnv, **PPO, **options)[1]


def off_policy(kind: Any, **options: Any) -> Any:
    env = DISCRETE if kind is DQN else RandomEnv
    return twins(kind, env, **REPLAY, policy_kwargs=dict(NET), **options)[1]


def _hook_parameter(model: Any, call: Callable[..., None]) -> None:
    next(model.policy.parameters()).register_hook(call)


def _hook_layer(model: Any, call: Callable[..., None]) -> None:
    list(model.policy.modules())[-1].register_full_backward_hook(call)


def _hook_optimizer(model: Any, call: Callable[..., None]) -> None:
    model.policy.optimizer.register_step_post_hook(call)


@pytest.mark.parametrize("kind", ["PPO", "DQN"])
@pytest.mark.parametrize(
    ("register", "reason"),
    [
        (_hook_parameter, "has hooks, which read or change gradients"),
        (_hook_layer, "has backward hooks"),
        (_hook_optimizer, "its optimizer's step was replaced or has hooks"),
    ],
)
def test_hooks_of_gradients_are_called(kind: str, register: Any, reason: str) -> None:
    model = ppo() if kind == "PPO" else off_policy(DQN)
    calls: list[int] = []
    if register is not _hook_optimizer:  # found also if the update is prepared already
        model.learn(20)
        assert not model.acceleration.reasons()
    if kind == "DQN":
        model.q_net_target.requires_grad_(False)
    layers = {"PPO": model.policy, "DQN": getattr(model, "q_net", None)}
    owner = model if register is _hook_optimizer else type("", (), {"policy": layers[kind]})
    register(owner, lambda *_: calls.append(1))
    model.learn(20)
    assert reason in model.acceleration.reasons()["updates"]
    assert len(calls) >= 4


@pytest.mark.parametrize("options", [{}, {"target_kl": 0.001, "learning_rate": 3e-3}])
def test_gradients_of_ppo_are_those_of_the_original(options: dict[str, Any]) -> None:
    models = twins(stable_baselines3.PPO, RandomEnv, **PPO, **options)
    train_both(*models, 10)
    for expected, actual in zip(*(x.policy.parameters() for x in models), strict=True):
        scale = expected.grad.abs().max() + 1e-6
        torch.testing.assert_close(actual.grad / scale, expected.grad / scale, rtol=0, atol=1e-2)


def test_off_policy_updates_leave_no_gradients_of_other_code() -> None:
    model = off_policy(SAC)
    model.learn(10)
    for parameter in model.policy.parameters():
        parameter.grad = torch.ones_like(parameter)
    model.learn(2, reset_num_timesteps=False)
    learned = [*model.actor.parameters(), *model.critic.parameters()]
    assert all(parameter.grad is None for parameter in learned)


def test_a_callback_computes_gradients_through_the_policy() -> None:
    values: list[float] = []

    class Auxiliary(BaseCallback):
        def _on_step(self) -> bool:
            policy: Any = self.model.policy
            _, value, _ = policy(self.locals["obs_tensor"])
            policy.optimizer.zero_grad()
            value.sum().backward()
            values.append(float(policy.value_net.bias.grad))
            return True

    model = ppo()
    model.learn(20, callback=Auxiliary())
    assert not model.acceleration.reasons()
    assert values == [1.0] * 20


@pytest.mark.parametrize("kind", ["PPO", "SAC"])
def test_parameters_in_shared_memory_stay_there(kind: str) -> None:
    """Other processes read a policy while it learns, as in A3C."""
    model = ppo() if kind == "PPO" else off_policy(SAC)
    model.policy.share_memory()
    parameter = next(model.policy.parameters())
    address, before = parameter.data_ptr(), parameter.detach().clone()
    model.learn(20)
    assert "is in memory that processes share" in model.acceleration.reasons()["updates"]
    assert parameter.data_ptr() == address
    assert not torch.equal(parameter, before)


@pytest.mark.parametrize("kind", ["PPO", "SAC"])
def test_accelerated_parameters_move_to_shared_memory(kind: str) -> None:
    model = ppo() if kind == "PPO" else off_policy(SAC)
    model.learn(20)
    model.policy.share_memory()
    parameter = next(model.policy.parameters())
    address, before = parameter.data_ptr(), parameter.detach().clone()
    model.learn(20)
    assert not model.acceleration.reasons()
    assert parameter.is_shared()
    assert parameter.data_ptr() == address
    assert not torch.equal(parameter, before)


def test_a_hook_that_was_removed_changes_nothing() -> None:
    model = off_policy(SAC)
    model.learn(10)
    for parameter in model.policy.parameters():
        parameter.register_hook(lambda _: None).remove()
    model.learn(10)
    assert not model.acceleration.reasons()


def test_a_hook_after_a_removed_one_is_called() -> None:
    """A parameter keeps the dictionary of its hooks when it has none left."""
    model = off_policy(SAC)
    parameter = next(model.actor.parameters())
    parameter.register_hook(lambda _: None).remove()
    model.learn(10)
    assert not model.acceleration.reasons()
    calls: list[torch.Tensor] = []
    parameter.register_hook(calls.append)
    model.learn(10)
    assert "has hooks" in model.acceleration.reasons()["updates"]
    assert calls


class FrozenStatistics(BaseFeaturesExtractor):
    """A features extractor whose normalization never leaves the evaluation mode."""

    def __init__(self, observation_space: spaces.Box) -> None:
        super().__init__(observation_space, 3)
        self.norm = nn.BatchNorm1d(3)

    def train(self, mode: bool = True) -> Any:
        super().train(mode)
        self.norm.eval()
        return self

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return self.norm(obs)


def test_networks_that_set_their_own_mode_are_called() -> None:
    class OwnActor(Actor):
        def set_training_mode(self, mode: bool) -> None:
            calls.append(mode)
            super().set_training_mode(mode)

    calls: list[bool] = []
    model = off_policy(SAC)
    model.actor.__class__ = OwnActor
    model.learn(12)
    assert "updates" not in model.acceleration.reasons()
    assert calls.count(True) >= 5
    assert calls.count(False) >= 12


def _modes(model: Any) -> dict[str, bool]:
    return {name: x.training for name, x in model.policy.named_modules()}


class ModeReader(BaseCallback):
    """A callback that reads the mode of each layer, and adds a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.modes: list[dict[str, bool]] = []

    def _on_step(self) -> bool:
        if self.n_calls == 8:
            next(self.model.policy.children()).added = nn.Identity()
        self.modes.append(_modes(self.model))
        return True


@pytest.mark.parametrize("extractor", [None, FrozenStatistics])
@pytest.mark.parametrize("kind", [SAC, TD3, DQN])
def test_layers_have_the_originals_mode(kind: Any, extractor: Any) -> None:
    features = {} if extractor is None else {"features_extractor_class": extractor}
    env = DISCRETE if kind is DQN else RandomEnv
    modes: list[Any] = []
    for model in twins(kind, env, **REPLAY, policy_kwargs={**NET, **features}):
        reader = ModeReader()
        model.learn(12, callback=reader)  # ends with a call of `train`
        modes.append([*reader.modes, _modes(model)])
        assert "set_training_mode" not in vars(model.policy)
    assert modes[0] == modes[1]
    assert {True, False} <= set(modes[0][-1].values())


class ListedParameters(BaseFeaturesExtractor):
    """A features extractor that reads its parameters from a list."""

    def __init__(self, observation_space: spaces.Box) -> None:
        super().__init__(observation_space, 4)
        self.layer = nn.Linear(3, 4)
        self.values = [self.layer.weight, self.layer.bias]

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(obs, *self.values).tanh()


class Recurrent(BaseFeaturesExtractor):
    """A features extractor with a recurrent layer, which keeps a list of its parameters."""

    def __init__(self, observation_space: spaces.Box) -> None:
        super().__init__(observation_space, 4)
        self.layer = nn.GRU(1, 4, batch_first=True)

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return self.layer(obs.unsqueeze(2))[0][:, -1]


class RunningMean(BaseFeaturesExtractor):
    """A features extractor that replaces its buffer in training."""

    def __init__(self, observation_space: spaces.Box) -> None:
        super().__init__(observation_space, 3)
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * obs.mean(0)
        return obs - self.mean


def test_a_buffer_that_the_forward_replaces_is_kept() -> None:
    options = {"policy_kwargs": {"features_extractor_class": RunningMean}}
    models = twins(stable_baselines3.PPO, RandomEnv, **PPO, **options)
    train_both(*models, 10)
    expected, actual = (x.policy.features_extractor.mean for x in models)
    assert expected.abs().sum() > 0
    assert torch.equal(expected, actual)
    reason = models[1].acceleration.reasons()["updates"]
    assert "extractor.mean in their forward, not its values" in reason


class Attention(BaseFeaturesExtractor):
    """A features extractor that attends to its inputs."""

    def __init__(self, observation_space: spaces.Box) -> None:
        super().__init__(observation_space, 4)
        self.layer = nn.Linear(1, 4)
        self.attention = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return self.attention(self.layer(obs.unsqueeze(2))).mean(1)


@pytest.mark.parametrize("extractor", [Recurrent, Attention])
def test_an_extractor_learns_the_same(extractor: type) -> None:
    options = {"policy_kwargs": {"features_extractor_class": extractor}}
    models = twins(stable_baselines3.PPO, RandomEnv, **PPO, **options)
    train_both(*models, 10)
    assert models[1].acceleration.reasons() == {}
    assert_equal_learning(*models)


@pytest.mark.parametrize("extractor", [ListedParameters, Recurrent])
def test_all_parameters_of_an_extractor_learn(extractor: type) -> None:
    model = ppo(policy_kwargs={"features_extractor_class": extractor})
    before = [x.detach().clone() for x in model.policy.features_extractor.parameters()]
    model.learn(40)
    for value, parameter in zip(before, model.policy.features_extractor.parameters(), strict=True):
        assert not torch.equal(value, parameter)
    reason = model.acceleration.reasons().get("updates", "")
    assert ("keep parameters in another place" in reason) == (extractor is ListedParameters)


class Wrapped(nn.Module):
    """A module around a policy, which has its attributes, as `torch.compile` returns it."""

    def __init__(self, policy: Any) -> None:
        super().__init__()
        self.policy = policy

    def forward(self, *args: Any) -> Any:
        return self.policy(*args)

    def __getattr__(self, name: str) -> Any:
        if name in self._modules:
            return self._modules[name]
        return getattr(self._modules["policy"], name)


@pytest.mark.parametrize("kind", ["PPO", "SAC"])
def test_a_wrapped_policy_trains(kind: str) -> None:
    model = ppo() if kind == "PPO" else off_policy(SAC)
    model.policy = Wrapped(model.policy)
    model.learn(40)
    reasons = model.acceleration.reasons()
    assert reasons.keys() == {"acting"}
    assert "hotloop can't prepare it (AttributeError: " in reasons["acting"]


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (RolloutBuffer, "add"),
        (RolloutBuffer, "compute_returns_and_advantage"),
        (ReplayBuffer, "_get_samples"),
    ],
)
def test_replaced_methods_of_classes_are_called(
    owner: type, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    original = getattr(owner, name)

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, name, counted)
    (ppo() if owner is RolloutBuffer else off_policy(TD3)).learn(20)
    assert calls


def test_a_replaced_forward_of_a_network_acts() -> None:
    model = off_policy(DQN)

    def forward(self: Any, obs: Any) -> torch.Tensor:
        values = self.q_net(self.extract_features(obs, self.features_extractor))
        return values + torch.tensor([0.0, 0.0, 100.0])

    model.q_net.forward = MethodType(forward, model.q_net)
    model.learn(20)
    assert model.acceleration.reasons() == {"acting": "its QNetwork has its own forward"}
    model.exploration_rate = 0.0
    assert model._sample_action(0)[0].tolist() == [2]


@pytest.mark.parametrize("use_sde", [False, True])
def test_sac_raises_the_originals_error_for_parameters_that_are_not_finite(use_sde: bool) -> None:
    model = off_policy(SAC, use_sde=use_sde)
    model.learn(10)
    assert not model.acceleration.reasons()
    with torch.no_grad():
        next(model.actor.parameters()).fill_(float("nan"))
    with pytest.raises(ValueError, match="to satisfy the constraint"):
        model.learn(10)


def test_classes_are_related_as_the_originals() -> None:
    assert issubclass(hotloop.accelerate.DDPG, hotloop.accelerate.TD3)
    assert isinstance(off_policy(DDPG), hotloop.accelerate.TD3)


def test_train_has_the_originals_batch_size(monkeypatch: pytest.MonkeyPatch) -> None:
    model = off_policy(SAC)
    model.learn(10)
    sizes: list[int] = []
    sample = model.replay_buffer.sample
    monkeypatch.setattr(
        model.replay_buffer, "sample", lambda size, env: (sizes.append(size), sample(size, env))[1]
    )
    model.train(2)
    assert set(sizes) == {64}


def test_threads_restore_the_checks_of_distributions() -> None:
    """Threads enter and leave in any order, such as trials of a study."""
    inside, leave = threading.Event(), threading.Event()

    def stay() -> None:
        with WITHOUT_VALUE_READS:
            inside.set()
            leave.wait(10)

    one_hot = nn.functional.one_hot
    with WITHOUT_VALUE_READS:
        thread = threading.Thread(target=stay)
        thread.start()
        assert inside.wait(10)
        assert nn.functional.one_hot(torch.tensor([0, 2])).tolist() == [[1, 0, 0], [0, 0, 1]]
    assert not Distribution._validate_args
    leave.set()
    thread.join()
    assert Distribution._validate_args
    assert nn.functional.one_hot is one_hot


def test_a_rollout_buffer_is_pickled_within_a_rollout() -> None:
    files: list[bytes] = []

    class Pickler(BaseCallback):
        def _on_step(self) -> bool:
            model: Any = self.model
            if self.n_calls == 10:
                files.append(pickle.dumps(model.rollout_buffer))
            return True

    ppo().learn(20, callback=Pickler())
    assert b"hotloop" not in files[0]
    buffer = pickle.loads(files[0])
    assert buffer.pos == 9
    step = np.zeros((1, 3)), np.zeros((1, 2)), np.ones(1), np.ones(1)
    buffer.add(*step, torch.ones(1, 1), torch.ones(1))
    assert buffer.pos == 10
    assert buffer.rewards[9] == 1.0


@pytest.mark.parametrize("kind", ["PPO", "SAC"])
def test_a_policy_is_copied_after_updates_of_the_original(kind: str) -> None:
    copies: list[Any] = []

    class Copier(BaseCallback):
        def _on_step(self) -> bool:
            copies.append(copy.deepcopy(self.model.policy))
            return True

    sgd = {"policy_kwargs": {**NET, "optimizer_class": torch.optim.SGD}}
    env, options = RandomEnv, PPO if kind == "PPO" else REPLAY
    model = twins(getattr(stable_baselines3, kind), env, **options, **sgd)[1]
    model.learn(20)
    model.learn(10, callback=Copier())
    assert model.acceleration.reasons().keys() == {"updates"}
    assert len(copies) >= 10


def test_the_report_names_acting_by_the_users_methods() -> None:
    class Own(hotloop.accelerate.PPO):
        def collect_rollouts(self, *args: Any, **kwargs: Any) -> bool:
            return stable_baselines3.PPO.collect_rollouts(self, *args, **kwargs)

    model = Own("MlpPolicy", RandomEnv(), device="cpu", **PPO)
    model.learn(20)
    record = report.ModelRecord("Own")
    record.close(model.acceleration)
    assert record.parts == {"updates": "", "acting": "its class has its own methods for it"}


@pytest.mark.parametrize("kind", ["PPO", "SAC"])
def test_acting_ignores_the_users_numpy_error_settings(kind: str) -> None:
    """The original computes with torch, which raises no error if a number is too small."""
    model = ppo() if kind == "PPO" else off_policy(SAC)
    with torch.no_grad():
        for parameter in model.policy.parameters():
            parameter.mul_(1e-25)
    with np.errstate(all="raise"):
        model.learn(10)
    assert model.acceleration.reasons() == {}
