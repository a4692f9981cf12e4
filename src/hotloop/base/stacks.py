"""Detection of frame stacking in environments."""

from __future__ import annotations

from typing import Any


def num_stacked_frames(env: Any, shape: tuple[int, ...]) -> int:
    """Return how many frames the first axis of observations stacks, or 0 if that is unknown.

    Supports Gymnasium's `FrameStackObservation`, EnvPool's environments and ALE's.

    Args:
        env: An environment or a vector environment.
        shape: The shape of its observations.
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
            # The wrappers around it must not have changed the frames.
            found = shape[0] if env.observation_space.shape == shape else 0
            break
        found = int(getattr(config, "stack_num", 0) or getattr(env, "stack_num", 0))
        env = getattr(env, "env", None)
    return found if found == shape[0] else 0
