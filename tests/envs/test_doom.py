"""ViZDoom's scenarios: what is seen, how episodes end and repeat themselves, what is left."""

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
from hotloop.envs import make_env, make_vec
from hotloop.envs.doom import processes
from hotloop.envs.doom.scenario import drawn_resolution
from hotloop.envs.protocol import obs_hash
from hotloop.errors import ConfigError, EnvironmentFailure, MissingExtraError, UnknownNameError
from hotloop.types import RunningEpisode

BASIC = "VizdoomBasic-v1"
pytestmark = pytest.mark.outside

SHOOT, RIGHT, LEFT = 1, 2, 3  # 0: nothing


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    """Nothing may be written into the current directory, nor be left in that of temporary files."""
    rooms = tmp_path / "rooms"
    here = tmp_path / "here"
    rooms.mkdir()
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setattr("tempfile.tempdir", str(rooms))
    monkeypatch.setattr(processes, "_room", None)
    yield
    assert not any(rooms.iterdir())


def play(env, seed, actions):
    """All observations, rewards and ends of an episode, as far as it goes."""
    obs, _ = env.reset(seed=seed)
    steps = [(obs, 0.0, False, False)]
    for action in actions:
        *step, _ = env.step(action)
        steps.append(tuple(step))
        if step[2] or step[3]:
            break
    return steps


def assert_same(steps, others):
    assert len(steps) == len(others)
    for (obs, *rest), (other, *others_rest) in zip(steps, others, strict=True):
        assert rest == others_rest
        for name in obs:
            np.testing.assert_array_equal(obs[name], other[name])


def test_ids_mean_the_same():
    envs = [make_env(name) for name in (BASIC, f"vizdoom:{BASIC}", "VizdoomBasic")]
    assert len({str(env.observation_space) for env in envs}) == 1
    space = envs[0].observation_space
    assert space["screen"].shape == (72, 128, 3)
    assert space["screen"].dtype == np.uint8
    assert space["gamevariables"].shape == (1,)
    assert envs[0].action_space.n == 4
    bare = make_env(f"vizdoom.gymnasium_wrapper:{BASIC}")
    assert bare.observation_space["screen"].shape == (240, 320, 3)
    for env in (*envs, bare):
        env.close()


@pytest.mark.parametrize(
    ("resolution", "drawn"),
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
def test_what_is_drawn(resolution, drawn):
    assert drawn_resolution(resolution) == drawn


def test_pictures_are_means_of_what_is_drawn():
    env = make_env(BASIC, {"render_mode": "rgb_array"})
    obs, _ = env.reset(seed=3)
    frame = env.render()
    assert frame.shape == (144, 256, 3)
    means = frame.reshape(72, 2, 128, 2, 3).astype(float).mean((1, 3))
    assert np.abs(obs["screen"] - means).max() <= 0.5
    assert obs["screen"].std() > 10
    np.testing.assert_array_equal(obs["gamevariables"], np.float32([0.5]))  # of 50 rounds
    for _ in range(4):
        obs, *_ = env.step(SHOOT)
    np.testing.assert_allclose(obs["gamevariables"], [0.49], rtol=1e-6)
    assert env.metadata["render_fps"] == 35 / 4
    env.close()


def test_views():
    env = make_env(BASIC, {"resolution": [84, 60], "grayscale": True, "game_variables": False})
    assert env.observation_space.shape == (60, 84, 1)
    obs, _ = env.reset(seed=3)
    assert env.observation_space.contains(obs)
    assert env.render().shape == (120, 160, 3)
    env.close()
    env = make_env(BASIC, {"resolution": [160, 120], "variable_scale": 1, "grayscale": True})
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
    env = make_env(BASIC, {"available_buttons": ["TURN_LEFT", "ATTACK"], "max_buttons_pressed": 2})
    assert env.action_space.n == 4
    env.close()


@pytest.mark.parametrize("frame_skip", [4, 7])
def test_play_as_vizdoom_has_it(frame_skip):
    rng = np.random.default_rng(1)
    options = {"frame_skip": frame_skip, "game_args": "+movebob 0"}
    ours = make_env(
        BASIC, {**options, "resolution": [320, 240], "variable_scale": 1, "doom_skill": 2}
    )
    theirs = gymnasium.make(BASIC, **options, doom_skill=2).unwrapped
    had_end = set()
    for seed in range(6):
        actions = rng.integers(0, 4, 100)
        steps, expected = play(ours, seed, actions), play(theirs, seed, actions)
        *_, (last, reward, terminated, truncated) = steps
        *_, (_, their_reward, _, has_timed_out) = expected
        assert (reward, truncated, terminated) == (their_reward, has_timed_out, not has_timed_out)
        assert last["screen"].any()
        had_end.add("truncated" if truncated else "terminated")
        assert_same(steps[:-1], expected[:-1])
    assert had_end == {"truncated", "terminated"}
    ours.close()
    theirs.close()


def test_an_episode_is_the_same_in_every_process():
    old, new = make_env(BASIC), make_env(BASIC)
    play(old, 1, [LEFT] * 20)  # the weapon would swing for another second
    actions = [RIGHT, SHOOT, LEFT, LEFT, 0, RIGHT, SHOOT] * 20
    assert_same(play(old, 5, actions), play(new, 5, actions))
    old.close()
    new.close()


def test_episodes_go_on_where_others_stood():
    options = {"resolution": [32, 18], "frame_skip": 8}
    envs = make_vec(BASIC, 2, seed=5, env_kwargs=options)
    rng = np.random.default_rng(0)
    obs, played = envs.reset(), []
    for _ in range(60):
        played.append(rng.integers(0, 4, 2))
        obs = envs.step(played[-1]).obs.copy()
    assert all(episode > 0 for episode, _ in envs.running())
    running = [
        RunningEpisode(episode, np.array(played)[len(played) - length :, i], obs_hash(obs[i]))
        for i, (episode, length) in enumerate(envs.running())
    ]
    fresh = make_vec(BASIC, 2, seed=5, env_kwargs=options)
    resumed, restarted = fresh.resume(running)
    assert restarted == []
    np.testing.assert_array_equal(resumed, obs)
    for _ in range(60):
        action = rng.integers(0, 4, 2)
        one, other = envs.step(action), fresh.step(action)
        np.testing.assert_array_equal(one.next_obs, other.next_obs)
        np.testing.assert_array_equal(one.obs, other.obs)
        np.testing.assert_array_equal(one.reward, other.reward)
    envs.close()
    fresh.close()


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"frameskip": 4}, "has no 'frameskip'; did you mean 'frame_skip'"),
        ({"xyz": 4}, "has no 'xyz': there are frame_skip, resolution, "),
        ({"seed": 4}, "has no 'seed'"),
        ({"frame_skip": 0}, "`frame_skip` in `env_kwargs` must be a whole number from 1 on, got 0"),
        ({"frame_skip": True}, "must be a whole number from 1 on, got True"),
        ({"resolution": [84]}, r"must be \[width, height\] in pixels, got \[84\]"),
        ({"resolution": "84x84"}, r"must be \[width, height\] in pixels, got '84x84'"),
        ({"grayscale": 1}, "must be true or false, got 1"),
        ({"variable_scale": "a"}, "must be a number, got 'a'"),
        ({"doom_skill": "hard"}, "ViZDoom does not take 'hard' for `doom_skill`"),
        ({"render_mode": "human"}, "must be 'rgb_array', got 'human'"),
        ({"max_buttons_pressed": -1}, "must be a whole number from 0 on, got -1"),
    ],
)
def test_bad_options(kwargs, message):
    with pytest.raises(ConfigError, match=f"^{BASIC}: .*{message}"):
        make_env(BASIC, kwargs)


