"""Ray actors: the same runs as with processes, accounting of transitions, failures."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from hotloop.algorithms import appo, ppo, sac
from hotloop.errors import ConfigError, EnvironmentFailure, SpaceError
from hotloop.runs import RunDirectory
from tests import toy_envs
from tests.uneven_envs import Dawdling
from tests.worker_envs import DependsOnWorker

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
    config = sac.Config(
        env_id="Pendulum-v1",
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
    return sac.train(config)


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
        options = {"fragment_steps": 2, "normalize_obs": True, "update_to_data": 0.125}
        train_off_policy(tmp_path / backend, backend=backend, **options)
    assert_same(tmp_path / "ray", tmp_path / "processes")


def test_a_lag_of_one_is_the_same_as_with_processes(tmp_path):
    for backend in ("ray", "processes"):
        train(tmp_path / backend, appo, backend=backend, schedule="lag:1")
    assert_same(tmp_path / "ray", tmp_path / "processes")
    assert [line["age_max"] for line in lines_of(tmp_path / "ray")] == [0.0, 1.0, 1.0, 1.0]


def test_a_resumed_run_ends_as_one_that_was_not_interrupted(tmp_path):
    train(tmp_path / "whole", backend="ray")
    train(tmp_path / "cut", backend="ray", on_report=lambda report: report.timesteps >= 128)
    train(tmp_path / "cut", backend="ray", resume_from=tmp_path / "cut")
    assert_same(tmp_path / "whole", tmp_path / "cut")


# --- schedules without a barrier -----------------------------------------------------------------


@pytest.mark.parametrize(("schedule", "bound"), [("async", 2), ("async", 4), ("variable", 4)])
def test_every_transition_is_counted_and_none_is_too_old(tmp_path, schedule, bound):
    result = train(
        tmp_path / "run",
        appo,
        Dawdling,
        backend="ray",
        schedule=schedule,
        max_policy_age=bound,
        env_kwargs={"mean_s": [0.0001, 0.002]},
        total_timesteps=64 * 12,
    )
    accounting, lines = result.accounting, lines_of(tmp_path / "run")
    assert accounting["trained"] == lines[-1]["timesteps"] == 64 * 12
    assert_adds_up(accounting)
    assert max(line["age_max"] for line in lines) <= bound
    assert [line["timesteps"] for line in lines] == [64 * k for k in range(1, 13)]


def test_asynchronous_replay_training_adds_up(tmp_path):
    options = {"backend": "ray", "schedule": "async", "update_to_data": 0.1}
    accounting = train_off_policy(tmp_path / "run", **options).accounting
    assert accounting["trained"] >= 400
    assert_adds_up(accounting)


# --- failures ------------------------------------------------------------------------------------


def test_an_actor_that_is_killed_is_replaced(tmp_path):
    killed = []

    def kill_one(report):
        if len(killed) < 2 and report.timesteps >= 128 * (1 + len(killed)):
            pid = next(pid for pid in pids_of("-f", "ray::Actor") if pid not in killed)
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)

    result = train(tmp_path / "run", backend="ray", total_timesteps=64 * 10, on_report=kill_one)
    accounting = result.accounting
    assert sum(worker["restarts"] for worker in accounting["workers"]) == len(killed) == 2
    assert accounting["dropped"]["worker died"] == 2 * 16 * 2
    assert accounting["trained"] == 64 * 10
    assert_adds_up(accounting)


def test_environments_that_fail_too_often_end_the_run(tmp_path):
    with (
        pytest.raises(EnvironmentFailure, match=r"failed 21 times, but .*diverged"),
        pytest.warns(RuntimeWarning, match=r"diverged.*: replaced; similar failures") as caught,
    ):
        train(
            tmp_path / "run",
            env=toy_envs.Misbehaves,
            backend="ray",
            max_failures=20,
            total_timesteps=64 * 50,
        )
    assert sum("diverged" in str(warning.message) for warning in caught) == 1


def test_actors_whose_spaces_differ_are_refused(tmp_path):
    kwargs = {"directory": str(tmp_path)}
    message = "all workers must have the same observation space, but worker 0 has .* and worker 1"
    with pytest.raises(SpaceError, match=message):
        train(tmp_path / "run", env=DependsOnWorker, env_kwargs=kwargs, backend="ray")


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
        ({"backend": "processes", "ray_address": "a:1"}, "`ray_address` is for `backend` 'ray'"),
    ],
)
def test_conflicting_options_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        ppo.Config(**{"backend": "ray", "workers": 2, "num_envs": 2, **options})


def test_resources_that_no_node_has_are_named(tmp_path):
    with pytest.raises(ConfigError, match=r"`num_gpus` 1 each need 2, and the cluster has 0: use"):
        train(tmp_path / "run", backend="ray", worker_resources={"num_gpus": 1})


def test_a_factory_that_actors_cannot_import_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"a worker can't import the factory .*: put it at the"):
        train(tmp_path / "run", env=lambda: None, backend="ray")


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
