"""Layers, hooks and methods that the user's code replaces, also within a rollout."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import numpy as np
import pytest
import stable_baselines3
import torch
from gymnasium import spaces
from stable_baselines3.common.callbacks import BaseCallback
from torch import nn

from tests.accelerate.parity import set_up, twins
from tests.accelerate.random_env import RandomEnv

PPO: dict[str, Any] = {"n_steps": 20, "batch_size": 10, "n_epochs": 2}
REPLAY: dict[str, Any] = {
    "learning_starts": 2,
    "batch_size": 4,
    "policy_kwargs": {"net_arch": [4]},
}


def test_td3_acts_with_a_replaced_layer() -> None:
    _, model = twins(stable_baselines3.TD3, RandomEnv, **REPLAY)
    model.learn(6)
    assert not model.acceleration.reasons()
    layer = nn.Linear(4, 2)
    nn.init.zeros_(layer.weight)
    nn.init.constant_(layer.bias, 20.0)
    model.actor.mu[2] = layer
    model.actor.optimizer = torch.optim.Adam(model.actor.parameters(), lr=0.0)
    model.learn(3, reset_num_timesteps=False)
    actions, _ = model._sample_action(0)
    assert np.allclose(actions, model.action_space.high)


@pytest.mark.parametrize("name", ["action_net", "value_net"])
def test_ppo_acts_through_any_head(name: str) -> None:
    _, model = twins(stable_baselines3.PPO, RandomEnv, **PPO)
    setattr(model.policy, name, nn.Sequential(nn.Linear(64, 1 + (name[0] == "a")), nn.Tanh()))
    model.policy.optimizer = torch.optim.Adam(model.policy.parameters(), lr=1e-3)
    model.learn(40)
    assert model.acceleration.reasons().keys() == {"acting"}
    assert "its layers include Sequential" in model.acceleration.reasons()["acting"]


def _normalize_actions(model: Any) -> None:
    model.actor.mu.insert(3, nn.LayerNorm(2, elementwise_affine=True))


def _squash_mean(model: Any) -> None:
    model.actor.mu = nn.Sequential(nn.Linear(4, 2), nn.Tanh())


def _nest_layer(model: Any) -> None:
    model.q_net.q_net[-1] = nn.Sequential(nn.Linear(4, 3))


@pytest.mark.parametrize(
    ("kind", "change", "env"),
    [
        (stable_baselines3.TD3, _normalize_actions, RandomEnv),
        (stable_baselines3.SAC, _squash_mean, RandomEnv),
        (stable_baselines3.DQN, _nest_layer, partial(RandomEnv, action_space=spaces.Discrete(3))),
    ],
)
def test_off_policy_models_act_through_any_last_layer(kind: Any, change: Any, env: Any) -> None:
    _, model = twins(kind, env, **copy.deepcopy(REPLAY))  # Stable-Baselines3 changes the kwargs
    change(model)
    model.learn(6)
    assert "layers" in model.acceleration.reasons()["acting"]


def test_hooks_of_layers_are_called() -> None:
    for kind, options in ((stable_baselines3.PPO, PPO), (stable_baselines3.TD3, REPLAY)):
        _, model = twins(kind, RandomEnv, **options)
        model.learn(20)
        assert not model.acceleration.reasons()
        policy = model.policy
        layer = policy.actor.mu[0] if kind is stable_baselines3.TD3 else policy.action_net
        modes: list[bool] = []
        layer.register_forward_hook(lambda layer, *_, modes=modes: modes.append(layer.training))
        model.learn(20)
        assert modes.count(False) >= 17  # acting, without the first steps of TD3
        assert model.acceleration.reasons() == {"acting": "its Linear has forward hooks"}


class Setter(BaseCallback):
    """Sets the value of all states at the start of a rollout, and in its middle."""

    def _set(self, value: float) -> None:
        layer = self.model.policy.value_net
        layer.weight.data.zero_()
        with torch.no_grad():
            layer.bias.fill_(value)

    def _on_rollout_start(self) -> None:
        self._set(7.0)

    def _on_step(self) -> bool:
        if self.n_calls == 10:
            self._set(9.0)
        return True


def test_ppo_acts_with_parameters_that_a_callback_sets() -> None:
    _, model = twins(stable_baselines3.PPO, RandomEnv, **PPO)
    model.learn(20, callback=Setter())
    assert not model.acceleration.reasons()
    assert model.rollout_buffer.values.ravel().tolist() == [7.0] * 10 + [9.0] * 10


def test_a_copy_made_within_a_rollout_acts_with_its_own_parameters() -> None:
    copies: list[Any] = []

    class Copier(BaseCallback):
        def _on_step(self) -> bool:
            if self.n_calls == 5:
                copies.append(copy.deepcopy(self.model))
            return True

    _, model = twins(stable_baselines3.PPO, RandomEnv, **PPO)
    model.learn(20, callback=Copier())
    (copied,) = copies
    with torch.no_grad():
        copied.policy.value_net.weight.zero_()
        copied.policy.value_net.bias.fill_(5.0)
        assert float(copied.policy(torch.zeros(1, 3))[1]) == 5.0
    callback = set_up(copied)
    copied.collect_rollouts(copied.env, callback, copied.rollout_buffer, 20)
    assert not copied.acceleration.reasons()
    assert np.all(copied.rollout_buffer.values == 5.0)


def test_a_pass_that_ends_early_leaves_the_buffers_methods() -> None:
    _, model = twins(stable_baselines3.PPO, RandomEnv, **PPO, target_kl=1e-9, learning_rate=0.01)
    model.learn(60)
    assert not model.acceleration.reasons()
    assert model._n_updates == 3  # the first epoch of each rollout ends early
    assert not {"to_torch", "add"} & vars(model.rollout_buffer).keys()


def test_replaced_methods_of_buffers_are_called() -> None:
    def count_calls(owner: Any, name: str) -> list[int]:
        calls: list[int] = []
        original = getattr(owner, name)

        def counted(*args: Any, **kwargs: Any) -> Any:
            calls.append(1)
            return original(*args, **kwargs)

        setattr(owner, name, counted)
        return calls

    _, model = twins(stable_baselines3.PPO, RandomEnv, **PPO)
    counts = [
        count_calls(model.rollout_buffer, name)
        for name in ("add", "compute_returns_and_advantage", "to_torch")
    ]
    model.learn(20)
    assert list(map(len, counts[:2])) == [20, 1]
    assert len(counts[2]) >= 4 * 6  # minibatches times fields
    _, model = twins(stable_baselines3.TD3, RandomEnv, **REPLAY)
    calls = count_calls(model.replay_buffer, "sample")
    model.learn(6)
    assert len(calls) == 4
