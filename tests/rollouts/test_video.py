import os
import re
import subprocess
import sys
import warnings
from contextlib import closing
from types import SimpleNamespace

import numpy as np
import pytest

from hotloop.envs import EnvSpec, make_vec
from hotloop.errors import (
    ConfigError,
    EnvironmentFailure,
    MissingExtraError,
    OutputError,
    install_command,
)
from hotloop.policies import ActingPolicy, PolicySnapshot, actor_critic
from hotloop.rollouts.evaluation import evaluate
from hotloop.rollouts.video import Camera, _frame_rate
from tests.rollouts.video_envs import Counter, OnlyText, chooses_itself, no_modes, takes_no_mode


def record_video(env, policy, path, *, env_kwargs=None, seed=0, **options):
    with closing(Camera(EnvSpec(env, env_kwargs or {}, seed=seed))) as camera:
        return camera.record(policy, path, **options)


def check_filmable(env, *, env_kwargs=None, path="video.mp4"):
    with closing(Camera(EnvSpec(env, env_kwargs or {}))) as camera:
        camera.check(path)


def make_policy(env, **env_kwargs):
    envs = make_vec(EnvSpec(env, env_kwargs))
    network = actor_critic(envs)
    envs.close()
    return ActingPolicy(network, PolicySnapshot(0, network.initial_parameters(1)))


def read_video(path):
    """Return the frames, uint8 (F, height, width, 3), and the file's metadata."""
    import imageio_ffmpeg

    frames = imageio_ffmpeg.read_frames(str(path))
    meta = next(frames)
    width, height = meta["size"]
    return np.stack([np.frombuffer(f, np.uint8).reshape(height, width, 3) for f in frames]), meta


@pytest.mark.parametrize("suffix", [".mp4", ".gif"])
def test_every_step_is_filmed_and_the_last_frame_is_the_episodes_end(tmp_path, suffix):
    path = tmp_path / "new folder" / f"video{suffix}"
    episode = record_video(Counter, make_policy(Counter), path)
    assert (episode.undiscounted_return, episode.length) == (10.0, 5)
    frames, meta = read_video(path)
    assert meta["fps"] == 10
    assert frames.shape == (6, 34, 48, 3)  # made even
    colours = frames[:, 16, 24].mean(-1)
    np.testing.assert_allclose(colours, [0, 40, 80, 120, 160, 255], atol=6)
    assert os.listdir(path.parent) == [path.name]


def test_the_video_shows_the_first_episode_of_an_evaluation(tmp_path):
    policy = make_policy("CartPole-v1")
    envs = make_vec(EnvSpec("CartPole-v1", seed=5, stream="evaluation"))
    (expected,) = evaluate(envs, policy, num_episodes=1)
    envs.close()
    env_kwargs = {"render_mode": "human"}  # the run's own render mode is ignored
    filmed = record_video(
        "CartPole-v1", policy, tmp_path / "video.mp4", env_kwargs=env_kwargs, seed=5
    )
    assert filmed == expected
    frames, meta = read_video(tmp_path / "video.mp4")
    assert (meta["fps"], meta["size"]) == (50.0, (600, 400))
    assert len(frames) == expected.length + 1


def test_a_long_episode_is_cut_off(tmp_path):
    policy = make_policy(Counter)
    path = tmp_path / "video.gif"
    episode = record_video(Counter, policy, path, max_steps=3)
    assert (episode.undiscounted_return, episode.length, episode.is_cut) == (6.0, 3, True)
    assert len(read_video(path)[0]) == 4


def test_a_factory_may_choose_the_render_mode_itself(tmp_path):
    check_filmable(chooses_itself, env_kwargs={"length": 2}, path="video.gif")
    policy = make_policy(chooses_itself)
    path = tmp_path / "video.gif"
    episode = record_video(chooses_itself, policy, path, env_kwargs={"length": 2})
    assert episode.length == 2


@pytest.mark.parametrize(
    ("env", "error", "message"),
    [
        (OnlyText, ConfigError, "its render modes are human, ansi"),
        (no_modes, ConfigError, "it must accept render_mode='rgb_array', but it has none"),
        (takes_no_mode, ConfigError, "add the argument `render_mode=None` to its function"),
        ("envpool:CartPole-v1", ConfigError, "EnvPool does not render"),
        ("CartPole-v9", Exception, "CartPole"),
    ],
)
def test_environments_that_cannot_be_filmed(tmp_path, env, error, message):
    with pytest.raises(error, match=message):
        check_filmable(env)
    path = tmp_path / "video.mp4"
    with pytest.raises(error, match=message):
        record_video(env, make_policy(Counter), path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("failing", "error", "message"),
    [
        ("library", MissingExtraError, re.escape(install_command("video"))),
        ("display", EnvironmentFailure, "without a display it needs EGL"),
        ("exit", EnvironmentFailure, "rendering a frame raised SystemExit: 3"),
        ("dtype", EnvironmentFailure, r"uint8 array of shape \(height, width, 3\), got an array"),
        ("none", EnvironmentFailure, "got None"),
        ("size", EnvironmentFailure, r"of one size, got \(34, 48, 3\) and \(8, 8, 3\)"),
        ("step", EnvironmentFailure, "step 2.*the simulator diverged"),
    ],
)
def test_failures_leave_no_half_written_file(tmp_path, failing, error, message):
    path = tmp_path / "video.mp4"
    kwargs = {"failing": failing}
    with pytest.raises(error, match=message):
        record_video(Counter, make_policy(Counter), path, env_kwargs=kwargs)
    assert not list(tmp_path.iterdir())
    if failing not in ("step", "size"):
        with pytest.raises(error, match=message):
            check_filmable(Counter, env_kwargs=kwargs)


