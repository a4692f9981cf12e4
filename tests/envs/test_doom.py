"""ViZDoom scenarios: observations, episode ends, reproducibility and cleanup of game processes."""

import gc
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from hotloop.algorithms import ppo
from hotloop.envs import EnvSpec, make_env, make_vec
from hotloop.envs.doom import processes
from hotloop.envs.doom.scenario import render_resolution
from hotloop.envs.protocol import obs_hash
from hotloop.errors import (
    ConfigError,
    EnvironmentFailure,
    MissingExtraError,
    UnknownNameError,
    install_command,
)
from hotloop.types import RunningEpisode

BASIC = "VizdoomBasic-v1"
pytestmark = pytest.mark.outside

SHOOT, RIGHT, LEFT = 1, 2, 3  # 0: no button


@pytest.fixture(autouse=True)
def _isolated_directories(tmp_path, monkeypatch):
    """Check that tests write to neither the working directory nor the temporary directory."""
    temp_dir = tmp_path / "temp"
    work_dir = tmp_path / "work"
    temp_dir.mkdir()
    work_dir.mkdir()
    monkeypatch.chdir(work_dir)
    monkeypatch.setattr("tempfile.tempdir", str(temp_dir))
    monkeypatch.setattr(processes, "_directory", None)
    yield
    assert not any(temp_dir.iterdir())


def play(env, seed, actions):
    """Return the observations, rewards and end flags of an episode, up to its end."""
    obs, _ = env.reset(seed=seed)
    steps = [(obs, 0.0, False, False)]
    for action in actions:
        *step, _ = env.step(action)
        steps.append(tuple(step))
        if step[2] or step[3]:
            break
    return steps


def assert_same(steps, expected):
    assert len(steps) == len(expected)
    for (obs, *flags), (expected_obs, *expected_flags) in zip(steps, expected, strict=True):
        assert flags == expected_flags
        for name in obs:
            np.testing.assert_array_equal(obs[name], expected_obs[name])


def test_ids_mean_the_same():
    envs = [make_env(name) for name in (BASIC, f"vizdoom:{BASIC}", "VizdoomBasic")]
    assert len({str(env.observation_space) for env in envs}) == 1
    space = envs[0].observation_space
    assert space["screen"].shape == (72, 128, 3)
    assert space["screen"].dtype == np.uint8
    assert space["gamevariables"].shape == (1,)
    assert envs[0].action_space.n == 4
    gymnasium_env = make_env(f"vizdoom.gymnasium_wrapper:{BASIC}")
    assert gymnasium_env.observation_space["screen"].shape == (240, 320, 3)
    for env in (*envs, gymnasium_env):
        env.close()


@pytest.mark.parametrize(
    ("resolution", "rendered"),
    [
        ((128, 72), "RES_256X144"),
        ((160, 120), "RES_160X120"),
        ((80, 60), "RES_160X120"),
        ((84, 84), "RES_160X120"),
        ((320, 180), "RES_320X180"),
        ((300, 180), "RES_320X180"),
        ((2000, 100), "RES_1920X1080"),
    ],
)
def test_render_resolution_covers_the_requested_one(resolution, rendered):
    assert render_resolution(resolution) == rendered


def test_observations_are_downscaled_frames():
    env = make_env(EnvSpec(BASIC, {"render_mode": "rgb_array"}))
    obs, _ = env.reset(seed=3)
    frame = env.render()
    assert frame.shape == (144, 256, 3)
    means = frame.reshape(72, 2, 128, 2, 3).astype(float).mean((1, 3))
    assert np.abs(obs["screen"] - means).max() <= 0.5
    assert obs["screen"].std() > 10
    np.testing.assert_array_equal(obs["gamevariables"], np.float32([0.5]))  # scaled from 50 rounds
    for _ in range(4):
        obs, *_ = env.step(SHOOT)
    np.testing.assert_allclose(obs["gamevariables"], [0.49], rtol=1e-6)
    assert env.metadata["render_fps"] == 35 / 4
    env.close()


