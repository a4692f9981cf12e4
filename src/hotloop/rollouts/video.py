"""Videos of a policy: one episode, as the environment renders it."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from hotloop.base.files import atomic_write
from hotloop.base.importing import describe_exception
from hotloop.envs import EnvSpec
from hotloop.envs.checks import describe_value
from hotloop.envs.factory import make_filmed
from hotloop.envs.pettingzoo_envs import PettingZooEnvs
from hotloop.envs.serial import SerialVectorEnv
from hotloop.envs.turns import TurnGames
from hotloop.errors import (
    ConfigError,
    EnvironmentFailure,
    HotloopError,
    MissingExtraError,
    install_command,
    requires_extra,
)
from hotloop.policies import ActingPolicy
from hotloop.rollouts.evaluation import evaluate
from hotloop.rollouts.frame_labels import FrameLabel
from hotloop.timing import span
from hotloop.types import Array, Episode

_SUFFIXES = (".mp4", ".gif")
_DEFAULT_FPS = 30.0  # images per second, for environments without `render_fps`
_MAX_FPS = 1_000.0
_DISPLAYS = ("DISPLAY", "WAYLAND_DISPLAY")
_SDL_DRIVER = "SDL_VIDEODRIVER"
# Words in errors of MuJoCo's OpenGL initialization.
_GRAPHICS = ("glfw", "opengl", "egl", "osmesa", "display", "glad", "gl_context")
MAX_STEPS = 20_000
"""Default maximum number of steps in a video."""


class Camera:
    """Records videos of an environment.

    The environment stays open between two videos. Closing it may end a library that draws for all
    environments of the process, such as pygame, which Gymnasium uses.

    Args:
        spec: The environment. Created with `render_mode="rgb_array"`.
            Those of a game of several agents must have action masks if the policy has.
        make_game: Makes the rows of a game of several agents, in which other players take part.
            The film names the player of each agent. None: there are no other players.
    """

    def __init__(self, spec: EnvSpec, make_game: Callable[[EnvSpec], Any] | None = None) -> None:
        self._spec, self._name = spec, spec.name
        self._make_game = make_game
        self._instance: Any = None
        self._sdl_driver = "offscreen"
        self._has_set_driver = False

    def record(
        self, policy: ActingPolicy, path: str | Path, *, max_steps: int = MAX_STEPS
    ) -> Episode:
        """Record a video of the first episode that `evaluate` plays with the same seed.

        Args:
            policy: Acting policy.
            path: Output file, .mp4 or .gif. Missing directories are created.
            max_steps: Maximum number of steps. The video of a longer episode ends there.

        Returns:
            The episode, up to the end of the video.

        Raises:
            ConfigError: `path` has another suffix, the environment can't render, or its spaces
                differ from those of the policy.
            MissingExtraError: imageio-ffmpeg, or a library for rendering, is not installed.
            EnvironmentFailure: The environment raised, or did not render images.
            OutputError: `path` can't be written.
        """
        path = Path(path)
        _check_suffix(path)
        ffmpeg = _import_ffmpeg()
        with span("record_video"), self._drawing_settings():
            vector_env, frame = self._begin(policy)
            env = _rendered(self._instance)
            with atomic_write(path) as temporary_path:
                with closing(_VideoWriter(ffmpeg, temporary_path, _frame_rate(env))) as writer:

                    def add_frame() -> None:
                        writer.add(_render(env, self._name))

                    if vector_env is self._instance:
                        on_step = _film_changes(vector_env, writer, add_frame)
                    else:
                        on_step = add_frame
                        writer.add(frame)
                    (episode,) = evaluate(
                        vector_env, policy, num_episodes=1, max_steps=max_steps, on_step=on_step
                    )
                writer.check()
            if writer.is_constant and writer.first_frame is not None:
                text = _constant_text(path, writer.first_frame)
                warnings.warn(f"{self._name}: {text}", stacklevel=2)
        return episode

    def check(self, path: str | Path = "video.mp4") -> None:
        """Check that `record` will work, by rendering one image.

        Args:
            path: Output file, of which only the suffix matters.

        Raises:
            HotloopError: See `record`.
        """
        _check_suffix(Path(path))
        _import_ffmpeg()
        with self._drawing_settings():
            self._begin(None)

    def close(self) -> None:
        """Close the environment. Further calls do nothing."""
        instance, self._instance = self._instance, None
        if instance is not None:
            instance.close()

    def _begin(self, policy: ActingPolicy | None) -> tuple[Any, Array]:
        """Start an episode, and return its environment and its first image."""
        try:
            return self._reset(policy)
        except EnvironmentFailure as error:
            if not self._has_set_driver or self._sdl_driver == "dummy":
                raise
            # Some builds of SDL have no offscreen driver. All have the dummy driver, but with it
            # some environments draw nothing.
            with suppress(Exception):
                self.close()
            os.environ[_SDL_DRIVER] = "dummy"  # `_drawing_settings` restores it
            try:
                start = self._reset(policy)
            except HotloopError:
                raise error from error.__cause__
            self._sdl_driver = "dummy"
            return start

    def _reset(self, policy: ActingPolicy | None) -> tuple[Any, Array]:
        fields: Any = {"stream": "evaluation", "log_info": ()}
        if self._instance is None:
            make = self._make_game or make_filmed
            self._instance = _make_rendering_env(replace(self._spec, **fields), make)
        # Encode, check, and seed the episode as in evaluation.
        vector_env: Any = self._instance
        is_game = _rendered(vector_env) is not vector_env
        if not is_game:
            fields["action_masks"] = policy is not None and policy.network.action_spec.is_masked
            single_env: Any = _SingleResetEnv(self._instance)
            spec = replace(self._spec, **fields)
            vector_env = SerialVectorEnv([single_env], spec, env_id=self._name)
        if policy is not None:
            specs = policy.network.obs_spec, policy.network.action_spec
            if (vector_env.obs_spec, vector_env.action_spec) != specs:
                raise ConfigError(
                    f"{self._name} has other spaces than the policy was trained on: record the "
                    "video in the training environment"
                )
        with warnings.catch_warnings():
            if policy is None:  # `check` has no policy, and the run itself warns about unused masks
                warnings.simplefilter("ignore", UserWarning)
            if is_game:  # the evaluation begins a game with all players
                vector_env.first_game.reset(seed=0)
            else:
                vector_env.reset(first_episode=0)
        return vector_env, _render(_rendered(self._instance), self._name)

    @contextmanager
    def _drawing_settings(self) -> Iterator[None]:
        """Set environment variables for drawing, in the body only."""
        # pygame prints a greeting to standard output, which another program may read.
        settings = {"PYGAME_HIDE_SUPPORT_PROMPT": "1"}
        if not _has_display():
            settings |= {"MUJOCO_GL": "egl", _SDL_DRIVER: self._sdl_driver}
        before = {variable: os.environ.get(variable) for variable in settings}
        self._has_set_driver = _SDL_DRIVER in settings and before[_SDL_DRIVER] is None
        for variable, value in settings.items():
            os.environ.setdefault(variable, value)
        try:
            yield
        finally:
            for variable, value in before.items():
                if value is None:
                    os.environ.pop(variable, None)


def _has_display() -> bool:
    return any(os.environ.get(name) for name in _DISPLAYS)


def _constant_text(path: Path, frame: Array) -> str:
    """Return a warning about a video of the same image throughout."""
    color = frame[0, 0]
    if not (frame == color).all():
        return f"the video {path} does not move, since every `render` returned the same image"
    text = f"the video {path} shows a single color, RGB {tuple(color.tolist())}"
    if os.environ.get(_SDL_DRIVER) == "dummy":
        return f"{text}: some environments draw nothing with {_SDL_DRIVER}=dummy, so unset it"
    return f"{text}: check what its `render` draws with render_mode='rgb_array'"


def _film_changes(
    envs: Any, writer: _VideoWriter, add_frame: Callable[[], None]
) -> Callable[[], None]:
    """Add a frame at each change of a game, and return what to do after each step: nothing."""

    def add_labelled() -> None:
        if writer.label is None:
            writer.label = FrameLabel(envs.players("policy"))
        add_frame()

    envs.film(add_labelled)
    return lambda: None


class _VideoWriter:
    """Writes images to a video file through an ffmpeg process.

    Attributes:
        label: A label above each image, None without one.
        first_frame: The first image, None before it.
        is_constant: Whether there are several images, and all are the same.
    """

    def __init__(self, ffmpeg: Any, path: Path, fps: float) -> None:
        self._ffmpeg = ffmpeg
        self._path = path
        self._fps = fps
        self._frames: Any = None
        self._shape = (0, 0, 3)
        self._num_frames = 0
        self.label: FrameLabel | None = None
        self.first_frame: Array | None = None
        self.is_constant = False

    def add(self, frame: Array) -> None:
        """Append an image, uint8, (height, width, 3), with even height and width."""
        if self.label is not None:
            frame = self.label.add(frame)
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
                macro_block_size=1,  # 16 would stretch the images
                ffmpeg_log_level="error",
                **options,
            )
            self._frames.send(None)
        if frame.shape != self._shape:
            raise EnvironmentFailure(
                f"`render` must return images of one size, got {self._shape} and {frame.shape}: "
                "give the environment a fixed image size"
            )
        self._frames.send(np.ascontiguousarray(frame))
        self._num_frames += 1
        if self.first_frame is None:
            self.first_frame = frame.copy()
        elif self.is_constant or self._num_frames == 2:
            self.is_constant = np.array_equal(frame, self.first_frame)

    def close(self) -> None:
        if self._frames is not None:
            self._frames.close()

    def check(self) -> None:
        """Raise OSError if images are missing: ffmpeg does not report a failure at the end."""
        try:
            num_written, _ = self._ffmpeg.count_frames_and_secs(str(self._path))
        except RuntimeError:  # not a video
            num_written = 0
        if num_written < self._num_frames:
            raise OSError(f"ffmpeg wrote {num_written} of {self._num_frames} images")


class _SingleResetEnv:
    """An environment that ignores further resets, so that the last frame is the episode's end."""

    def __init__(self, env: Any) -> None:
        self.observation_space = env.observation_space
        self.action_space = env.action_space
        self.step = env.step
        self.env = env
        self._first_result: Any = None

    def reset(self, **options: Any) -> Any:
        if self._first_result is None:
            self._first_result = self.env.reset(**options)
        return self._first_result


