import gc
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from hotloop.base import memory
from hotloop.envs import EnvSpec
from hotloop.errors import (
    ConfigError,
    EnvironmentFailure,
    MissingExtraError,
    SpaceError,
    UnknownNameError,
)
from hotloop.rollouts.processes import pool as pools
from hotloop.rollouts.processes import supervisor
from hotloop.rollouts.processes.pool import WorkerPool
from hotloop.rollouts.processes.supervisor import WorkerSupervisor
from tests import worker_envs
from tests.attempts import attempted
from tests.rollouts.processes.pools import (
    begin,
    make_network,
    make_policy,
    make_spec,
    marked_processes,
    num_descriptors,
    open_pool,
)
from tests.toy_envs import ConstantReward
from tests.worker_envs import count_calls

SCRIPTED = "tests.worker_envs:Scripted"

REPLACED = "ignore:.*similar failures are only counted:RuntimeWarning"

pytestmark = [pytest.mark.usefixtures("mark"), pytest.mark.filterwarnings(REPLACED)]


def make_constant(length=10):
    return ConstantReward(length)


def refuse(error, message, env, num_workers=2, **options):
    """Check that a pool is refused and leaves nothing behind; return the message."""
    gc.collect()  # garbage of earlier tests
    before = num_descriptors()
    with pytest.raises(error, match=message) as caught:
        WorkerPool(make_spec(env, options), num_workers=num_workers, **options)
    assert num_descriptors() == before
    assert marked_processes(os.environ["HOTLOOP_TEST_MARK"]) == []
    return str(caught.value)


# --- starting -------------------------------------------------------------------------------------


def test_a_pool_makes_its_environments_on_opening(tmp_path):
    gc.collect()  # garbage of earlier tests
    before = num_descriptors()
    with open_pool(SCRIPTED, 2, 3, env_kwargs={"directory": str(tmp_path)}) as pool:
        assert [count_calls(tmp_path, "make", worker) for worker in (0, 1)] == [3, 3]
        assert (pool.num_envs, pool.num_workers, pool.envs_per_worker) == (6, 2, 3)
        assert (pool.obs_spec.shape, pool.action_spec.kind) == ((2,), "discrete")
        assert pool.can_replay
    assert num_descriptors() == before


@pytest.mark.usefixtures("cold_start")
def test_workers_import_no_torch():
    with open_pool("CartPole-v1", 1) as pool:
        begin(pool).collect()
        maps = Path(f"/proc/{pool.workers[0].pid}/maps").read_text()
    assert "numpy" in maps
    assert "torch" not in maps


def test_a_factory_is_passed_by_name():
    with open_pool(make_constant, 1, 2, env_kwargs={"length": 3}) as pool:
        (fragment,) = begin(pool, 7).collect()
        assert fragment.truncated.sum(0).tolist() == [2, 2]


@pytest.mark.usefixtures("cold_start")
def test_relative_paths_of_modules_are_found(tmp_path, monkeypatch):
    (tmp_path / "my_own_envs.py").write_text("from tests.toy_envs import ConstantReward as Mine\n")
    monkeypatch.syspath_prepend(tmp_path)
    with open_pool("my_own_envs:Mine", 1) as pool:
        assert pool.obs_spec.shape == (2,)


def test_a_pool_closes_more_than_once_and_without_a_rollout():
    with open_pool("CartPole-v1") as pool:
        timing_dir = Path(pool.supervisor.greeting.timing_dir)
        assert timing_dir.is_dir()
    pool.close()
    assert not timing_dir.exists()


def test_recordings_are_kept_in_the_requested_directory(tmp_path):
    with open_pool("CartPole-v1", timing_dir=tmp_path) as pool:
        begin(pool).collect()
    assert len(list(tmp_path.glob("*worker-0*"))) > 0


# --- bad input ------------------------------------------------------------------------------------


def test_factories_that_workers_cannot_import_are_refused():
    def nested():
        return ConstantReward()

    advice = r"put it at the top level of a module, such as my_envs.py"
    refuse(ConfigError, rf"can't import the factory .*<lambda>: {advice}", lambda: ConstantReward())
    refuse(ConfigError, rf"can't import the factory .*<locals>.*nested: {advice}", nested)
    refuse(ConfigError, rf"can't import the factory .*partial.*: {advice}", partial(make_constant))


