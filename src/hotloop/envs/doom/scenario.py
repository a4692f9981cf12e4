"""A ViZDoom scenario as a single environment: steps, images and game variables.

Its spaces are those of ViZDoom's own environments. Unlike there, an episode at its time limit is
truncated instead of terminated, and its last observation is the true one.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import vizdoom
from gymnasium import spaces

from hotloop.envs.doom import processes
from hotloop.errors import requires_extra
from hotloop.types import Array

if TYPE_CHECKING:
    from hotloop.envs.doom.view import View

_TICS_PER_S = 35
_NEVER = 2**31 - 1  # ViZDoom's largest number of tics


def render_resolution(resolution: Sequence[int]) -> str:
    """Return ViZDoom's name of the best resolution to render an image of a width and height.

    The first choice is the smallest multiple of the size: shrinking takes 10 µs, and each pixel is
    the mean of several. Otherwise it is the smallest larger resolution, or the largest of all.
    """
    width, height = resolution
    sizes: dict[tuple[int, int], str] = {}
    for name in vizdoom.ScreenResolution.__members__:
        match = re.fullmatch(r"RES_(\d+)X(\d+)", name)
        assert match is not None
        sizes[int(match[1]), int(match[2])] = name
    in_order = sorted(sizes, key=lambda size: size[0] * size[1])
    multiples = [(w, h) for w, h in in_order if w % width == 0 and w // width * height == h]
    larger = [(w, h) for w, h in in_order if w >= width and h >= height]
    return sizes[[*multiples, *larger, in_order[-1]][0]]


class Scenario(gymnasium.Env[Any, Any]):
    """One game. It starts at the first reset, and ends with `close`.

    Observations are a dict of `screen`, uint8, (height, width, channels), and `gamevariables`,
    float32, or only the screen if there are no variables.

    Args:
        spec: Gymnasium's spec of the id.
        arguments: arguments of ViZDoom's environment.
        view: image, variables and frame skip of the observations.
    """

    def __init__(self, spec: Any, arguments: Mapping[str, Any], view: View) -> None:
        self.render_mode = arguments.get("render_mode")
        self.metadata = {
            "render_modes": ["rgb_array"],
            "render_fps": _TICS_PER_S / view.frame_skip,
        }
        self._view = view
        base = _make(spec, arguments)
        if isinstance(base.action_space, spaces.Dict) and "available_buttons" not in arguments:
            # Leave out continuous (delta) buttons, which duplicate others.
            buttons = base.game.get_available_buttons()
            names = [button.name for button in buttons if not vizdoom.is_delta_button(button)]
            base = _make(spec, {**arguments, "available_buttons": names})
        self.action_space = base.action_space
        self._game: Any = base.game
        self._time_limit = self._game.get_episode_timeout() or _NEVER
        # `step` applies the time limit: at its own time limit, ViZDoom returns no last observation.
        self._game.set_episode_timeout(0)
        self._end_tic = _NEVER
        # The pressed buttons of each discrete action.
        self._button_map: list[list[float]] | None = None
        if isinstance(self.action_space, spaces.Discrete):
            self._button_map = [list(map(float, buttons)) for buttons in base.button_map]
        # Define the observation space and the buffers.
        width, height = view.resolution
        channels = 1 if view.grayscale else 3
        screen = spaces.Box(0, 255, (height, width, channels), np.uint8)
        self._num_variables = base.num_game_variables if view.game_variables else 0
        self.observation_space: spaces.Space[Any] = screen
        if self._num_variables:
            variables = spaces.Box(-np.inf, np.inf, (self._num_variables,), np.float32)
            self.observation_space = spaces.Dict({"screen": screen, "gamevariables": variables})
        raw_size = (self._game.get_screen_width(), self._game.get_screen_height())
        self._resize = None if raw_size == (width, height) else _resizer(raw_size, (width, height))
        self._frame: Array = np.zeros((raw_size[1], raw_size[0], channels), np.uint8)
        self._obs: Any = None
        self._finalizer: Callable[[], Any] | None = None

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._game.set_seed(int(self.np_random.integers(2**32, dtype=np.uint32)))
        if self._game.is_running():
            self._game.new_episode()
        else:
            if self._finalizer is None:
                processes.register_game(self._game)
                end = weakref.finalize(self, _end_game, self._game)
                end.atexit = False  # at exit, the guard cleans up instead
                self._finalizer = end
            self._game.init()
        # Scenarios skip some tics at the start.
        self._end_tic = min(_NEVER, self._game.get_episode_time() + self._time_limit)
        self._observe()
        return self._obs, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        game = self._game
        pressed = action if self._button_map is None else self._button_map[action]
        num_tics = min(self._view.frame_skip, self._end_tic - game.get_episode_time())
        reward = game.make_action(pressed, num_tics)
        terminated = game.is_episode_finished()
        if terminated:
            return self._obs, reward, True, False, {}  # the game renders no further frame
        self._observe()
        return self._obs, reward, False, game.get_episode_time() >= self._end_tic, {}

    def render(self) -> Any:
        """Return the last image in the rendered resolution, (H, W, 3)."""
        return np.repeat(self._frame, 3, axis=2) if self._view.grayscale else self._frame.copy()

    def close(self) -> None:
        if self._finalizer is not None:
            self._finalizer()
            self._finalizer = None

    def _observe(self) -> None:
        state = self._game.get_state()
        frame = state.screen_buffer
        if self._view.grayscale:
            frame = frame[:, :, None]
        self._frame = frame
        screen = frame if self._resize is None else self._resize(frame)
        if not self._num_variables:
            self._obs = screen
            return
        variables = state.game_variables.astype(np.float32)
        variables *= self._view.variable_scale
        self._obs = {"screen": screen, "gamevariables": variables}


def _end_game(game: Any) -> None:
    game.close()
    processes.unregister_game()


def _make(spec: Any, arguments: Mapping[str, Any]) -> Any:
    """Return ViZDoom's own environment, whose game has not started."""
    return gymnasium.make(spec.id, disable_env_checker=True, **arguments).unwrapped


def _resizer(raw_size: tuple[int, int], size: tuple[int, int]) -> Any:
    """Return a function that resizes images from one size, (W, H), to another."""
    with requires_extra("resizing Doom's images needs OpenCV", "doom"):
        import cv2
    factors = [before / after for before, after in zip(raw_size, size, strict=True)]
    # The mean of an area takes 10 µs for integer factors. For others it takes ten times as long as
    # bilinear interpolation, which skips no pixel up to a factor of 2.
    is_integer = all(factor.is_integer() for factor in factors)
    method = cv2.INTER_AREA if is_integer or max(factors) > 2 else cv2.INTER_LINEAR

    def resize(frame: Array) -> Array:
        resized = cv2.resize(frame, size, interpolation=method)
        return resized[:, :, None] if resized.ndim == 2 else resized

    return resize
