"""Environments by id, `module:Id` or factory, with Gymnasium's and EnvPool's habits made alike."""

from __future__ import annotations

from hotloop.envs.checks import check_finite
from hotloop.envs.factory import environment_name, make_env, make_halves, make_vec
from hotloop.envs.halves import Halves
from hotloop.envs.protocol import VectorEnv, obs_hash
from hotloop.envs.seeding import Stream, episode_seed
from hotloop.envs.spaces import ActionSpec, ObsField, ObsSpec, Spaces

__all__ = [
    "ActionSpec",
    "Halves",
    "ObsField",
    "ObsSpec",
    "Spaces",
    "Stream",
    "VectorEnv",
    "check_finite",
    "environment_name",
    "episode_seed",
    "make_env",
    "make_halves",
    "make_vec",
    "obs_hash",
]