def test_a_factory_of_the_main_script_is_refused():
    code = (
        "from tests.toy_envs import ConstantReward\n"
        "from hotloop.envs import EnvSpec\n"
        "from hotloop.rollouts.processes.pool import WorkerPool\n"
        "def make(): return ConstantReward()\n"
        "WorkerPool(EnvSpec(make), num_workers=1)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200)
    assert run.returncode == 1
    message = "the factory make is defined in the main script or notebook, which workers don't"
    assert message in run.stderr


def test_an_environment_that_cannot_be_made_keeps_its_traceback_as_the_cause():
    """The message is one sentence, and `--debug` shows the traceback."""
    with pytest.raises(EnvironmentFailure, match=r"^worker 0: .*no licence for") as caught:
        WorkerPool(EnvSpec(worker_envs.CannotBeMade), num_workers=1)
    assert "\n" not in str(caught.value)
    text = str(caught.value.__cause__)
    assert "in _open_the_simulator\n" in text
    assert 'raise OSError("no licence for the simulator")' in text


def test_unknown_names_are_refused():
    message = refuse(UnknownNameError, "^worker 0: there is no environment", "CartPool-v1")
    assert "did you mean 'CartPole-v1'" in message
    assert "a worker does not run your script: register the environment in a module" in message
    refuse(UnknownNameError, "there is no module 'tests.no_such'", "tests.no_such:Env")
    refuse(ConfigError, "with env_kwargs .*wrong", "CartPole-v1", env_kwargs={"wrong": 1})
    missing = "worker 0: .*needs a library that is not installed"
    refuse(MissingExtraError, missing, worker_envs.NeedsALibrary)
    refuse(SpaceError, "Text", "tests.toy_envs:Text")


def test_vector_environments_of_another_size():
    options = {"env_kwargs": {"num_envs": 3}, "envs_per_worker": 2}
    refuse(
        ConfigError,
        "`num_envs` is 2, but the factory makes 3",
        worker_envs.vector_of_signs,
        **options,
    )


@pytest.mark.parametrize("name", ["num_workers", "envs_per_worker"])
def test_counts_must_be_at_least_1(name):
    options = {"num_workers": 1, name: 0}
    refuse(ConfigError, f"`{name}` must be at least 1, got 0", "CartPole-v1", **options)


@attempted
def test_making_environments_has_a_time_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(WorkerSupervisor, "start_timeout_s", 1.0)  # else a minute
    faults = {"1": {f"make {k}": "hang" for k in range(1, 9)}}
    message = (
        "worker 1 must make its environments in one of 3 attempts, but all failed, the last "
        r"because it made no progress for 1 s while it made its environments \(`step_timeout_s`\); "
    )
    kwargs = {"directory": str(tmp_path), "faults": faults}
    refuse(EnvironmentFailure, message, SCRIPTED, env_kwargs=kwargs, step_timeout_s=1.0)
    assert count_calls(tmp_path, "make", 1) == 3


@pytest.mark.usefixtures("cold_start")
@pytest.mark.parametrize(
    ("fault", "message", "num_starts"),
    [
        ("kill", "worker 1 must .* attempts.*its process ended with SIGKILL; out of memory", 3),
        ("exit", "worker 1: its process ended with exit code 3", 1),
    ],
)
def test_a_worker_that_dies_while_it_starts(tmp_path, fault, message, num_starts):
    faults = {"1": {f"make {k}": fault for k in range(1, 9)}}
    kwargs = {"directory": str(tmp_path), "faults": faults}
    refuse(EnvironmentFailure, message, SCRIPTED, env_kwargs=kwargs)
    assert count_calls(tmp_path, "make", 1) == num_starts


@pytest.mark.usefixtures("cold_start")
def test_more_workers_than_memory_allows(monkeypatch):
    monkeypatch.setattr(supervisor, "available_memory", lambda: 50 * 2**20)
    message = r"100 workers of \d+ MiB each don't fit into the 50 MiB of free memory: use at"
    refuse(ConfigError, message, "CartPole-v1", num_workers=100)


def test_more_workers_than_open_files_allow():
    code = (
        "import resource\n"
        "from hotloop.envs import EnvSpec\n"
        "from hotloop.rollouts.processes.pool import WorkerPool\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (24, 24))\n"
        "WorkerPool(EnvSpec('CartPole-v1'), num_workers=20)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200)
    assert run.returncode == 1
    last = run.stderr.strip().splitlines()[-1]
    assert "of 20 can't be started" in last
    assert "use fewer workers, or raise the limits on processes and open files" in last


@pytest.mark.parametrize("is_full", [False, True])
def test_fragments_larger_than_memory_are_refused(monkeypatch, is_full):
    def refuse_room(fd, offset, size):
        raise OSError(28, "No space left on device")

    gc.collect()  # garbage of earlier tests
    before = num_descriptors()
    with open_pool("CartPole-v1", 1) as pool:
        policy = make_policy(make_network(pool))
        plan = pools.CollectionOptions(num_steps=8, seed=0)
        if is_full:
            monkeypatch.setattr(os, "posix_fallocate", refuse_room)
        else:
            monkeypatch.setattr("hotloop.base.memory._SMALL_BYTES", 0)
            monkeypatch.setattr(memory, "available_memory", lambda: 1000)
        with pytest.raises(ConfigError, match="use fewer workers or environments, or shorter"):
            pool.rollout(policy, plan)
        monkeypatch.undo()
    assert num_descriptors() == before