def _metadata(env: Any) -> Mapping[str, Any]:
    metadata = getattr(env, "metadata", None)
    return metadata if isinstance(metadata, Mapping) else {}


def _frame_rate(env: Any) -> float:
    """Return an environment's images per second, or the default if they are no usable number."""
    rate = _metadata(env).get("render_fps")
    is_rate = isinstance(rate, (int, float, np.number)) and 0 < rate <= _MAX_FPS
    return float(rate) if is_rate else _DEFAULT_FPS  # pyright: ignore[reportArgumentType]


def _render(env: Any, name: str) -> Array:
    """Return an image, uint8, (height, width, 3), with even height and width, as MP4 needs them."""
    try:
        frame = env.render()
    except (Exception, SystemExit) as error:
        problem = f"{name}: rendering a frame raised {describe_exception(error)}"
        # Gymnasium's error for a missing library is not an ImportError.
        if isinstance(error, ImportError) or type(error).__name__ == "DependencyNotInstalled":
            raise MissingExtraError(
                f"{problem}: {install_command('video')} and the library in this error"
            ) from error
        text = f"{type(error).__name__} {error}".lower()
        hint = "correct its `render`"
        if any(word in text for word in _GRAPHICS):
            hint = (
                "without a display it needs EGL (from the GPU's driver, or Mesa's libegl1), or "
                "OSMesa (libosmesa6) and MUJOCO_GL=osmesa"
            )
        raise EnvironmentFailure(f"{problem}: {hint}") from error
    is_image = isinstance(frame, np.ndarray) and frame.ndim == 3 and frame.shape[2] == 3
    if not is_image or frame.dtype != np.uint8 or not frame.size:
        raise EnvironmentFailure(
            f"{name}: `render` must return a uint8 array of shape (height, width, 3), "
            f"got {describe_value(frame)}: see render_mode='rgb_array' of Gymnasium"
        )
    height, width, _ = frame.shape
    if height % 2 or width % 2:
        return np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
    return frame


