"""Environments by id, `module:Id` or factory, with one interface for Gymnasium and EnvPool."""

from __future__ import annotations

from hotloop.envs.checks import (
    advice_for_non_finite,
    as_flag,
    as_reward,
    check_finite,
    warn_of_coarse_numbers,
)
from hotloop.envs.double_buffer import DoubleBufferedEnvs
from hotloop.envs.factory import (
    make_double_buffered,
    make_env,
    make_vec,
    seeded_generators,
)
from hotloop.envs.global_generators import kept_global_generators, seed_global_generators
from hotloop.envs.protocol import VectorEnv, obs_hash
from hotloop.envs.seeding import Stream, episode_seed
from hotloop.envs.spaces import ActionSpec, ObsField, ObsSpec, Spaces
from hotloop.envs.spec import EnvSpec

__all__ = [
    "ActionSpec",
    "DoubleBufferedEnvs",
    "EnvSpec",
    "ObsField",
    "ObsSpec",
    "Spaces",
    "Stream",
    "VectorEnv",
    "advice_for_non_finite",
    "as_flag",
    "as_reward",
    "check_finite",
    "episode_seed",
    "kept_global_generators",
    "make_double_buffered",
    "make_env",
    "make_vec",
    "obs_hash",
    "seed_global_generators",
    "seeded_generators",
    "warn_of_coarse_numbers",
]
