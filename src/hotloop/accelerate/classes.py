"""The accelerated class of each original class, and the conversion of an existing model."""

from __future__ import annotations

import importlib
from typing import TypeVar

from hotloop.accelerate.acceleration import LOGGER, AcceleratedModel

Model = TypeVar("Model")

# The module of the original and of the accelerated class, by the name of both.
CLASSES = {
    "A2C": ("stable_baselines3.a2c.a2c", "hotloop.accelerate.a2c"),
    "MaskablePPO": ("sb3_contrib.ppo_mask.ppo_mask", "hotloop.accelerate.maskable_ppo"),
    "PPO": ("stable_baselines3.ppo.ppo", "hotloop.accelerate.ppo"),
    "QRDQN": ("sb3_contrib.qrdqn.qrdqn", "hotloop.accelerate.quantiles"),
    "RecurrentPPO": (
        "sb3_contrib.ppo_recurrent.ppo_recurrent",
        "hotloop.accelerate.recurrent_ppo",
    ),
    "SAC": ("stable_baselines3.sac.sac", "hotloop.accelerate.sac"),
    "TQC": ("sb3_contrib.tqc.tqc", "hotloop.accelerate.quantiles"),
    "TD3": ("stable_baselines3.td3.td3", "hotloop.accelerate.td3"),
    "DDPG": ("stable_baselines3.ddpg.ddpg", "hotloop.accelerate.td3"),
    "DQN": ("stable_baselines3.dqn.dqn", "hotloop.accelerate.dqn"),
}


def accelerated_class(original: type) -> type | None:
    """Return the accelerated class of a class of Stable-Baselines3, or None if there is none."""
    module, accelerated = CLASSES.get(original.__name__, ("", ""))
    if original.__module__ != module:
        return None
    return getattr(importlib.import_module(accelerated), original.__name__)


def accelerate(model: Model) -> Model:
    """Accelerate a model of Stable-Baselines3 in place, and return it.

    Its class changes to the accelerated one, which is a subclass of the original. A model of
    another class stays as it is, which is logged.
    """
    if isinstance(model, AcceleratedModel):
        return model
    accelerated = accelerated_class(type(model))
    if accelerated is None:
        LOGGER.warning(
            "%s: not accelerated: expected one of %s", type(model).__name__, ", ".join(CLASSES)
        )
        return model
    model.__class__ = accelerated
    return model
