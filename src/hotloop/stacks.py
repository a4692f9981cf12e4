"""Stacks of frames, found in environments by what wraps them."""

from __future__ import annotations

from typing import Any


def num_stacked_frames(env: Any, shape: tuple[int, ...]) -> int:
    """Return how many frames the first axis of observations stacks; 0 if that is not known.

    Known are Gymnasium's `FrameStackObservation`, EnvPool's environments and ALE's.

    Args:
        env: an environment or a vector environment.
        shape: of its observations.
    """
    if not shape:
        return 0
    found = 0
    inner = getattr(env, "envs", None)
    if isinstance(inner, (list, tuple)) and inner:
        env = inner[0]
    while env is not None and not found:
        config = getattr(getattr(env, "spec", None), "config", None)
        if type(env).__name__ == "FrameStackObservation":
            # Whatever wraps it must have left its frames as they are.
            found = shape[0] if env.observation_space.shape == shape else 0
            break
        found = int(getattr(config, "stack_num", 0) or getattr(env, "stack_num", 0))
        env = getattr(env, "env", None)
    return found if found == shape[0] else 0
