"""Real failures of the inference process, of workers and of the learner."""

import os
import random
import signal
import subprocess
import sys
import time
from functools import partial

import pytest

from hotloop.errors import CheckpointError, ConfigError, EnvironmentFailure, NonFiniteError
from hotloop.policies import PolicySnapshot, actor_critic
from hotloop.rollouts.processes.supervisor import WorkerSupervisor
from tests.attempts import attempted
from tests.rollouts.processes.pools import (
    MARK,
    SCRIPTED,
    assert_adds_up,
    begin,
    kill,
    marked_processes,
    num_descriptors,
    open_pool,
    play,
    snapshot_of,
    wait_until,
)
from tests.rollouts.processes.test_failures import run_learner
from tests.worker_envs import count_calls

REPLACED = "ignore:.*similar failures are only counted:RuntimeWarning"

pytestmark = [pytest.mark.usefixtures("mark"), pytest.mark.filterwarnings(REPLACED)]
central = partial(play, inference="central")


# --- a worker -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("num_envs", "step"), [(1, 13), (2, 25), (2, 26)])
def test_a_worker_that_dies_in_a_half_of_a_row_is_replaced(tmp_path, num_envs, step):
    # In either half of row 12, which is lost.
    result = central(tmp_path, 4, num_envs, {"1": {f"step {step}": "kill"}})
    account = result.account
    assert account.trained == 64 * num_envs
    assert account.dropped == {"worker died": num_envs}
    assert account.collected == 65 * num_envs
    # The worker died in the first half, so the second half was not stepped.
    assert count_calls(tmp_path, "step") == account.collected - (step == 25)
    assert [worker.restarts for worker in account.workers] == [0, 1]


@pytest.mark.parametrize("schedule", ["variable", "async"])
def test_other_schedules_survive_dying_workers(tmp_path, schedule):
    faults = {
        "0": {"step 13": "raise", "step 21": "kill"},
        "1": {"step 2": "kill", "step 9": "raise", "step 10": "raise", "reset 5": "raise"},
    }
    result = central(tmp_path, 12, 1, faults, num_steps=5, schedule=schedule)
    assert result.account.collected == count_calls(tmp_path, "step")
    assert set(result.account.dropped) <= {"environment failed", "worker died", "run ended"}


# --- the inference process ------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", ["barrier", "variable"])
def test_an_inference_process_that_is_killed_is_replaced(tmp_path, schedule):
    def hook(k, pool):
        if k in (0, 2):
            time.sleep(0.002 * k)
            kill(pool.supervisor.inference)

    # The process dies between two steps.
    result = central(tmp_path, 5, 2, {}, hook=hook, schedule=schedule, overlap=True)
    account = result.account
    assert account.trained == 160
    # No step was lost: unanswered requests are repeated.
    assert set(account.dropped) <= {"run ended"}
    assert account.collected == count_calls(tmp_path, "step")
    assert [worker.restarts for worker in account.workers] == [0, 0]
    (warning,) = result.warnings
    assert warning.startswith("the inference process: its process ended with SIGKILL")


@attempted
def test_an_inference_process_that_is_stopped_is_replaced_and_its_workers_are_not(tmp_path):
    with open_pool(
        *(SCRIPTED, 2, 1),
        env_kwargs={"directory": str(tmp_path)},
        inference="central",
        step_timeout_s=0.6,
    ) as pool:
        rollout = begin(pool)
        rollout.collect()
        stopped = pool.supervisor.inference
        kill(stopped, signal.SIGSTOP)
        with pytest.warns(RuntimeWarning, match=r"no progress for 0\.6 s while it acted.*a signal"):
            rollout.collect()
        assert pool.supervisor.inference is not stopped
        account = rollout.accounting()
        assert (account.collected, account.trained, account.dropped) == (32, 32, {})
        assert [worker.restarts for worker in account.workers] == [0, 0]


@attempted
def test_an_idle_inference_process_is_not_replaced(tmp_path):
    kwargs = {"directory": str(tmp_path), "faults": {"1": {"step 9": "slow"}}}
    with open_pool(
        SCRIPTED, env_kwargs=kwargs, inference="central", step_timeout_s=0.5, max_failures=1
    ) as pool:
        rollout = begin(pool)
        rollout.collect()
        first = pool.supervisor.inference
        rollout.collect()  # worker 1 is replaced; no requests in the meantime
        assert pool.supervisor.inference is first
        assert rollout.accounting().dropped == {"worker died": 1}


def test_an_inference_process_that_dies_before_the_run_begins(tmp_path):
    with open_pool(SCRIPTED, env_kwargs={"directory": str(tmp_path)}, inference="central") as pool:
        kill(pool.supervisor.inference)
        wait_until(lambda: pool.supervisor.failures.restarts[-1] or pool.supervisor.poll(0.02))
        rollout = begin(pool)
        rollout.collect()
        assert rollout.accounting().trained == 16


