"""A scenario of ViZDoom as a single environment: steps, pictures, numbers.

Beside ViZDoom's own environments, whose spaces it takes, an episode that runs out of time is
truncated and not terminated, and its last observation is the true one.
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
from hotloop.errors import MissingExtraError
from hotloop.types import Array

if TYPE_CHECKING:
    from hotloop.envs.doom import View

_TICS_PER_S = 35
_NEVER = 2**31 - 1  # as many tics as ViZDoom can count


def drawn_resolution(resolution: Sequence[int]) -> str:
    """Return ViZDoom's name of the size at which a picture of some width and height is drawn.

    The least that is a multiple of it: such a picture is shrunk in 10 µs, and each of its pixels is
    the mean of some others. Else the least that is no smaller, or the largest of all.
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
    """One game. It starts at the first reset, and ends when this is closed.

    Observations are a dict of `screen`, uint8, (height, width, channels), and `gamevariables`,
    float32, or the picture alone where there are no variables.

    Args:
        spec: Gymnasium's, of the id.
        arguments: for ViZDoom's environment.
        view: what is seen.
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
            # Buttons that turn by so much, continuous ones, stand beside those that turn.
            buttons = base.game.get_available_buttons()
            pressed = [one.name for one in buttons if not vizdoom.is_delta_button(one)]
            base = _make(spec, {**arguments, "available_buttons": pressed})
        self.action_space = base.action_space
        self._game: Any = base.game
        self._limit = self._game.get_episode_timeout() or _NEVER
        # Time is kept here: where ViZDoom ends an episode it has no last observation.
        self._game.set_episode_timeout(0)
        self._until = _NEVER
        # What is pressed by each of the actions that have a number.
        self._pressed: list[list[float]] | None = None
        if isinstance(self.action_space, spaces.Discrete):
            self._pressed = [list(map(float, one)) for one in base.button_map]
        width, height = view.resolution
        channels = 1 if view.grayscale else 3
        screen = spaces.Box(0, 255, (height, width, channels), np.uint8)
        self._num_variables = base.num_game_variables if view.game_variables else 0
        self.observation_space: spaces.Space[Any] = screen
        if self._num_variables:
            variables = spaces.Box(-np.inf, np.inf, (self._num_variables,), np.float32)
            self.observation_space = spaces.Dict({"screen": screen, "gamevariables": variables})
        drawn = (self._game.get_screen_width(), self._game.get_screen_height())
        self._resize = None if drawn == (width, height) else _resizing(drawn, (width, height))
        self._frame: Array = np.zeros((drawn[1], drawn[0], channels), np.uint8)
        self._obs: Any = None
        self._end: Callable[[], Any] | None = None

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._game.set_seed(int(self.np_random.integers(2**32, dtype=np.uint32)))
        if self._game.is_running():
            self._game.new_episode()
        else:
            if self._end is None:
                processes.enter(self._game)
                end = weakref.finalize(self, _end, self._game)
                end.atexit = False  # the guard sees to it
                self._end = end
            self._game.init()
        # The first tics are the scenario's own.
        self._until = min(_NEVER, self._game.get_episode_time() + self._limit)
        self._observe()
        return self._obs, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        game = self._game
        pressed = action if self._pressed is None else self._pressed[action]
        num_tics = min(self._view.frame_skip, self._until - game.get_episode_time())
        reward = game.make_action(pressed, num_tics)
        terminated = game.is_episode_finished()
        if terminated:
            return self._obs, reward, True, False, {}  # there is no other: the game shows no more
        self._observe()
        return self._obs, reward, False, game.get_episode_time() >= self._until, {}

    def render(self) -> Any:
        """Return the last picture as it was drawn, (H, W, 3)."""
        return np.repeat(self._frame, 3, axis=2) if self._view.grayscale else self._frame.copy()

    def close(self) -> None:
        if self._end is not None:
            self._end()
            self._end = None

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


def _end(game: Any) -> None:
    """End a game's process."""
    game.close()
    processes.leave()


def _make(spec: Any, arguments: Mapping[str, Any]) -> Any:
    """Return ViZDoom's own environment, whose game has not begun."""
    return gymnasium.make(spec.id, disable_env_checker=True, **arguments).unwrapped


def _resizing(drawn: tuple[int, int], size: tuple[int, int]) -> Any:
    """Return what makes a picture of one size, (W, H), into one of another."""
    try:
        import cv2
    except ImportError as error:
        raise MissingExtraError(
            f"pictures of Doom are made smaller by OpenCV ({error}): pip install 'hotloop[doom]'"
        ) from error
    factors = [before / after for before, after in zip(drawn, size, strict=True)]
    # The mean of an area takes 10 µs for whole numbers of pixels, and ten times as long as the mean
    # of four neighbours for others; which is enough while no pixel lies between them.
    is_whole = all(factor.is_integer() for factor in factors)
    way = cv2.INTER_AREA if is_whole or max(factors) > 2 else cv2.INTER_LINEAR

    def resize(frame: Array) -> Array:
        resized = cv2.resize(frame, size, interpolation=way)
        return resized[:, :, None] if resized.ndim == 2 else resized

    return resize