def test_grayscale_and_resolution():
    env = make_env(
        EnvSpec(BASIC, {"resolution": [84, 60], "grayscale": True, "game_variables": False})
    )
    assert env.observation_space.shape == (60, 84, 1)
    obs, _ = env.reset(seed=3)
    assert env.observation_space.contains(obs)
    assert env.render().shape == (120, 160, 3)
    env.close()
    env = make_env(
        EnvSpec(BASIC, {"resolution": [160, 120], "variable_scale": 1, "grayscale": True})
    )
    obs, _ = env.reset(seed=3)
    np.testing.assert_array_equal(obs["screen"].repeat(3, 2), env.render())
    assert obs["gamevariables"] == 50
    env.close()


def test_actions():
    env = make_env("VizdoomDeathmatch-v1")  # three of its buttons are continuous
    assert env.action_space.n == 18
    assert env.observation_space["gamevariables"].shape == (5,)
    env.reset(seed=0)
    env.step(17)
    env.close()
    env = make_env("VizdoomBasic-MultiBinary-v1")
    assert env.action_space == gymnasium.spaces.MultiDiscrete([2, 2, 2])
    env.reset(seed=0)
    env.step(np.array([1, 0, 1]))
    env.close()
    env = make_env(
        EnvSpec(BASIC, {"available_buttons": ["TURN_LEFT", "ATTACK"], "max_buttons_pressed": 2})
    )
    assert env.action_space.n == 4
    env.close()


@pytest.mark.parametrize("frame_skip", [4, 7])
def test_steps_match_vizdooms_environment(frame_skip):
    rng = np.random.default_rng(1)
    options = {"frame_skip": frame_skip, "game_args": "+movebob 0"}
    env = make_env(
        EnvSpec(BASIC, {**options, "resolution": [320, 240], "variable_scale": 1, "doom_skill": 2})
    )
    vizdoom_env = gymnasium.make(BASIC, **options, doom_skill=2).unwrapped
    ends = set()
    for seed in range(6):
        actions = rng.integers(0, 4, 100)
        steps, expected = play(env, seed, actions), play(vizdoom_env, seed, actions)
        *_, (last, reward, terminated, truncated) = steps
        *_, (_, expected_reward, _, has_timed_out) = expected
        assert (reward, truncated, terminated) == (
            expected_reward,
            has_timed_out,
            not has_timed_out,
        )
        assert last["screen"].any()
        ends.add("truncated" if truncated else "terminated")
        assert_same(steps[:-1], expected[:-1])
    assert ends == {"truncated", "terminated"}
    env.close()
    vizdoom_env.close()


def test_an_episode_is_the_same_in_every_process():
    old, new = make_env(BASIC), make_env(BASIC)
    play(old, 1, [LEFT] * 20)  # without a reset, the weapon would swing for another second
    actions = [RIGHT, SHOOT, LEFT, LEFT, 0, RIGHT, SHOOT] * 20
    assert_same(play(old, 5, actions), play(new, 5, actions))
    old.close()
    new.close()


def test_resume_continues_running_episodes():
    options = {"resolution": [32, 18], "frame_skip": 8}
    envs = make_vec(EnvSpec(BASIC, options, seed=5), 2)
    rng = np.random.default_rng(0)
    obs, actions = envs.reset(), []
    for _ in range(60):
        actions.append(rng.integers(0, 4, 2))
        obs = envs.step(actions[-1]).obs.copy()
    assert all(episode > 0 for episode, _ in envs.running_episodes())
    running = [
        RunningEpisode(episode, np.array(actions)[len(actions) - length :, i], obs_hash(obs[i]))
        for i, (episode, length) in enumerate(envs.running_episodes())
    ]
    new_envs = make_vec(EnvSpec(BASIC, options, seed=5), 2)
    new_obs, restarted = new_envs.resume(running)
    assert restarted == []
    np.testing.assert_array_equal(new_obs, obs)
    for _ in range(60):
        action = rng.integers(0, 4, 2)
        step, new_step = envs.step(action), new_envs.step(action)
        np.testing.assert_array_equal(step.next_obs, new_step.next_obs)
        np.testing.assert_array_equal(step.obs, new_step.obs)
        np.testing.assert_array_equal(step.reward, new_step.reward)
    envs.close()
    new_envs.close()


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"frameskip": 4}, "has no 'frameskip'; did you mean 'frame_skip'"),
        ({"xyz": 4}, "has no 'xyz': there are frame_skip, resolution, "),
        ({"seed": 4}, "has no 'seed'"),
        ({"frame_skip": 0}, "`frame_skip` in `env_kwargs` must be a positive integer, got 0"),
        ({"frame_skip": True}, "must be a positive integer, got True"),
        ({"resolution": [84]}, r"must be \[width, height\] in pixels, got \[84\]"),
        ({"resolution": "84x84"}, r"must be \[width, height\] in pixels, got '84x84'"),
        ({"grayscale": 1}, "must be true or false, got 1"),
        ({"variable_scale": "a"}, "must be a number, got 'a'"),
        ({"doom_skill": "hard"}, "ViZDoom rejects 'hard' for `doom_skill`"),
        ({"render_mode": "human"}, "must be 'rgb_array', got 'human'"),
        ({"max_buttons_pressed": -1}, "must be a non-negative integer, got -1"),
    ],
)
def test_bad_options(kwargs, message):
    with pytest.raises(ConfigError, match=f"^{BASIC}: .*{message}"):
        make_env(EnvSpec(BASIC, kwargs))


