"""Trainings with Stable-Baselines3, with sb3-contrib and with sbx, Stable-Baselines in JAX."""

from __future__ import annotations

import argparse
import importlib
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bench.train.settings import CATCH, COMMON, SETTINGS, settings_of

# Classes of sb3-contrib.
CONTRIB = {"tqc": "TQC", "crossq": "CrossQ", "recurrent_ppo": "RecurrentPPO"}


def run_sb3(options: argparse.Namespace, library: str = "stable_baselines3") -> dict[str, Any]:
    """Train once with Stable-Baselines3, or with the classes of another library."""
    import torch

    torch.set_num_threads(options.threads)
    settings = settings_of(options)
    if options.algorithm in ("ppo", "recurrent_ppo"):
        batch = settings["num_envs"] * settings["num_steps"]
        model_options = {
            "n_steps": settings["num_steps"],
            "batch_size": batch // settings["num_minibatches"],
            "n_epochs": settings["update_epochs"],
            "learning_rate": settings["learning_rate"],
            "clip_range": settings.get("clip_range", 0.2),
            "ent_coef": settings.get("entropy_coef", 0.0),
        }
    else:
        model_options = _off_policy_settings(options.algorithm, settings)
    name = CONTRIB.get(options.algorithm, options.algorithm.upper())
    if options.algorithm in CONTRIB and library == "stable_baselines3":
        library = "sb3_contrib"
    kind = getattr(importlib.import_module(library), name)
    return _run_baselines(kind, options, {**model_options, "device": "cpu"})


def run_accelerated(options: argparse.Namespace) -> dict[str, Any]:
    """Train once with Stable-Baselines3 and hotloop's updates."""
    from hotloop.accelerate.acceleration import SETTINGS as ACCELERATION

    ACCELERATION.execution = options.execution
    ACCELERATION.precision = options.precision
    return run_sb3(options, "hotloop.accelerate")


def run_sbx(options: argparse.Namespace) -> dict[str, Any]:
    """Train once with sbx, Stable-Baselines in JAX.

    Its compiler uses all cores and compiles within the loop in every process.
    """
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    import sbx  # pyright: ignore[reportMissingImports]

    settings = settings_of(options)
    model_options = _off_policy_settings(options.algorithm, settings)
    kind = getattr(sbx, options.algorithm.upper())
    if options.algorithm == "dqn":
        widths, learning_rate = settings["hidden_sizes"], settings["learning_rate"]
        clip = COMMON["dqn"]["max_grad_norm"]
        return _run_baselines(
            kind,
            options,
            model_options,
            lambda model: _equalise_sbx(model, widths, learning_rate, clip),
        )
    return _run_baselines(kind, options, model_options)


def _equalise_sbx(
    model: Any, widths: Sequence[int], learning_rate: float, max_grad_norm: float
) -> None:
    """Give sbx's DQN the same network and gradient clipping as the other libraries.

    sbx uses the first width of `net_arch` for both layers and does not clip.
    """
    import jax  # pyright: ignore[reportMissingImports]
    import optax  # pyright: ignore[reportMissingImports]
    from flax import linen  # pyright: ignore[reportMissingImports]
    from sbx.common.type_aliases import RLTrainState  # pyright: ignore[reportMissingImports]

    layers: list[Any] = []
    for width in widths:
        layers += [linen.Dense(width), linen.relu]
    network = linen.Sequential([*layers, linen.Dense(int(model.action_space.n))])
    model.key, key = jax.random.split(model.key)
    params = network.init(key, np.zeros((1, *model.observation_space.shape), np.float32))
    clip = optax.clip_by_global_norm(max_grad_norm)
    model.policy.qf = model.qf = network
    model.policy.qf_state = RLTrainState.create(
        apply_fn=network.apply,
        params=params,
        target_params=params,
        tx=optax.chain(clip, optax.adam(learning_rate)),
    )


