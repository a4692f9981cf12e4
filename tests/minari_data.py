"""Small data sets of Minari, written by the real library."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Space

Episode = dict[str, Any]


def random_episodes(
    obs_shape: tuple[int, ...], action_shape: tuple[int, ...], *, bound: float = 1.0
) -> list[Episode]:
    """Return two episodes of 30 steps: a cut one without a flag, and one that terminates.

    Their rewards are 100 … 129 and 130 … 159.
    """
    rng = np.random.default_rng(0)
    return [
        {
            "observations": rng.uniform(-1, 1, (31, *obs_shape)).astype(np.float32),
            "actions": rng.uniform(-bound, bound, (30, *action_shape)).astype(np.float32),
            "rewards": 100.0 + 30 * k + np.arange(30),
            "terminations": np.arange(30) == (29 if k else 99),
            "truncations": np.zeros(30, bool),
        }
        for k in range(2)
    ]


def write_dataset(
    name: str,
    episodes: Sequence[Episode],
    observation_space: Space[Any] | None = None,
    action_space: Space[Any] | None = None,
    **options: Any,
) -> None:
    """Write a data set into MINARI_DATASETS_PATH. The spaces default to those of Pendulum-v1."""
    import minari
    from minari.data_collector import EpisodeBuffer

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        minari.create_dataset_from_buffers(
            name,
            [EpisodeBuffer(id=k, **episode) for k, episode in enumerate(episodes)],
            observation_space=observation_space or Box(-np.inf, np.inf, (3,), np.float32),
            action_space=action_space or Box(-2.0, 2.0, (1,), np.float32),
            **options,
        )
