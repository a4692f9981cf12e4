"""Environments with image observations, small enough to be learned within a test."""

import gymnasium
import numpy as np
from gymnasium import spaces


class Catch(gymnasium.Env):
    """A ball falls through all rows, and the paddle in the last row must be under it: +1 or −1.

    There are `places` × `places` places, each a square of `scale` × `scale` pixels.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012

    def __init__(self, places=10, scale=4, render_mode=None):
        self.places, self.scale, self.render_mode = places, scale, render_mode
        side = places * scale
        self.observation_space = spaces.Box(0, 255, (side, side, 1), np.uint8)
        self.action_space = spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.row = 0
        self.ball, self.paddle = self.np_random.integers(self.places, size=2).tolist()
        return self.observe(), {}

    def step(self, action):
        self.paddle = min(self.places - 1, max(0, self.paddle + int(action) - 1))
        self.row += 1
        has_ended = self.row == self.places - 1
        reward = (1.0 if self.ball == self.paddle else -1.0) if has_ended else 0.0
        return self.observe(), reward, has_ended, False, {}

    def picture(self):
        places = np.zeros((self.places, self.places, 1), np.uint8)
        places[-1, self.paddle] = 128
        places[self.row, self.ball] = 255
        return places.repeat(self.scale, 0).repeat(self.scale, 1)

    def observe(self):
        return self.picture()

    def render(self):
        return self.picture().repeat(3, 2)


class Signs(gymnasium.Env):
    """A light is left or right in the image, and a number selects its side or the other one.

    Neither alone determines the rewarded action. Random actions get 0 on average.
    """

    def __init__(self, side=12):
        self.side = side
        self.observation_space = spaces.Dict(
            picture=spaces.Box(0, 255, (side, side, 3), np.uint8),
            sign=spaces.Box(-1.0, 1.0, (1,), np.float32),
        )
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.num_done = 0
        return self.draw(), {}

    def step(self, action):
        is_right_best = self.is_right == (self.sign > 0)
        reward = 1.0 if bool(action) == is_right_best else -1.0
        self.num_done += 1
        return self.draw(), reward, False, self.num_done == 20, {}

    def draw(self):
        self.is_right = bool(self.np_random.integers(2))
        self.sign = float(self.np_random.choice([-1.0, 1.0]))
        picture = np.zeros((self.side, self.side, 3), np.uint8)
        row, column = self.np_random.integers(1, self.side // 2 - 1, 2)
        picture[2 * row, column + self.is_right * self.side // 2] = 255
        return {"picture": picture, "sign": np.array([self.sign], np.float32)}
