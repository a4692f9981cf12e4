"""Environments that render the number of the step as a colour."""

from __future__ import annotations

import gymnasium
import numpy as np
from gymnasium import spaces


class Counter(gymnasium.Env):
    """Five steps; a picture's colour is 40 × the step that it shows, 255 at the end."""

    metadata = {"render_modes": ["rgb_array", "ansi"], "render_fps": 10}  # noqa: RUF012
    observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, render_mode=None, size=(33, 47), length=5, failing=None):
        self.render_mode = render_mode
        self.size = size
        self.length = length
        self.failing = failing

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.count += 1
        if self.failing == "step" and self.count == 3:
            raise RuntimeError("the simulator diverged")
        return np.zeros(2, np.float32), 2.0, self.count == self.length, False, {}

    def render(self):
        if self.failing == "library":
            raise ImportError("No module named 'pygame'")
        if self.failing == "display":
            raise RuntimeError("GLFWError: X11: The DISPLAY environment variable is missing")
        if self.failing == "exit":
            raise SystemExit(3)
        if self.failing == "dtype":
            return np.zeros((*self.size, 3), np.float32)
        if self.failing == "none":
            return None
        if self.failing == "size" and self.count == 2:
            return np.zeros((8, 8, 3), np.uint8)
        colour = 255 if self.count == self.length else 40 * self.count
        return np.full((*self.size, 3), colour, np.uint8)


class OnlyText(Counter):
    metadata = {"render_modes": ["human", "ansi"]}  # noqa: RUF012

    def __init__(self, render_mode=None):
        assert render_mode in (None, "human", "ansi")
        super().__init__(render_mode)


def chooses_itself(length=5):
    return Counter(render_mode="rgb_array", length=length)


def takes_no_mode(length=5):
    return Counter(length=length)


def no_modes():
    env = Counter()
    env.metadata = {}
    return env
