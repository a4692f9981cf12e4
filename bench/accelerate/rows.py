"""Rows of the GPU tables: algorithms with CleanRL's hyper-parameters."""

from __future__ import annotations

from typing import Any, NamedTuple

MODES = ("eager", "compile", "cudagraph", "compile+cudagraph")


class Row(NamedTuple):
    """A row of the GPU tables.

    Attributes:
        title: label in the table.
        algorithm: hotloop's name of the algorithm.
        env_id: id of the environment.
        options: CleanRL's hyper-parameters that differ from hotloop's defaults.
        obs: shape and dtype of an observation.
        action: `("box", A)` or `("discrete", number of actions)`.
        published: LeanRL's figures in steps/s on an H100, or None: CleanRL's own script, then
            LeanRL's eager, compiled, and compiled with CUDA graphs.
    """

    title: str
    algorithm: str
    env_id: str
    options: dict[str, Any]
    obs: tuple[tuple[int, ...], str]
    action: tuple[str, int]
    published: tuple[int, int, int, int] | None


ROWS = {
    "ppo-atari": Row(
        "PPO, Atari",
        "ppo",
        # As in CleanRL's wrappers, an episode ends with a life.
        "envpool:Breakout-v5",
        {
            "env_kwargs": {"episodic_life": True},
            "num_envs": 8,
            "num_steps": 128,
            "num_minibatches": 4,
            "update_epochs": 4,
            "learning_rate": "linear:2.5e-4,0",
            "clip_range": 0.1,
            "entropy_coef": 0.01,
            "clip_value_loss": True,
            "clip_reward": 1.0,
            "hidden_sizes": (),
        },
        ((4, 84, 84), "uint8"),
        ("discrete", 4),
        (1022, 3728, 3841, 6809),
    ),
    "ppo": Row(
        "PPO, continuous",
        "ppo",
        "HalfCheetah-v5",
        {
            "num_envs": 1,
            "num_steps": 2048,
            "num_minibatches": 32,
            "update_epochs": 10,
            "learning_rate": "linear:3e-4,0",
            "clip_value_loss": True,
            "normalize_obs": True,
            "normalize_reward": True,
            "clip_obs": 10.0,
            "clip_reward": 10.0,
        },
        ((17,), "float32"),
        ("box", 6),
        (652, 683, 908, 1774),
    ),
    "sac": Row(
        "SAC",
        "sac",
        "HalfCheetah-v5",
        {"learning_starts": 5_000, "policy_frequency": 2},
        ((17,), "float32"),
        ("box", 6),
        (127, 130, 255, 725),
    ),
    "td3": Row(
        "TD3",
        "td3",
        "HalfCheetah-v5",
        # CleanRL's 25,000 steps without learning would use up the measured time.
        {"learning_starts": 5_000},
        ((17,), "float32"),
        ("box", 6),
        (272, 247, 272, 936),
    ),
    "dqn": Row(
        "DQN",
        "dqn",
        "CartPole-v1",
        {"double": False, "learning_starts": 10_000},
        ((4,), "float32"),
        ("discrete", 2),
        None,
    ),
}