def test_an_interrupt_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "video.gif"
    path.write_bytes(b"of yesterday")
    policy = make_policy(Counter)

    def interrupt(obs, memory, mask):
        raise KeyboardInterrupt

    monkeypatch.setattr(policy, "greedy", interrupt)
    with pytest.raises(KeyboardInterrupt):
        record_video(Counter, policy, path)
    assert path.read_bytes() == b"of yesterday"
    assert os.listdir(tmp_path) == ["video.gif"]


def test_another_environments_policy_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="has other spaces than the policy was trained on"):
        record_video("CartPole-v1", make_policy(Counter), tmp_path / "video.mp4")


def test_unwritable_paths_and_unknown_suffixes_are_refused(tmp_path):
    policy = make_policy(Counter)
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="can't be written"):
        record_video(Counter, policy, tmp_path / "file" / "video.mp4")
    for name in ("video", "video.avi"):
        with pytest.raises(ConfigError, match=r"must end in \.mp4 or \.gif"):
            record_video(Counter, policy, tmp_path / name)


@pytest.mark.parametrize("suffix", ["mp4", "gif"])
def test_a_full_disk_leaves_nothing(tmp_path, suffix):
    """Run in a process whose files are limited to 1,000 bytes."""
    code = (
        "import resource, signal, sys\n"
        "from tests.rollouts.test_video import *\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "with pytest.raises(OutputError, match='ffmpeg wrote . of 6 images|Broken pipe'):\n"
        "    kwargs = {'size': (200, 200)}\n"
        "    record_video(Counter, make_policy(Counter), sys.argv[1], env_kwargs=kwargs)"
    )
    path = tmp_path / f"video.{suffix}"
    subprocess.run([sys.executable, "-c", code, path], check=True, stderr=subprocess.DEVNULL)
    assert not list(tmp_path.iterdir())


def test_a_missing_library_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(MissingExtraError, match=re.escape(install_command("video"))):
        check_filmable(Counter)


@pytest.fixture
def no_display(monkeypatch):
    """Remove the variables of a display, and of the drivers that draw without one."""
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("no_display")
def test_environment_variables_are_restored(monkeypatch):
    """Variables for a missing display are set only while filming, if the user has not set them."""
    monkeypatch.setenv("MUJOCO_GL", "osmesa")
    variables = {}

    class ReadsVariables(Counter):
        def render(self):
            variables.update({x: os.environ.get(x) for x in ("MUJOCO_GL", "SDL_VIDEODRIVER")})
            return super().render()

    check_filmable(ReadsVariables)
    assert variables == {"MUJOCO_GL": "osmesa", "SDL_VIDEODRIVER": "offscreen"}
    assert "SDL_VIDEODRIVER" not in os.environ
    assert os.environ["MUJOCO_GL"] == "osmesa"


@pytest.mark.usefixtures("no_display")
def test_the_dummy_driver_of_sdl_is_for_environments_that_need_it(tmp_path, monkeypatch):
    """With this driver some environments draw nothing, and others need it without a display."""

    class Draws(Counter):
        def render(self):
            is_dummy = os.environ.get("SDL_VIDEODRIVER") == "dummy"
            return np.zeros((8, 8, 3), np.uint8) if is_dummy else super().render()

    class NeedsDummy(Counter):
        def render(self):
            if os.environ.get("SDL_VIDEODRIVER") != "dummy":
                raise RuntimeError("No available video device")
            return super().render()

    policy, path = make_policy(Counter), tmp_path / "video.mp4"
    for env in (Draws, NeedsDummy):
        record_video(env, policy, path)
        assert read_video(path)[0][-1].mean() > 240
        assert "SDL_VIDEODRIVER" not in os.environ
    # The driver is the user's choice, or there is a display: no other one is tried.
    monkeypatch.setenv("DISPLAY", ":0")
    with pytest.raises(EnvironmentFailure, match="No available video device"):
        check_filmable(NeedsDummy)
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    with pytest.warns(UserWarning, match=r"RGB \(0, 0, 0\): .* SDL_VIDEODRIVER=dummy, so unset it"):
        record_video(Draws, policy, path)


@pytest.mark.parametrize("rate", [None, 0, -3, "fast", np.nan, 1e9, [30]])
def test_a_frame_rate_that_is_none_is_replaced(rate):
    assert _frame_rate(SimpleNamespace(metadata={"render_fps": rate})) == 30
    assert _frame_rate(SimpleNamespace(metadata=None)) == 30
    assert _frame_rate(SimpleNamespace(metadata={"render_fps": np.int64(25)})) == 25


def test_a_video_of_one_image_is_reported(tmp_path):
    class Draws(Counter):
        def render(self):
            self.image[:] = 7
            if self.is_moving and self.count == 3:
                self.image[0, 0, 1] = 200
            if self.has_shape:
                self.image[3, 3] = 250
            return self.image  # one array for all images

        def __init__(self, render_mode=None, is_moving=False, has_shape=False):
            super().__init__(render_mode)
            self.image, self.is_moving = np.zeros((8, 8, 3), np.uint8), is_moving
            self.has_shape = has_shape

    policy, path = make_policy(Counter), tmp_path / "video.gif"
    with pytest.warns(UserWarning, match=r"shows a single color, RGB \(7, 7, 7\): check what"):
        record_video(Draws, policy, path)
    with pytest.warns(UserWarning, match="does not move, since every `render` returned the same"):
        record_video(Draws, policy, path, env_kwargs={"has_shape": True})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        record_video(Draws, policy, path, env_kwargs={"is_moving": True})


def test_another_suffix_is_rejected_before_the_environment_is_made():
    with pytest.raises(ConfigError, match=r"must end in \.mp4 or \.gif, got 'video\.avi'"):
        check_filmable("missing:Env", path="video.avi")
