"""Frozen workers are replaced, wherever they freeze. Slow workers are not."""

import os
import signal
import subprocess
import sys
import time
from functools import partial

import pytest

from hotloop.policies import actor_critic
from hotloop.rollouts.processes import supervisor
from hotloop.rollouts.processes.shared_memory import DONE, WAITING
from hotloop.rollouts.processes.supervisor import WorkerSupervisor
from tests.attempts import attempted
from tests.rollouts.processes.pools import (
    MARK,
    SCRIPTED,
    assert_adds_up,
    assert_same_fragments,
    begin,
    kill,
    make_inline,
    marked_processes,
    open_pool,
    play,
    wait_until,
)
from tests.worker_envs import count_calls

ANYWHERE = "tests.rollouts.processes.frozen_envs:FailsAnywhere"
REPLACED = "ignore:.*similar failures are only counted:RuntimeWarning"

pytestmark = [pytest.mark.usefixtures("mark"), pytest.mark.filterwarnings(REPLACED)]


def count_restarts(rollout):
    return [worker.restarts for worker in rollout.accounting().workers]


# --- during collection ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "where", "num_lost"),
    [
        ("act 4", "it made no progress for 0.5 s between two steps", 0),
        ("write 4", "a step of its environments took more than 0.5 s", 1),
        ("evaluate 2", "it made no progress for 0.5 s while it evaluated rows", 0),
        ("step 4", "a step of its environments took more than 0.5 s", 1),
        ("reset 2", "a step of its environments took more than 0.5 s", 1),
    ],
)
@attempted
def test_a_worker_stopped_in_any_call_is_replaced(tmp_path, call, where, num_lost):
    result = play(tmp_path, 3, 1, {"1": {call: "stop"}}, env=ANYWHERE, step_timeout_s=0.5)
    account = result.account
    assert [worker.restarts for worker in account.workers] == [0, 1]
    assert account.dropped == ({"worker died": 1} if num_lost else {})
    assert (account.collected, account.trained) == (48 + num_lost, 48)
    assert count_calls(tmp_path, "step") == account.collected
    (warning,) = result.warnings
    assert warning.startswith(f"worker 1: {where} (`step_timeout_s`); a signal has stopped it")


@pytest.mark.parametrize("call", ["act 4", "evaluate 2"])
@attempted
def test_a_worker_that_deadlocks_is_replaced(tmp_path, monkeypatch, call):
    monkeypatch.setattr(WorkerSupervisor, "start_timeout_s", 3.0)  # else a minute
    result = play(tmp_path, 3, 1, {"1": {call: "hang"}}, env=ANYWHERE, step_timeout_s=0.5)
    assert [worker.restarts for worker in result.account.workers] == [0, 1]
    assert (result.account.collected, result.account.trained) == (48, 48)
    limit = "0.5 s between" if call == "act 4" else "3 s while"
    assert f"it made no progress for {limit}" in result.warnings[0]
    assert "(`step_timeout_s`); a deadlock?" in result.warnings[0]


@pytest.mark.parametrize("schedule", ["variable", "async"])
@attempted
def test_a_worker_that_is_stopped_while_it_waits_is_replaced(tmp_path, schedule):
    kwargs = {"directory": str(tmp_path)}
    with open_pool(SCRIPTED, env_kwargs=kwargs, step_timeout_s=0.5) as pool:
        rollout = begin(pool, schedule=schedule)
        rollout.collect()
        words = rollout.transport.memory[1].words
        wait_until(lambda: words[WAITING])
        # A worker with nothing to do is not replaced.
        kill(pool.workers[1], signal.SIGSTOP)
        deadline = time.monotonic() + 0.8
        while schedule != "async" and time.monotonic() < deadline:
            pool.supervisor.poll(0.02)
        assert count_restarts(rollout) == [0, 0]
        while count_restarts(rollout) == [0, 0]:
            rollout.collect()
        assert rollout.collect()
        assert_adds_up(rollout.accounting())
    account = rollout.accounting()
    assert count_restarts(rollout) == [0, 1]
    assert account.dropped.get("worker died", 0) == 0
    assert account.collected == count_calls(tmp_path, "step")


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["barrier", "async"])
@attempted
def test_a_network_that_deadlocks_in_a_worker(tmp_path, monkeypatch, schedule):
    monkeypatch.setenv("LOCK_FILE", str(tmp_path / "lock"))
    make = partial(actor_critic, network="tests.rollouts.processes.frozen_nets:Deadlocks")
    kwargs = {"directory": str(tmp_path)}
    with open_pool(SCRIPTED, env_kwargs=kwargs, step_timeout_s=0.5) as pool:
        rollout = begin(pool, make=make, schedule=schedule)
        rollout.collect()
        wait_until(lambda: rollout.transport.memory[1].words[DONE])
        (tmp_path / "lock").touch()
        while count_restarts(rollout) == [0, 0]:
            rollout.collect()
        assert_adds_up(rollout.accounting())
    assert count_restarts(rollout) == [0, 1]
    assert not (tmp_path / "lock").exists()


