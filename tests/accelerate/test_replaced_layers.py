"""Layers that the user's code replaces: an off-policy model acts with the new ones."""

from __future__ import annotations

import numpy as np
import stable_baselines3
import torch
from torch import nn

from tests.accelerate.parity import twins
from tests.accelerate.random_env import RandomEnv


def test_td3_acts_with_a_replaced_layer() -> None:
    options = {"learning_starts": 2, "batch_size": 4, "policy_kwargs": {"net_arch": [4]}}
    _, model = twins(stable_baselines3.TD3, RandomEnv, **options)
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
