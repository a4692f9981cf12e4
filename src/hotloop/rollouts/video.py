"""Filming a policy: one episode of one environment, as it renders itself."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from hotloop.envs import environment_name, make_env
from hotloop.envs.checks import describe_value
from hotloop.envs.serial import SerialVectorEnv
from hotloop.errors import ConfigError, EnvironmentFailure, HotloopError, MissingExtraError
from hotloop.importing import describe_exception
from hotloop.policies import ActingPolicy
from hotloop.system.files import written_whole
from hotloop.timing import span
from hotloop.types import Array, Episode

_SUFFIXES = (".mp4", ".gif")
_DEFAULT_FPS = 30  # of environments that don't say
# What MuJoCo and pygame draw with where there is no display, unless the user says otherwise.
_WITHOUT_DISPLAY = {"MUJOCO_GL": "egl", "SDL_VIDEODRIVER": "dummy"}
# What errors name that come from MuJoCo's way to OpenGL.
_GRAPHICS = ("glfw", "opengl", "egl", "osmesa", "display", "glad", "gl_context")


def record_video(
    env: str | Callable[..., Any],
    policy: ActingPolicy,
    path: str | Path,
    *,
    env_kwargs: Mapping[str, Any] | None = None,
    seed: int = 0,
    max_steps: int = 20_000,
) -> Episode:
    """Play one episode with the most probable actions, and film it.

    It is the first episode that `evaluate` plays with this seed.

    Args:
        env: as `hotloop.envs.make_env` takes it; made with `render_mode="rgb_array"`.
        policy: acts.
        path: where to, .mp4 or .gif; missing directories are made.
        env_kwargs: for the environment's constructor or the factory.
        seed: of the run.
        max_steps: a longer episode is cut off there.

    Returns:
        The episode, as far as it was filmed.

    Raises:
        ConfigError: `path` has another suffix; the environment can't render, or has other spaces
            than the policy.
        MissingExtraError: imageio-ffmpeg, or what the environment draws with, is not installed.
        EnvironmentFailure: the environment raised, or rendered something else than pictures.
        OutputError: `path` can't be written.
    """
    path = Path(path)
    _check_suffix(path)
    ffmpeg = _ffmpeg()
    name = environment_name(env)
    with span("record_video"), _filmable(env, name, env_kwargs) as made:
        fps = made.metadata.get("render_fps") or _DEFAULT_FPS
        with written_whole(path) as aside:
            with closing(_Film(ffmpeg, aside, fps)) as film:
                episode = _play(made, name, policy, film, seed=seed, max_steps=max_steps)
            film.check()
            return episode


def check_filmable(
    env: str | Callable[..., Any],
    *,
    env_kwargs: Mapping[str, Any] | None = None,
    suffix: str = ".mp4",
) -> None:
    """Make sure that `record_video` will work, before a run that needs it begins.

    An environment is made, reset and rendered once.

    Raises:
        What `record_video` does.
    """
    _check_suffix(Path(f"video{suffix}"))
    _ffmpeg()
    name = environment_name(env)
    with _filmable(env, name, env_kwargs) as made:
        with warnings.catch_warnings():  # whether masks are looked at is not for it to say
            warnings.simplefilter("ignore", UserWarning)
            _loop(made, name, seed=0).reset(first_episode=0)
        _frame(made, name)


class _Film:
    """Pictures on their way through ffmpeg, which is a process of its own, into a file."""

    def __init__(self, ffmpeg: Any, path: Path, fps: float) -> None:
        self._ffmpeg = ffmpeg
        self._path = path
        self._fps = fps
        self._frames: Any = None
        self._shape = (0, 0, 3)
        self._num_frames = 0

    def add(self, frame: Array) -> None:
        """Append a picture: uint8, (height, width, 3), both even."""
        if self._frames is None:
            self._shape = frame.shape
            options: dict[str, Any] = {}
            if self._path.suffix == ".gif":
                palette = "split[a][b];[a]palettegen[p];[b][p]paletteuse"
                options = {"codec": "gif", "pix_fmt_out": "pal8", "quality": None}
                options["output_params"] = ["-vf", palette]
            height, width, _ = frame.shape
            self._frames = self._ffmpeg.write_frames(
                str(self._path),
                (width, height),
                fps=self._fps,
                macro_block_size=1,  # 16 would stretch the pictures
                ffmpeg_log_level="error",
                **options,
            )
            self._frames.send(None)
        if frame.shape != self._shape:
            raise EnvironmentFailure(
                f"`render` must give pictures of one size, got {self._shape} and {frame.shape}: "
                "give the environment a fixed one"
            )
        self._frames.send(np.ascontiguousarray(frame))
        self._num_frames += 1

    def close(self) -> None:
        """Let ffmpeg finish, and wait for it."""
        if self._frames is not None:
            self._frames.close()

    def check(self) -> None:
        """Make sure that all pictures are there: ffmpeg's failure to write the last is not told.

        Raises:
            OSError: they are not.
        """
        try:
            found, _ = self._ffmpeg.count_frames_and_secs(str(self._path))
        except RuntimeError:  # no video at all
            found = 0
        if found < self._num_frames:
            raise OSError(f"ffmpeg wrote {found} of {self._num_frames} pictures")


class _OneEpisode:
    """An environment that is reset once: after the episode's end it still shows how it ended."""

    def __init__(self, env: Any) -> None:
        self.observation_space = env.observation_space
        self.action_space = env.action_space
        self.step = env.step
        self._env = env
        self._first: Any = None

    def reset(self, **options: Any) -> Any:
        if self._first is None:
            self._first = self._env.reset(**options)
        return self._first