# --- at the start ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "fault"),
    [
        *((call, "kill") for call in ("make 1", "ready", "setup 1", "reset 1", "act 1")),
        *((call, "stop") for call in ("make 1", "ready", "act 1")),
    ],
)
@attempted
def test_a_worker_replaced_before_its_first_row_gives_the_same_rows(tmp_path, call, fault):
    kwargs = {"directory": str(tmp_path), "faults": {"1": {call: fault}}}
    inline = make_inline(ANYWHERE, 2, 1, env_kwargs={"directory": str(tmp_path)})
    with open_pool(ANYWHERE, env_kwargs=kwargs, step_timeout_s=0.5) as pool:
        if call == "ready":
            kill(pool.workers[1], signal.SIGSTOP if fault == "stop" else signal.SIGKILL)
        rollout, whole = begin(pool), begin(inline)
        for _ in range(3):
            assert_same_fragments(rollout.collect(), whole.collect())
            assert rollout.pop_episodes() == whole.pop_episodes()
        assert count_restarts(rollout) == [0, 1]
        assert pool.supervisor.failures.num_failures == 1
        account = rollout.accounting()
        assert (account.collected, account.dropped) == (48, {})
    inline.close()


def begin_inline(env_id, kwargs):
    """Return environments in this process, their rollout, and its state after a fragment."""
    envs = make_inline(env_id, 2, 1, env_kwargs=kwargs)
    rollout = begin(envs)
    rollout.collect()
    return envs, rollout, rollout.state()


@pytest.mark.parametrize(
    ("call", "fault"),
    [
        *((call, "kill") for call in ("reset 1", "step 1", "step 5", "write 1")),
        *((call, "stop") for call in ("reset 1", "write 1")),
    ],
)
@attempted
def test_a_worker_replaced_while_it_resumes_gives_the_same_rows(tmp_path, call, fault):
    kwargs = {"directory": str(tmp_path), "length": 40}
    first, whole, state = begin_inline(ANYWHERE, kwargs)
    faults = {"1": {"step 9" if call == "write 1" else call: fault}}  # 8 of them are replayed
    with open_pool(ANYWHERE, env_kwargs={**kwargs, "faults": faults}, step_timeout_s=0.5) as pool:
        rollout = begin(pool)
        assert rollout.restore(state.to_arrays(), state.position()) == []
        actual, expected = rollout.collect(), whole.collect()
        if call != "write 1":
            assert_same_fragments(actual, expected)
        assert count_restarts(rollout) == [0, 1]
    first.close()


@attempted
def test_replaying_many_slow_steps_is_no_hang(tmp_path):
    kwargs = {"directory": str(tmp_path), "length": 40}
    first, _, state = begin_inline(SCRIPTED, kwargs)
    pauses = {"1": 0.2}
    with open_pool(SCRIPTED, env_kwargs={**kwargs, "pause_s": pauses}, step_timeout_s=0.5) as pool:
        rollout = begin(pool)
        assert rollout.restore(state.to_arrays(), state.position()) == []
        assert count_restarts(rollout) == [0, 0]
    first.close()


def test_an_episode_that_cannot_be_replayed_is_cut_off(tmp_path):
    env, kwargs = (
        "tests.rollouts.processes.frozen_envs:ForgetsOnce",
        {"directory": str(tmp_path), "length": 40},
    )
    first, _, state = begin_inline(SCRIPTED, kwargs)
    with open_pool(env, env_kwargs=kwargs) as pool:
        rollout = begin(pool)
        assert rollout.restore(state.to_arrays(), state.position()) == []
        kill(pool.workers[1])
        fragments = rollout.collect()
        assert [fragment.restarted_envs for fragment in fragments] == [(), (0,)]
        assert [fragment.obs[0, 0, 0] for fragment in fragments] == [8, 0]
        running = [episode for episode, _ in rollout.state().position().episodes]
        assert running == [0, 1]
        assert [fragment.restarted_envs for fragment in rollout.collect()] == [(), ()]
    first.close()