def test_unknown_ids_and_missing_extras(monkeypatch):
    with pytest.raises(UnknownNameError, match=r"'VizdoomBasik-v1'; did you mean .*Basic-v1"):
        make_env("VizdoomBasik-v1")
    with pytest.raises(ConfigError, match="VizdoomBasicAudio-v1: sound is not observed"):
        make_env("VizdoomBasicAudio-v1")
    monkeypatch.setitem(sys.modules, "cv2", None)
    with pytest.raises(MissingExtraError, match=re.escape(install_command("doom"))):
        make_env(BASIC)
    make_env(EnvSpec(BASIC, {"resolution": [160, 120]})).close()


def test_custom_scenario_file(tmp_path):
    import vizdoom

    scenario = Path(vizdoom.scenarios_path, "health_gathering.wad")
    (tmp_path / "work" / "mine.wad").write_bytes(scenario.read_bytes())
    (tmp_path / "work" / "mine.cfg").write_text(
        "doom_scenario_path = mine.wad\n"
        "available_buttons = { TURN_LEFT TURN_RIGHT }\navailable_game_variables = { HEALTH }\n"
    )
    env = make_env(EnvSpec(BASIC, {"scenario_config_file": "mine.cfg", "episode_timeout": 40}))
    assert env.action_space.n == 3
    steps = play(env, 0, [0] * 100)
    assert len(steps) == 11
    assert steps[-1][2:] == (False, True)
    np.testing.assert_allclose(steps[0][0]["gamevariables"], [0.92], rtol=1e-6)  # acid
    env.close()
    with pytest.raises(ConfigError, match=r"must be a file, but 'nothing\.cfg' is neither"):
        make_env(EnvSpec(BASIC, {"scenario_config_file": "nothing.cfg"}))


@pytest.mark.parametrize(
    ("env_id", "file"), [(BASIC, "doom2.wad"), ("VizdoomDoomE1M1-S3-v0", "doom.wad")]
)
def test_wad_file_in_the_current_directory(env_id, file, tmp_path):
    import vizdoom

    installed = Path(vizdoom.__file__).parent / f"freedoom{'2' if '2' in file else '1'}.wad"
    Path(file).symlink_to(installed)
    env = make_env(env_id)
    env.reset(seed=0)
    (game_dir,) = (tmp_path / "temp").iterdir()
    (pid,) = games_in(game_dir)
    assert str(Path(file).absolute()).encode() in is_running(pid)
    env.close()


# --- processes -----------------------------------------------------------------------------------


def games_in(game_dir):
    """Return the process ids of the games started in a directory, with their shared memory ids."""
    games = {}
    for path in game_dir.glob("[0-9]*"):
        if path.suffix != ".ini":
            match = re.search(r"viz_instance_id (\w+)", path.read_text())
            assert match
            games[int(path.name)] = match[1]
    return games


def is_running(pid):
    return Path(f"/proc/{pid}/cmdline").exists() and Path(f"/proc/{pid}/cmdline").read_bytes()


def memory_of(game_id):
    return list(Path("/dev/shm").glob(f"ViZDoom*{game_id}"))


def test_close_removes_processes_and_files(tmp_path):
    envs = [make_env(BASIC) for _ in range(2)]
    for env in envs:
        env.reset(seed=0)
    (game_dir,) = (tmp_path / "temp").iterdir()
    games = games_in(game_dir)
    assert len(games) == 2
    assert all(is_running(pid) and len(memory_of(name)) == 3 for pid, name in games.items())
    envs[0].close()
    envs[0].close()
    assert sum(bool(is_running(pid)) for pid in games) == 1
    envs[1].step(0)
    envs[1].close()
    assert not game_dir.exists()
    assert not any(is_running(pid) or memory_of(name) for pid, name in games.items())
    assert not any((tmp_path / "work").iterdir())


