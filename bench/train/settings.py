"""Settings that trainings of hotloop and its peers share, and options that choose them."""

from __future__ import annotations

import argparse
from typing import Any

CATCH = "tests.toy_images:Catch"

# Shared settings by algorithm and environment, under hotloop's names. Other values are
# Stable-Baselines3's defaults. The first environment is the default.
SETTINGS: dict[str, dict[str, dict[str, Any]]] = {
    "ppo": {
        "CartPole-v1": {"num_envs": 8, "num_steps": 128, "num_minibatches": 4},
        "HalfCheetah-v5": {"num_envs": 1, "num_steps": 2048, "num_minibatches": 32},
        "Pendulum-v1": {"num_envs": 1, "num_steps": 2048, "num_minibatches": 32},
        # Schulman et al. 2017, table 5.
        "ALE/Pong-v5": {
            "num_envs": 8,
            "num_steps": 128,
            "num_minibatches": 4,
            "update_epochs": 4,
            "learning_rate": 2.5e-4,
            "clip_range": 0.1,
            "entropy_coef": 0.01,
            "clip_reward": 1.0,
            "hidden_sizes": (),
        },
        # 80 × 80 pixels, learned in minutes.
        CATCH: {
            "env_kwargs": {"places": 8, "scale": 10},
            "num_envs": 8,
            "num_steps": 128,
            "num_minibatches": 4,
            "update_epochs": 4,
            "learning_rate": 1e-3,
            "entropy_coef": 0.01,
            "hidden_sizes": (),
        },
    },
    "recurrent_ppo": {"CartPole-v1": {"num_envs": 8, "num_steps": 128, "num_minibatches": 8}},
    "sac": {"HalfCheetah-v5": {"learning_starts": 5_000}},
    "tqc": {
        "Pendulum-v1": {"learning_starts": 500, "hidden_sizes": (64, 64)},
        "HalfCheetah-v5": {"learning_starts": 5_000, "num_dropped": 0},
    },
    "crossq": {
        "Pendulum-v1": {
            "learning_starts": 500,
            "hidden_sizes": (64, 64),
            "critic_hidden_sizes": (64, 64),
        },
        "HalfCheetah-v5": {"learning_starts": 5_000, "critic_hidden_sizes": (256, 256)},
    },
    "td3": {"HalfCheetah-v5": {"learning_starts": 5_000}},
    # CleanRL's hyper-parameters.
    "dqn": {
        "CartPole-v1": {
            "learning_starts": 10_000,
            "train_frequency": 10,
            "batch_size": 128,
            "buffer_size": 10_000,
            "target_interval": 500,
            "exploration_fraction": 0.5,
            "epsilon_end": 0.05,
            "hidden_sizes": (120, 84),
            "learning_rate": 2.5e-4,
        }
    },
}
# Settings of learning curves, where those above learn too little.
CURVES: dict[tuple[str, str], dict[str, Any]] = {
    # rl-baselines3-zoo, hyperparams/dqn.yml, for 50,000 steps.
    ("dqn", "CartPole-v1"): {
        "learning_starts": 1_000,
        "train_frequency": 256,
        "update_to_data": 0.5,
        "batch_size": 64,
        "buffer_size": 100_000,
        "target_interval": 10,
        "exploration_fraction": 0.16,
        "epsilon_end": 0.04,
        "hidden_sizes": (256, 256),
        "learning_rate": 2.3e-3,
    }
}
# Shared settings that are not hotloop's defaults. Differences that no setting removes: - before
# learning starts, the peers' DQN acts at random, hotloop's with its ε (1 to 0.81); - the peers' TD3
# adds noise also to random actions; - the peers' SAC clips log σ to (−20, 2), hotloop squashes it
# to (−5, 2); the gradient by log α has a factor of α in hotloop and none in the peers; - sbx's TD3
# moves its targets at each update, and its policy maximizes the smaller of both critics.
COMMON: dict[str, dict[str, Any]] = {
    "ppo": {"learning_rate": 3e-4, "update_epochs": 10},
    "recurrent_ppo": {"learning_rate": 3e-4, "update_epochs": 10},
    "sac": {"policy_learning_rate": 3e-4, "critic_learning_rate": 3e-4, "policy_frequency": 1},
    "tqc": {"policy_learning_rate": 1e-3, "critic_learning_rate": 1e-3, "num_critics": 2},
    "crossq": {"policy_learning_rate": 1e-3, "critic_learning_rate": 1e-3},
    "td3": {"learning_rate": 1e-3},
    "dqn": {"double": False, "huber": 1.0, "max_grad_norm": 10.0, "update_to_data": 0.1},
}
# Threads of every contender's update. Tiny networks are slower on two.
THREADS = {"ppo": 1, "recurrent_ppo": 1, "sac": 2, "tqc": 1, "crossq": 1, "td3": 2, "dqn": 1}
TIMESTEPS = {
    **dict.fromkeys(("sac", "td3"), 10_000),
    **dict.fromkeys(("tqc", "crossq"), 6_000),
    "ppo": 102_400,
    "recurrent_ppo": 10_240,
    "dqn": 100_000,
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the common options of commands that train."""
    parser.add_argument("--algorithm", default="ppo", choices=sorted(SETTINGS))
    parser.add_argument("--env-id", help="default: the algorithm's first environment")
    parser.add_argument("--timesteps", type=int, help="default: the algorithm's")
    parser.add_argument("--threads", type=int, help="default: the algorithm's")
    parser.add_argument("--for-curves", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--precision", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--workers", type=int, default=0, help="hotloop's workers, 0: inline")
    parser.add_argument("--schedule", choices=["barrier", "variable", "async"])
    parser.add_argument("--overlap", action="store_true", help="ppo: collect while learning")


def complete_options(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Fill in defaults that depend on the algorithm."""
    algorithm = options.algorithm
    options.env_id = options.env_id or next(iter(SETTINGS[algorithm]))
    if options.env_id not in SETTINGS[algorithm]:
        parser.error(f"{algorithm} has settings for {', '.join(SETTINGS[algorithm])}")
    is_of_images = options.env_id.startswith("ALE/") or options.env_id == CATCH
    options.timesteps = options.timesteps or (10_240 if is_of_images else TIMESTEPS[algorithm])
    options.threads = options.threads or (2 if is_of_images else THREADS[algorithm])
    if not options.workers and (options.overlap or options.schedule):
        parser.error("--overlap and --schedule need --workers")
    if options.overlap and algorithm != "ppo":
        parser.error(f"--overlap is an option of ppo, not of {algorithm}")


def check_contender(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Check that the contender has the algorithm."""
    if (options.algorithm, options.contender) == ("recurrent_ppo", "hotloop"):
        parser.error("recurrent_ppo is compared with `--contender accelerated`")


def settings_of(options: argparse.Namespace) -> dict[str, Any]:
    """Return the shared settings of a training, under hotloop's names."""
    settings = {**COMMON[options.algorithm], **SETTINGS[options.algorithm][options.env_id]}
    if options.for_curves:
        settings |= CURVES.get((options.algorithm, options.env_id), {})
    return settings


def worker_settings(options: argparse.Namespace) -> dict[str, Any]:
    """Return the options of hotloop's workers, empty if there are none."""
    if not options.workers:
        return {}
    settings: dict[str, Any] = {"workers": options.workers}
    if options.schedule is not None:
        settings["schedule"] = options.schedule
    if options.overlap:
        settings["overlap"] = True
    return settings


def worker_suffix(options: argparse.Namespace) -> str:
    """Return the part of a result's name for its workers."""
    return "".join(f"_{name}{value}" for name, value in worker_settings(options).items()).replace(
        "overlapTrue", "overlap"
    )