def _rendered(instance: Any) -> Any:
    """Return what renders: an environment itself, or the game of its rows."""
    is_game = isinstance(instance, (PettingZooEnvs, TurnGames))
    return instance.first_game if is_game else instance


def _make_rendering_env(spec: EnvSpec, make: Callable[[EnvSpec], Any]) -> Any:
    """Return an environment that renders images, or raise ConfigError."""
    name = spec.name
    if spec.is_envpool:
        raise ConfigError(
            f"{name} can't be filmed, because EnvPool does not render: record the video in the "
            "same environment of Gymnasium, if it exists"
        )
    kwargs = {**spec.env_kwargs, "render_mode": "rgb_array"}
    first_error: HotloopError | None = None
    try:
        env_instance = make(replace(spec, env_kwargs=kwargs))
    except (ConfigError, EnvironmentFailure) as error:
        # A factory may set the mode itself and have no such argument. Otherwise, read the modes.
        first_error = error
        env_instance = make(spec)
    env = _rendered(env_instance)
    if getattr(env, "render_mode", None) == "rgb_array":
        return env_instance
    modes = list(_metadata(env).get("render_modes") or ())
    env_instance.close()
    if first_error is not None and "rgb_array" in modes:
        cause = first_error.__cause__
        if isinstance(cause, TypeError) and "render_mode" in str(cause):
            raise ConfigError(
                f"{name} can't be filmed: it must accept render_mode='rgb_array', but it has no "
                "such argument: add the argument `render_mode=None` to its function or class, and "
                "pass it to the environment"
            ) from first_error
        raise first_error
    modes_text = f"its render modes are {', '.join(map(str, modes))}" if modes else "it has none"
    raise ConfigError(
        f"{name} can't be filmed: it must accept render_mode='rgb_array', but {modes_text}"
    ) from first_error


def _check_suffix(path: Path) -> None:
    if path.suffix not in _SUFFIXES:
        raise ConfigError(f"a video must end in {' or '.join(_SUFFIXES)}, got '{path}'")


def _import_ffmpeg() -> Any:
    with requires_extra("writing a video needs imageio-ffmpeg", "video"):
        import imageio_ffmpeg
    return imageio_ffmpeg