def test_games_ignore_ctrl_c(tmp_path):
    env = make_env(BASIC)
    env.reset(seed=0)
    (game_dir,) = (tmp_path / "temp").iterdir()
    (pid,) = games_in(game_dir)
    os.kill(pid, signal.SIGINT)
    for _ in range(3):
        env.step(0)
    env.close()


def test_collected_environment_ends_its_game(tmp_path):
    env = make_env(BASIC)
    env.reset(seed=0)
    (game_dir,) = (tmp_path / "temp").iterdir()
    ((pid, name),) = games_in(game_dir).items()
    del env
    gc.collect()
    assert not game_dir.exists()
    assert not is_running(pid)
    assert not memory_of(name)


_PLAY_SCRIPT = f"""
import tempfile
tempfile.tempdir = {{temp_dir!r}}
from hotloop.envs import make_env
envs = [make_env("{BASIC}") for _ in range(2)]
for env in envs:
    env.reset(seed=0)
print("ready", flush=True)
while True:
    for env in envs:
        if any(env.step(0)[2:4]):
            env.reset()
"""


@pytest.mark.parametrize("whole_group", [False, True])
def test_killed_process_leaves_no_games_or_files(tmp_path, whole_group):
    script = _PLAY_SCRIPT.format(temp_dir=str(tmp_path / "temp"))
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == b"ready\n"
    (game_dir,) = (tmp_path / "temp").iterdir()
    games = games_in(game_dir)
    assert len(games) == 2
    assert all(is_running(pid) and len(memory_of(name)) == 3 for pid, name in games.items())
    (os.killpg if whole_group else os.kill)(process.pid, signal.SIGKILL)
    process.wait()
    deadline = time.monotonic() + 20
    while game_dir.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not game_dir.exists()
    assert not any(is_running(pid) or memory_of(name) for pid, name in games.items())
    assert not any((tmp_path / "work").iterdir())


def test_temporary_directory_must_permit_execution(monkeypatch):
    env = make_env(BASIC)
    monkeypatch.setattr("os.access", lambda path, mode: False)
    with pytest.raises(EnvironmentFailure, match="does not permit executing programs: set TMPDIR"):
        env.reset(seed=0)
    env.close()


def test_forked_process_does_not_unregister_its_parents_games(monkeypatch, tmp_path):
    env = make_env(BASIC)
    env.reset(seed=0)
    game_dir = processes._directory
    assert game_dir is not None
    with monkeypatch.context() as forked:
        forked.setattr("os.getpid", lambda: -1)
        processes.unregister_game()
    assert game_dir.num_games == 1
    env.close()
    assert not game_dir.path.exists()


# --- training ------------------------------------------------------------------------------------


SHORT_RUN = {"num_envs": 2, "num_steps": 32, "total_timesteps": 192, "checkpoint_interval": 128}
SHORT_RUN |= {"update_epochs": 1, "num_minibatches": 1, "execution": "eager", "seed": 3}
SHORT_RUN |= {"env_kwargs": {"resolution": [40, 30], "frame_skip": 8}}


def assert_same_weights(result, expected):
    for name, param in result.policy.snapshot.params.items():
        np.testing.assert_array_equal(param, expected.policy.snapshot.params[name])


def test_a_resumed_run_has_the_same_weights(tmp_path):
    def run(name, env_id=BASIC, **kwargs):
        config = ppo.Config(env_id=env_id, run_dir=str(tmp_path / name), **SHORT_RUN)
        return ppo.train(config, **kwargs)

    whole = run("whole", env_id=f"vizdoom:{BASIC}")
    run("parts", on_report=lambda report: report.timesteps >= 128)
    assert_same_weights(whole, run("parts", resume_from=tmp_path / "parts"))


@pytest.mark.slow
def test_worker_processes_train_the_same_weights(tmp_path):
    def run(backend):
        options = {"run_dir": str(tmp_path / backend), "backend": backend, "workers": 2}
        return ppo.train(ppo.Config(env_id=BASIC, **options, **SHORT_RUN))

    assert_same_weights(run("inline"), run("processes"))
