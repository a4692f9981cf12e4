"""Environments that need a factory, each as a user would write it."""

# pyright: reportMissingImports=false

from __future__ import annotations

from typing import Any

import gymnasium


def minigrid() -> gymnasium.Env:
    """Leave out the mission, a text."""
    from minigrid.wrappers import ImgObsWrapper

    return ImgObsWrapper(gymnasium.make("MiniGrid-Empty-5x5-v0"))


def mo_gymnasium() -> gymnasium.Env:
    """Add the rewards of several objectives."""
    import mo_gymnasium as mo

    return mo.wrappers.LinearReward(mo.make("mo-mountaincar-v0"))


def bsuite() -> gymnasium.Env:
    """Convert one of bsuite's environments."""
    from bsuite import load_from_id
    from shimmy.bsuite_compatibility import BSuiteCompatibilityV0

    return BSuiteCompatibilityV0(load_from_id("catch/0"))


def padded_tag() -> Any:
    """Pad the observations of agents with different spaces."""
    import supersuit
    from mpe2 import simple_tag_v3

    return supersuit.pad_observations_v0(simple_tag_v3.parallel_env())