def _play(
    env: Any,
    name: str,
    policy: ActingPolicy,
    film: _Film,
    *,
    seed: int,
    max_steps: int,
) -> Episode:
    has_masks = policy.network.obs_spec.mask_size > 0
    loop = _loop(env, name, seed, action_masks=has_masks)
    specs = policy.network.obs_spec, policy.network.action_spec
    if (loop.obs_spec, loop.action_spec) != specs:
        raise ConfigError(
            f"{name} has other spaces than the policy was trained on: film it in the environment "
            "that it knows"
        )
    obs = loop.reset(first_episode=0)
    film.add(_frame(env, name))
    total, memory = 0.0, policy.new_memory(1)
    for _ in range(max_steps):
        result = loop.step(policy.greedy(obs, memory))
        film.add(_frame(env, name))
        finished = loop.pop_episodes()
        if finished:
            return finished[0]
        total += float(result.reward[0])
        obs = result.obs
    return Episode(env=0, episode=0, undiscounted_return=total, length=max_steps)


def _loop(env: Any, name: str, seed: int, *, action_masks: bool = False) -> SerialVectorEnv:
    """What encodes observations and actions, checks them, and seeds the episode."""
    one: Any = _OneEpisode(env)
    options: Any = {"stream": "evaluation", "action_masks": action_masks}
    return SerialVectorEnv([one], env_id=name, seed=seed, **options)


def _frame(env: Any, name: str) -> Array:
    """A picture of the environment: uint8, (height, width, 3), both even, as MP4 needs them."""
    try:
        frame = env.render()
    except Exception as error:
        what = f"{name}: rendering a frame raised {describe_exception(error)}"
        # Gymnasium's own name for a missing library, which is no ImportError.
        if isinstance(error, ImportError) or type(error).__name__ == "DependencyNotInstalled":
            raise MissingExtraError(
                f"{what}: pip install 'hotloop[video]', and what the environment names"
            ) from error
        text = f"{type(error).__name__} {error}".lower()
        hint = "correct its `render`"
        if any(word in text for word in _GRAPHICS):
            hint = (
                "without a display it needs EGL (of the GPU's driver, or Mesa's: libegl1), or "
                "OSMesa (libosmesa6) and MUJOCO_GL=osmesa"
            )
        raise EnvironmentFailure(f"{what}: {hint}") from error
    is_picture = isinstance(frame, np.ndarray) and frame.ndim == 3 and frame.shape[2] == 3
    if not is_picture or frame.dtype != np.uint8:
        raise EnvironmentFailure(
            f"{name}: `render` must return a uint8 array of shape (height, width, 3), "
            f"got {describe_value(frame)}: return what render_mode='rgb_array' says"
        )
    height, width, _ = frame.shape
    if height % 2 or width % 2:
        return np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
    return frame


@contextmanager
def _filmable(env: str | Callable[..., Any], name: str, kwargs: Any) -> Iterator[Any]:
    """An environment with `render_mode="rgb_array"`, also where there is no display."""
    before = {variable: os.environ.get(variable) for variable in _WITHOUT_DISPLAY}
    if not os.environ.get("DISPLAY") and not os.environ.get("WAYLAND_DISPLAY"):
        for variable, value in _WITHOUT_DISPLAY.items():
            os.environ.setdefault(variable, value)
    # It greets on standard output, which may be a program's.
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    try:
        made = _make_filmable(env, name, kwargs)
        try:
            yield made
        finally:
            made.close()
    finally:
        for variable, value in before.items():
            if value is None:
                os.environ.pop(variable, None)


def _make_filmable(env: str | Callable[..., Any], name: str, kwargs: Any) -> Any:
    if name.startswith("envpool:"):
        raise ConfigError(
            f"{name} can't be filmed: EnvPool renders nothing; film the policy in the same "
            "environment of Gymnasium, if it has one"
        )
    kwargs = dict(kwargs or {})
    first_error: HotloopError | None = None
    try:
        made = make_env(env, {**kwargs, "render_mode": "rgb_array"})
    except (ConfigError, EnvironmentFailure) as error:
        # A factory may choose the mode itself and take none; else, which are there?
        first_error = error
        try:
            made = make_env(env, kwargs)
        except HotloopError:
            raise first_error from None
    if made.render_mode == "rgb_array":
        return made
    modes = list(made.metadata.get("render_modes") or ())
    made.close()
    if first_error is not None and "rgb_array" in modes:
        raise first_error
    named = f"its render modes are {', '.join(map(str, modes))}" if modes else "it names none"
    raise ConfigError(
        f"{name} can't be filmed: it must take render_mode='rgb_array', but {named}"
    ) from first_error


def _check_suffix(path: Path) -> None:
    if path.suffix not in _SUFFIXES:
        raise ConfigError(f"a video must end in {' or '.join(_SUFFIXES)}, got '{path}'")


def _ffmpeg() -> Any:
    try:
        import imageio_ffmpeg
    except ImportError as error:
        raise MissingExtraError(
            f"writing a video needs imageio-ffmpeg ({error}): pip install 'hotloop[video]'"
        ) from error
    return imageio_ffmpeg