def _off_policy_settings(algorithm: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Translate hotloop's settings into options of Stable-Baselines3."""
    model_options: dict[str, Any] = {"learning_starts": settings["learning_starts"]}
    widths = list(settings.get("hidden_sizes", (256, 256)))
    model_options["policy_kwargs"] = {"net_arch": widths}
    if algorithm == "sac":
        return {**model_options, "learning_rate": COMMON["sac"]["policy_learning_rate"]}
    if algorithm == "tqc":
        model_options["policy_kwargs"]["n_critics"] = COMMON["tqc"]["num_critics"]
        rate, dropped = COMMON["tqc"]["critic_learning_rate"], settings.get("num_dropped", 2)
        return {**model_options, "learning_rate": rate, "top_quantiles_to_drop_per_net": dropped}
    if algorithm == "crossq":
        widths = {"pi": widths, "qf": list(settings["critic_hidden_sizes"])}
        model_options["policy_kwargs"] = {"net_arch": widths}
        return {**model_options, "learning_rate": COMMON["crossq"]["critic_learning_rate"]}
    if algorithm == "td3":
        from stable_baselines3.common.noise import (  # pyright: ignore[reportMissingImports]
            NormalActionNoise,
        )

        noise = NormalActionNoise(np.zeros(6), np.full(6, 0.1))  # HalfCheetah has six actions
        rate = COMMON["td3"]["learning_rate"]
        return {**model_options, "learning_rate": rate, "batch_size": 256, "action_noise": noise}
    return {
        **model_options,
        "learning_rate": settings["learning_rate"],
        "batch_size": settings["batch_size"],
        "buffer_size": settings["buffer_size"],
        "train_freq": settings["train_frequency"],
        "gradient_steps": round(settings["train_frequency"] * settings["update_to_data"]),
        "target_update_interval": settings["target_interval"],
        "exploration_fraction": settings["exploration_fraction"],
        "exploration_final_eps": settings["epsilon_end"],
    }


def _games(env_id: str, num_envs: int, seed: int) -> Any:
    """Return Atari games as in hotloop: four frames per step, episodes go beyond a lost life."""
    import ale_py
    import gymnasium
    from stable_baselines3.common.env_util import (  # pyright: ignore[reportMissingImports]
        make_atari_env,
    )
    from stable_baselines3.common.vec_env import (  # pyright: ignore[reportMissingImports]
        VecFrameStack,
    )

    gymnasium.register_envs(ale_py)
    games = make_atari_env(
        env_id,
        n_envs=num_envs,
        seed=seed,
        env_kwargs={"frameskip": 1},
        wrapper_kwargs={"terminal_on_life_loss": False},
    )
    return VecFrameStack(games, 4)


def _run_baselines(
    kind: Any,
    options: argparse.Namespace,
    model_options: dict[str, Any],
    adapt: Callable[[Any], None] = lambda _: None,
) -> dict[str, Any]:
    """Train once with a library that has Stable-Baselines3's interface.

    Args:
        kind: class of the algorithm.
        options: options of the command.
        model_options: arguments of the class.
        adapt: function that changes the model before training.
    """
    from stable_baselines3.common.callbacks import (  # pyright: ignore[reportMissingImports]
        BaseCallback,
    )
    from stable_baselines3.common.env_util import (  # pyright: ignore[reportMissingImports]
        make_vec_env,
    )

    episodes: list[list[float]] = []
    passed: list[list[float]] = []
    started = time.perf_counter()

    class Episodes(BaseCallback):
        """A callback that records every episode's return, and the time every 1000 steps."""

        def _on_step(self) -> bool:
            for info in self.locals["infos"]:
                if "episode" in info:
                    episodes.append([self.num_timesteps, float(info["episode"]["r"])])
            if self.num_timesteps % 1000 == 0:
                passed.append([self.num_timesteps, time.perf_counter() - started])
            return True

    num_envs = SETTINGS[options.algorithm][options.env_id].get("num_envs", 1)
    policy = "MlpLstmPolicy" if options.algorithm == "recurrent_ppo" else "MlpPolicy"
    if options.env_id.startswith("ALE/"):
        policy, vec_env = "CnnPolicy", _games(options.env_id, num_envs, options.seed)
    elif options.env_id == CATCH:
        module, _, name = options.env_id.partition(":")
        make = getattr(importlib.import_module(module), name)
        kwargs = SETTINGS[options.algorithm][options.env_id]["env_kwargs"]
        vec_env = make_vec_env(make, n_envs=num_envs, seed=options.seed, env_kwargs=kwargs)
        policy = "CnnPolicy"
    else:
        vec_env = make_vec_env(options.env_id, n_envs=num_envs, seed=options.seed)
    model = kind(policy, vec_env, seed=options.seed, **model_options)
    adapt(model)
    started = time.perf_counter()
    model.learn(options.timesteps, callback=Episodes())
    loop_s = time.perf_counter() - started
    acceleration = getattr(model, "acceleration", None)  # only of an accelerated class
    compile_s = 0.0 if acceleration is None else acceleration.compile_s
    return {
        "timesteps": model.num_timesteps,
        "loop_s": loop_s - compile_s,
        "compile_s": compile_s,
        "passed": passed,
        "episodes": episodes,
    }
