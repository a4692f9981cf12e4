import os
import re
import subprocess
import sys

import numpy as np
import pytest

from hotloop.envs import make_vec
from hotloop.errors import (
    ConfigError,
    EnvironmentFailure,
    MissingExtraError,
    OutputError,
    install_command,
)
from hotloop.policies import ActingPolicy, PolicySnapshot, actor_critic
from hotloop.rollouts import video
from hotloop.rollouts.evaluation import evaluate
from hotloop.rollouts.video import check_filmable, record_video
from tests.rollouts.video_envs import Counter, OnlyText, chooses_itself, no_modes, takes_no_mode


def make_policy(env, **env_kwargs):
    envs = make_vec(env, env_kwargs=env_kwargs)
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
    envs = make_vec("CartPole-v1", seed=5, stream="evaluation")
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
    assert (episode.undiscounted_return, episode.length) == (6.0, 3)
    assert len(read_video(path)[0]) == 4


def test_a_factory_may_choose_the_render_mode_itself(tmp_path):
    check_filmable(chooses_itself, env_kwargs={"length": 2}, suffix=".gif")
    policy = make_policy(chooses_itself)
    path = tmp_path / "video.gif"
    episode = record_video(chooses_itself, policy, path, env_kwargs={"length": 2})
    assert episode.length == 2


@pytest.mark.parametrize(
    ("env", "error", "message"),
    [
        (OnlyText, ConfigError, "its render modes are human, ansi"),
        (no_modes, ConfigError, "it must accept render_mode='rgb_array', but it has none"),
        (takes_no_mode, ConfigError, "unexpected keyword argument 'render_mode'"),
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

    def interrupt(obs, memory):
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


def test_environment_variables_are_restored(monkeypatch):
    """Variables for a missing display are set only while filming, if the user has not set them."""
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    monkeypatch.delenv("SDL_VIDEODRIVER", raising=False)
    monkeypatch.setenv("MUJOCO_GL", "osmesa")
    variables = {}

    class ReadsVariables(Counter):
        def render(self):
            variables.update({name: os.environ.get(name) for name in video._WITHOUT_DISPLAY})
            return super().render()

    check_filmable(ReadsVariables)
    assert variables == {"MUJOCO_GL": "osmesa", "SDL_VIDEODRIVER": "dummy"}
    assert "SDL_VIDEODRIVER" not in os.environ
    assert os.environ["MUJOCO_GL"] == "osmesa"
