"""Stable-Baselines3's classes with hotloop's updates, acting and replay.

    from hotloop.accelerate import PPO          # instead of `from stable_baselines3 import PPO`
    model = accelerate(model)                   # or: change an existing model

Each class is a subclass of the original with the same constructor, methods, results and files.

Public names are loaded on first use: importing hotloop does not import Stable-Baselines3.
"""

# How the package is divided:
#
# * acceleration.py: Settings, AcceleratedModel (the mixin of all classes) and Acceleration
#   (the parts that hotloop has added to one model; if a part can't be used, the reason).
# * flat_parameters.py: the parameters and the optimizer's state of a module as flat vectors, which
#   the module's and the optimizer's own tensors view.
# * module_calls.py: a module as a function of these vectors; shared_changes.py: changes of torch's
#   functions during such a call.
# * on_policy.py: the mixin of on-policy classes; ppo.py, a2c.py and others: one class each.
# * off_policy.py: the mixin of off-policy classes; sac.py, td3.py, dqn.py,
#   quantiles.py.
# * acting.py, acting_recurrent.py, acting_off_policy.py: "twins", which compute a policy's actions
#   with NumPy from the policy's own parameters.
# * sampling.py: batches of the replay buffer, which stays Stable-Baselines3's own.
# * script.py: the process of hotloop accelerate. import_hook.py replaces the classes when a script
#   imports them, and report.py writes the lines at the end.

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hotloop.accelerate.a2c import A2C
    from hotloop.accelerate.classes import accelerate
    from hotloop.accelerate.dqn import DQN
    from hotloop.accelerate.maskable_ppo import MaskablePPO
    from hotloop.accelerate.ppo import PPO
    from hotloop.accelerate.quantiles import QRDQN, TQC
    from hotloop.accelerate.recurrent_ppo import RecurrentPPO
    from hotloop.accelerate.sac import SAC
    from hotloop.accelerate.td3 import DDPG, TD3

__all__ = [
    "A2C",
    "DDPG",
    "DQN",
    "PPO",
    "QRDQN",
    "SAC",
    "TD3",
    "TQC",
    "MaskablePPO",
    "RecurrentPPO",
    "accelerate",
]

_PUBLIC = {
    "A2C": "hotloop.accelerate.a2c",
    "DDPG": "hotloop.accelerate.td3",
    "DQN": "hotloop.accelerate.dqn",
    "MaskablePPO": "hotloop.accelerate.maskable_ppo",
    "PPO": "hotloop.accelerate.ppo",
    "QRDQN": "hotloop.accelerate.quantiles",
    "RecurrentPPO": "hotloop.accelerate.recurrent_ppo",
    "SAC": "hotloop.accelerate.sac",
    "TD3": "hotloop.accelerate.td3",
    "TQC": "hotloop.accelerate.quantiles",
    "accelerate": "hotloop.accelerate.classes",
}

_CONTRIB = ("MaskablePPO", "QRDQN", "RecurrentPPO", "TQC")


def __getattr__(name: str) -> object:
    if name in _PUBLIC:
        from hotloop.accelerate.libraries import check_libraries

        check_libraries(needs_contrib=name in _CONTRIB)
        # Import it first: at the end of this import, hooks of `hotloop accelerate` import this
        # package.
        importlib.import_module("stable_baselines3")
        return getattr(importlib.import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'hotloop.accelerate' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(__all__)
