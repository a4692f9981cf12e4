"""Ray actors: the same runs as with processes, accounting of transitions, failures."""

import contextlib
import dataclasses
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from hotloop.algorithms import ppo, sac
from hotloop.errors import ConfigError, EnvironmentFailure
from hotloop.runs import RunDirectory
from tests import toy_envs
from tests.toy_noise import HeldNoise
from tests.training.test_callback_envs import Curriculum

pytestmark = pytest.mark.usefixtures("cluster")

# Identifies the processes of this test run: child processes inherit it.
MARK = "HOTLOOP_TEST_PROCESS"
os.environ[MARK] = str(os.getpid())

SMALL = {
    "num_steps": 16,
    "workers": 2,
    "envs_per_worker": 2,
    "num_minibatches": 2,
    "update_epochs": 2,
    "hidden_sizes": (16,),
    "execution": "eager",
    "total_timesteps": 64 * 4,
}


def train(path, algorithm=ppo, env=None, *, on_report=None, resume_from=None, **options):
    config = algorithm.Config(**{**SMALL, **options}, run_dir=str(path))
    return algorithm.train(config, env=env, on_report=on_report, resume_from=resume_from)


def train_off_policy(path, **options):
    # Actors import a user's exploration by its name.
    noise = HeldNoise(std=1.0, random_steps=32)
    algorithm = dataclasses.replace(sac.algorithm, exploration=lambda config: noise)
    config = sac.Config(
        env_id="tests.toy_envs:Wanders",
        run_dir=str(path),
        workers=2,
        num_envs=2,
        learning_starts=64,
        batch_size=32,
        buffer_size=1000,
        hidden_sizes=(16,),
        execution="eager",
        total_timesteps=400,
        **options,
    )
    return algorithm.train(config)


def lines_of(path):
    return RunDirectory.open(path).metrics()


def assert_same(a, b):
    first, second = (
        load_file(path / "checkpoints" / "last" / "learner.safetensors") for path in (a, b)
    )
    assert first.keys() == second.keys()
    for name, array in first.items():
        np.testing.assert_array_equal(array, second[name], err_msg=name)


def assert_adds_up(accounting):
    dropped = sum(accounting["dropped"].values())
    assert accounting["collected"] == accounting["trained"] + dropped + accounting["in_flight"]


# --- the same runs -------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"normalize_obs": True}, {"memory": "gru:4"}])
def test_ray_learns_the_same_as_processes_and_inline(tmp_path, options):
    for backend in ("ray", "processes", "inline"):
        result = train(tmp_path / backend, backend=backend, **options)
        assert_same(tmp_path / backend, tmp_path / "ray")
    assert result.timesteps == 64 * 4


def test_actors_use_new_observation_scales_without_an_update(tmp_path):
    """An off-policy round may publish the same weights with a new observation scale."""
    for backend in ("ray", "processes"):
        options = {"normalize_obs": True, "update_to_data": 0.125}
        train_off_policy(tmp_path / backend, backend=backend, **options)
    assert_same(tmp_path / "ray", tmp_path / "processes")


def test_a_resumed_run_ends_as_one_that_was_not_interrupted(tmp_path):
    train(tmp_path / "whole", backend="ray")
    train(tmp_path / "cut", backend="ray", on_report=lambda report: report.timesteps >= 128)
    train(tmp_path / "cut", backend="ray", resume_from=tmp_path / "cut")
    assert_same(tmp_path / "whole", tmp_path / "cut")


# --- schedules without a barrier -----------------------------------------------------------------


def test_asynchronous_replay_training_adds_up(tmp_path):
    options = {"backend": "ray", "schedule": "async", "update_to_data": 0.1}
    accounting = train_off_policy(tmp_path / "run", **options).accounting
    assert accounting["trained"] >= 400
    assert_adds_up(accounting)


# --- failures ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (toy_envs.Misbehaves, "no step of the last fragments succeeded: worker .*diverged"),
        (toy_envs.NeverResets, r"failed 101 times, but .*`reset` raised .*no reset"),
    ],
)
def test_an_environment_that_always_fails_is_the_cause(tmp_path, env, message):
    kwargs = {"at": 1} if env is toy_envs.Misbehaves else {}
    with pytest.raises(EnvironmentFailure, match=message):
        train(tmp_path / "run", env=env, env_kwargs=kwargs, backend="ray")


# --- bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": 0}, "`backend` 'ray' needs a number of `workers`, got 0: set it"),
        ({"worker_resources": {"num_cpus": -1}}, "`worker_resources` must be a dict of numbers"),
        (
            {"backend": "processes", "ray_address": "a:1"},
            "`ray_address` 'a:1' is for `backend` 'ray'",
        ),
    ],
)
def test_conflicting_options_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        ppo.Config(**{"backend": "ray", "workers": 2, "num_envs": 2, **options})


def test_resources_that_no_node_has_are_named(tmp_path):
    with pytest.raises(ConfigError, match=r"`num_gpus` 1 each need 2, and the cluster has 0: use"):
        train(tmp_path / "run", backend="ray", worker_resources={"num_gpus": 1})


def test_an_address_without_ray_is_reported_at_once(tmp_path):
    start = time.monotonic()
    command = ["train", "ppo", "--backend", "ray", "--workers", "2", "--ray-address"]
    command += ["127.0.0.1:1", "--run-dir", str(tmp_path / "run")]
    done = subprocess.run(
        [sys.executable, "-m", "hotloop", *command], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "no Ray answers at `ray_address` 127.0.0.1:1" in done.stderr
    assert "ray start --head" in done.stderr
    assert time.monotonic() - start < 60.0


def test_a_run_starts_and_stops_its_own_ray(tmp_path):
    command = [sys.executable, "-m", "hotloop", "train", "ppo", "--backend", "ray", "--workers"]
    command += ["2", "--total-timesteps", "2048", "--execution", "eager", "--run-dir"]
    before = pids_of("-x", "raylet")
    assert subprocess.run([*command, str(tmp_path / "run")], capture_output=True).returncode == 0
    assert pids_of("-x", "raylet") == before


def pids_of(*pattern):
    """Return the IDs of processes that `pgrep` finds and this process has started."""
    output = subprocess.run(["pgrep", *pattern], capture_output=True, text=True).stdout
    return [int(pid) for pid in output.split() if _is_marked(int(pid))]


def _is_marked(pid):
    with contextlib.suppress(OSError):
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        return f"{MARK}={os.environ[MARK]}".encode() in environment
    return False


def test_callbacks_reach_the_environments_of_all_actors(tmp_path):
    curriculum = Curriculum()
    config = ppo.Config(
        **{**SMALL, "num_steps": 8, "total_timesteps": 3 * 32},
        env_id="tests.toy_envs:Levels",
        run_dir=str(tmp_path / "run"),
        backend="ray",
    )
    ppo.train(config, callbacks=[curriculum], progress=False)
    assert curriculum.levels == [(0, 1, 2, 3), (1, 2, 3, 4), (2, 3, 4, 4)]
    assert curriculum.seen == [{0, 1, 2, 3}, {0, 1, 2, 3, 4}, {1, 2, 3, 4}]