# --- slow workers and learners --------------------------------------------------------------------


@pytest.mark.parametrize("call", ["make 1", "setup 1", "act 1", "evaluate 2"])
@attempted
def test_slow_calls_outside_of_steps_are_waited_for(tmp_path, call):
    result = play(tmp_path, 3, 1, {"1": {call: "slow"}}, env=ANYWHERE, step_timeout_s=0.5)
    assert [worker.restarts for worker in result.account.workers] == [0, 0]


@pytest.mark.slow
@attempted
def test_a_slow_network_constructor_is_waited_for(tmp_path):
    make = partial(actor_critic, network="tests.rollouts.processes.frozen_nets:SlowToLoad")
    kwargs = {"directory": str(tmp_path)}
    with open_pool(SCRIPTED, env_kwargs=kwargs, step_timeout_s=0.5) as pool:
        rollout = begin(pool, make=make)
        rollout.collect()
        assert count_restarts(rollout) == [0, 0]


@pytest.mark.parametrize("plan", [{}, {"overlap": True}, {"schedule": "async"}])
@attempted
def test_a_slow_learner_replaces_no_worker(tmp_path, plan):
    kwargs = {"directory": str(tmp_path), "pause_s": {"0": 0.2, "1": 0.02}}
    with open_pool(SCRIPTED, env_kwargs=kwargs, step_timeout_s=0.5) as pool:
        rollout = begin(pool, 2, **plan)
        for _ in range(3):
            rollout.collect()
            time.sleep(0.7)
        assert count_restarts(rollout) == [0, 0]


@attempted
def test_a_pause_replaces_no_worker(tmp_path):
    """Pause the learner alone, then all processes."""
    code = (
        "from tests.rollouts.processes.pools import begin, open_pool\n"
        f"kwargs = {{'directory': {str(tmp_path)!r}, 'pause_s': {{'1': 0.4}}}}\n"
        f"with open_pool({SCRIPTED!r}, env_kwargs=kwargs, step_timeout_s=1.2) as pool:\n"
        "    rollout = begin(pool, 4)\n"
        "    for _ in range(4): rollout.collect()\n"
        "    print([worker.restarts for worker in rollout.accounting().workers])\n"
    )
    learner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    for is_whole_machine in (False, True):
        num_steps = count_calls(tmp_path, "step", 1)
        wait_until(lambda count=num_steps: count_calls(tmp_path, "step", 1) >= count + 3)
        time.sleep(0.3)  # the learner has polled during this step
        paused = [learner.pid]
        if is_whole_machine:
            paused += [pid for pid in marked_processes(os.environ[MARK]) if pid != learner.pid]
        for pid in paused:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(1.8)
        for pid in paused:
            os.kill(pid, signal.SIGCONT)
            time.sleep(0.1 * (pid == learner.pid))  # the learner polls before the others continue
    out, _ = learner.communicate(timeout=200)
    assert out == "[0, 0]\n"


def test_without_a_limit_no_worker_is_replaced(tmp_path):
    kwargs = {"directory": str(tmp_path)}
    with open_pool(SCRIPTED, env_kwargs=kwargs, step_timeout_s=None) as pool:
        rollout = begin(pool, overlap=True)
        rollout.collect()
        kill(pool.workers[1], signal.SIGSTOP)
        deadline = time.monotonic() + 1.0
        while time.monotonic() < deadline:
            pool.supervisor.poll(0.02)
        kill(pool.workers[1], signal.SIGCONT)
        rollout.collect()
        assert count_restarts(rollout) == [0, 0]


# --- the end --------------------------------------------------------------------------------------


def test_stopped_workers_are_killed_when_the_pool_is_closed(tmp_path, monkeypatch):
    monkeypatch.setattr(supervisor, "_GRACE_S", 0.3)
    with open_pool(SCRIPTED, env_kwargs={"directory": str(tmp_path)}) as pool:
        rollout = begin(pool)
        rollout.collect()
        for worker in pool.workers:
            kill(worker, signal.SIGSTOP)
    assert marked_processes(os.environ[MARK]) == []
