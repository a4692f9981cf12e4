"""The view of an agent on a scenario of ViZDoom."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class View:
    """The image, variables and frame skip of an agent's observations."""

    frame_skip: int = 4
    """Game tics per step, at 35 tics per second. Only the last one is rendered."""
    resolution: tuple[int, int] = (128, 72)
    """Width and height of the image, in pixels."""
    grayscale: bool = False
    """Whether the image has one channel instead of three."""
    game_variables: bool = True
    """Whether the scenario's variables are observed, if it has any."""
    variable_scale: float = 0.01
    """Factor for the variables: health, armor and ammunition are some hundreds at most."""