def test_an_inference_process_that_dies_too_often_ends_the_run(tmp_path):
    def hook(k, pool):
        kill(pool.supervisor.inference)

    with pytest.raises(EnvironmentFailure, match=r"failed 3 times.*the last was the inference"):
        central(tmp_path, 30, 1, {}, hook=hook, max_failures=2)


def test_a_network_that_inference_cannot_construct_ends_the_run(tmp_path, monkeypatch):
    monkeypatch.setenv("HOTLOOP_TEST_HOME", str(os.getpid()))
    make = partial(actor_critic, network="tests.rollouts.inference.nets:OnlyHere")
    kwargs = {"directory": str(tmp_path)}
    with open_pool(SCRIPTED, env_kwargs=kwargs, inference="central") as pool:
        rollout = begin(pool, make=make)
        with pytest.raises(
            CheckpointError, match=r"^the inference process: .*nowhere else"
        ) as caught:
            rollout.collect()
        assert "\n" not in str(caught.value)
        assert "Traceback" in str(caught.value.__cause__)


def test_a_policy_that_returns_nan_ends_the_run(tmp_path):
    with open_pool(SCRIPTED, env_kwargs={"directory": str(tmp_path)}, inference="central") as pool:
        rollout = begin(pool)
        rollout.collect()
        snapshot = snapshot_of(rollout.policy.network, 1)
        params = {name: array * float("nan") for name, array in snapshot.params.items()}
        rollout.publish(PolicySnapshot(1, params))
        with pytest.raises(NonFiniteError, match="must be finite, but at step 8 they were not"):
            rollout.collect()


# --- the end --------------------------------------------------------------------------------------


def test_nothing_is_left_when_the_learner_is_killed(tmp_path):
    learner = run_learner(tmp_path, SCRIPTED, "none", inference="central")
    wait_until(lambda: count_calls(tmp_path, "step", 1) >= 5)
    assert len(marked_processes(os.environ[MARK])) >= 4
    learner.kill()
    learner.wait()
    wait_until(lambda: not marked_processes(os.environ[MARK]))


def test_a_pool_closes_its_descriptors(tmp_path):
    before = num_descriptors()
    central(tmp_path, 2, 1, {})
    assert num_descriptors() == before


def test_more_workers_than_open_files_allow():
    code = (
        "import resource\n"
        "from hotloop.envs import EnvSpec\n"
        "from hotloop.rollouts.processes.pool import WorkerPool\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (24, 24))\n"
        "WorkerPool(EnvSpec('CartPole-v1'), num_workers=20, inference='central')\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200)
    assert run.returncode == 1
    last = run.stderr.strip().splitlines()[-1]
    assert "21 event descriptors can't be created" in last
    assert "use fewer workers, or raise the limit on open files (`ulimit -n`)" in last


def test_an_inference_process_that_never_starts_ends_the_run(tmp_path, monkeypatch):
    real = WorkerSupervisor._start

    def start(supervisor, number, *args):
        real(supervisor, number, *args)
        if number < 0:
            kill(supervisor.inference)

    monkeypatch.setattr(WorkerSupervisor, "_start", start)
    kwargs = {"directory": str(tmp_path)}
    message = "the inference process must start in one of 3 attempts, but all failed, .*SIGKILL"
    with (
        pytest.raises(EnvironmentFailure, match=message),
        open_pool(SCRIPTED, env_kwargs=kwargs, inference="central") as pool,
    ):
        wait_until(lambda: pool.supervisor.poll(0.02))


def test_inference_must_be_worker_or_central():
    with pytest.raises(ConfigError, match="`inference` must be 'worker' or 'central', got 'gpu'"):
        open_pool(SCRIPTED, inference="gpu").__enter__()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("schedule", "overlap"),
    [("barrier", False), ("barrier", True), ("variable", True), ("async", False)],
)
@pytest.mark.parametrize("seed", range(3))
def test_rows_add_up_after_random_deaths(tmp_path, schedule, overlap, seed):
    rng = random.Random(f"{schedule} {overlap} {seed}")
    num_envs = rng.randint(1, 3)
    kills = {rng.randrange(12): (rng.randrange(-1, 2), 0.02 * rng.random()) for _ in range(5)}

    def hook(k, pool):
        if k in kills:
            number, after_s = kills[k]
            time.sleep(after_s)
            kill(pool.supervisor.inference if number < 0 else pool.workers[number])

    faults = {str(w): {f"step {rng.randint(1, 80)}": "kill", "reset 6": "raise"} for w in (0, 1)}
    plan = {"num_steps": 6, "schedule": schedule, "overlap": overlap, "hook": hook}
    result = central(tmp_path, 14, num_envs, faults, **plan)
    account, num_steps = result.account, count_calls(tmp_path, "step")
    deaths = sum(worker.restarts + 1 for worker in account.workers)
    assert account.collected - deaths * num_envs <= num_steps <= account.collected
    assert account.trained == sum(row["valid"] for rows in result.trace.rows for row in rows)
    assert_adds_up(account)
    assert marked_processes(os.environ[MARK]) == []