def test_names_that_lead_nowhere(monkeypatch):
    with pytest.raises(UnknownNameError, match=r"'VizdoomBasik-v1'; did you mean .*Basic-v1"):
        make_env("VizdoomBasik-v1")
    with pytest.raises(ConfigError, match="VizdoomBasicAudio-v1: sound is not observed"):
        make_env("VizdoomBasicAudio-v1")
    monkeypatch.setitem(sys.modules, "cv2", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'hotloop\[doom\]'"):
        make_env(BASIC)
    make_env(BASIC, {"resolution": [160, 120]}).close()


def test_a_game_of_ones_own(tmp_path):
    import vizdoom

    scenario = Path(vizdoom.scenarios_path, "health_gathering.wad")
    (tmp_path / "here" / "mine.wad").write_bytes(scenario.read_bytes())
    (tmp_path / "here" / "mine.cfg").write_text(
        "doom_scenario_path = mine.wad\n"
        "available_buttons = { TURN_LEFT TURN_RIGHT }\navailable_game_variables = { HEALTH }\n"
    )
    env = make_env(BASIC, {"scenario_config_file": "mine.cfg", "episode_timeout": 40})
    assert env.action_space.n == 3
    steps = play(env, 0, [0] * 100)
    assert len(steps) == 11
    assert steps[-1][2:] == (False, True)
    np.testing.assert_allclose(steps[0][0]["gamevariables"], [0.92], rtol=1e-6)  # acid
    env.close()
    with pytest.raises(ConfigError, match=r"there is no 'nothing\.cfg' here"):
        make_env(BASIC, {"scenario_config_file": "nothing.cfg"})


@pytest.mark.parametrize(
    ("env_id", "file"), [(BASIC, "doom2.wad"), ("VizdoomDoomE1M1-S3-v0", "doom.wad")]
)
def test_games_in_the_current_directory(env_id, file, tmp_path):
    import vizdoom

    installed = Path(vizdoom.__file__).parent / f"freedoom{'2' if '2' in file else '1'}.wad"
    Path(file).symlink_to(installed)
    env = make_env(env_id)
    env.reset(seed=0)
    (room,) = (tmp_path / "rooms").iterdir()
    (pid,) = games_in(room)
    assert str(Path(file).absolute()).encode() in is_running(pid)
    env.close()


# --- processes -----------------------------------------------------------------------------------


def games_in(room):
    """The games that were started in a directory: their numbers, and the names of their memory."""
    found = {}
    for path in room.glob("[0-9]*"):
        if path.suffix != ".ini":
            match = re.search(r"viz_instance_id (\w+)", path.read_text())
            assert match
            found[int(path.name)] = match[1]
    return found


def is_running(pid):
    return Path(f"/proc/{pid}/cmdline").exists() and Path(f"/proc/{pid}/cmdline").read_bytes()


def memory_of(game_id):
    return list(Path("/dev/shm").glob(f"ViZDoom*{game_id}"))


def test_nothing_is_left_when_all_are_closed(tmp_path):
    envs = [make_env(BASIC) for _ in range(2)]
    for env in envs:
        env.reset(seed=0)
    (room,) = (tmp_path / "rooms").iterdir()
    games = games_in(room)
    assert len(games) == 2
    assert all(is_running(pid) and len(memory_of(name)) == 3 for pid, name in games.items())
    envs[0].close()
    envs[0].close()
    assert sum(bool(is_running(pid)) for pid in games) == 1
    envs[1].step(0)
    envs[1].close()
    assert not room.exists()
    assert not any(is_running(pid) or memory_of(name) for pid, name in games.items())
    assert not any((tmp_path / "here").iterdir())


def test_ctrl_c_is_not_for_games(tmp_path):
    env = make_env(BASIC)
    env.reset(seed=0)
    (room,) = (tmp_path / "rooms").iterdir()
    (pid,) = games_in(room)
    os.kill(pid, signal.SIGINT)
    for _ in range(3):
        env.step(0)
    env.close()


def test_an_environment_that_is_forgotten_ends_its_game(tmp_path):
    env = make_env(BASIC)
    env.reset(seed=0)
    (room,) = (tmp_path / "rooms").iterdir()
    ((pid, name),) = games_in(room).items()
    del env
    gc.collect()
    assert not room.exists()
    assert not is_running(pid)
    assert not memory_of(name)


_PLAYER = f"""
import tempfile
tempfile.tempdir = {{rooms!r}}
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
def test_nothing_is_left_of_a_player_who_is_killed(tmp_path, whole_group):
    program = _PLAYER.format(rooms=str(tmp_path / "rooms"))
    player = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, start_new_session=True
    )
    assert player.stdout is not None
    with player.stdout:
        assert player.stdout.readline() == b"ready\n"
    (room,) = (tmp_path / "rooms").iterdir()
    games = games_in(room)
    assert len(games) == 2
    assert all(is_running(pid) and len(memory_of(name)) == 3 for pid, name in games.items())
    (os.killpg if whole_group else os.kill)(player.pid, signal.SIGKILL)
    player.wait()
    until = time.monotonic() + 20
    while room.exists() and time.monotonic() < until:
        time.sleep(0.01)
    assert not room.exists()
    assert not any(is_running(pid) or memory_of(name) for pid, name in games.items())
    assert not any((tmp_path / "here").iterdir())


def test_a_directory_where_nothing_may_be_executed(monkeypatch):
    env = make_env(BASIC)
    monkeypatch.setattr("os.access", lambda path, mode: False)
    with pytest.raises(EnvironmentFailure, match="may not be executed: set TMPDIR"):
        env.reset(seed=0)
    env.close()


def test_a_player_who_forks_has_games_of_its_own(monkeypatch, tmp_path):
    env = make_env(BASIC)
    env.reset(seed=0)
    room = processes._room
    assert room is not None
    with monkeypatch.context() as forked:
        forked.setattr("os.getpid", lambda: -1)
        processes.leave()
    assert room.num_games == 1
    env.close()
    assert not room.path.exists()


# --- training ------------------------------------------------------------------------------------


SHORT = {"num_envs": 2, "num_steps": 32, "total_timesteps": 192, "checkpoint_interval": 128}
SHORT |= {"update_epochs": 1, "num_minibatches": 1, "execution": "eager", "seed": 3}
SHORT |= {"env_kwargs": {"resolution": [40, 30], "frame_skip": 8}}


def assert_same_weights(one, other):
    for name, x in one.policy.snapshot.params.items():
        np.testing.assert_array_equal(x, other.policy.snapshot.params[name])


def test_a_resumed_run_has_the_same_weights(tmp_path):
    def run(name, env_id=BASIC, **given):
        config = ppo.Config(env_id=env_id, run_dir=str(tmp_path / name), **SHORT)
        return ppo.train(config, **given)

    whole = run("whole", env_id=f"vizdoom:{BASIC}")
    run("parts", on_report=lambda report: report.timesteps >= 128)
    assert_same_weights(whole, run("parts", resume_from=tmp_path / "parts"))


@pytest.mark.slow
def test_workers_collect_what_one_process_does(tmp_path):
    def run(backend):
        where = {"run_dir": str(tmp_path / backend), "backend": backend, "workers": 2}
        return ppo.train(ppo.Config(env_id=BASIC, **where, **SHORT))

    assert_same_weights(run("inline"), run("processes"))
