"""Processes that environments start end with them, however they end."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from hotloop.rollouts.processes.guard import MARK as POOL_MARK
from hotloop.rollouts.processes.guard import Guard, kill_marked, mark_value, marked_pids
from tests.rollouts.processes.pools import (
    MARK,
    begin,
    marked_processes,
    open_pool,
    play,
    wait_until,
)
from tests.worker_envs import count_calls

DAEMON = "tests.worker_envs:LeavesADaemon"
REPLACED = "ignore:.*similar failures are only counted:RuntimeWarning"

pytestmark = [pytest.mark.usefixtures("mark"), pytest.mark.filterwarnings(REPLACED)]


def daemon_pids(directory, worker):
    """Return the IDs of the processes that a worker's environments have detached, in order."""
    return list(map(int, (directory / f"{worker}.daemons").read_text().split()))


def start(token=None, **options):
    """Start a sleeping process in a new session."""
    environment = os.environ if token is None else {**os.environ, POOL_MARK: token}
    return subprocess.Popen(["sleep", "60"], start_new_session=True, env=environment, **options)


def test_a_detached_process_ends_with_its_worker(tmp_path):
    alive_daemons = []

    def hook(k, pool):
        pids = marked_processes(os.environ[MARK])
        alive_daemons.append(
            [[pid in pids for pid in daemon_pids(tmp_path, worker)] for worker in (0, 1)]
        )

    play(tmp_path, 2, 1, {"1": {"step 12": "kill"}}, env=DAEMON, hook=hook)
    # Only the replaced worker's process has ended. After the end, none is left.
    assert alive_daemons == [[[True], [True]], [[True], [False, True]]]
    assert marked_processes(os.environ[MARK]) == []


def test_a_detached_process_ends_with_the_pool(tmp_path):
    with open_pool(DAEMON, env_kwargs={"directory": str(tmp_path)}) as pool:
        begin(pool).collect()
        pids = daemon_pids(tmp_path, 0) + daemon_pids(tmp_path, 1)
        assert set(pids) <= set(marked_processes(os.environ[MARK]))
    assert marked_processes(os.environ[MARK]) == []


def test_a_detached_process_ends_with_a_killed_learner(tmp_path):
    code = (
        "from tests.rollouts.processes.pools import begin, open_pool\n"
        f"with open_pool({DAEMON!r}, env_kwargs={{'directory': {str(tmp_path)!r}}}) as pool:\n"
        "    rollout = begin(pool)\n"
        "    while True:\n"
        "        rollout.collect()\n"
    )
    learner = subprocess.Popen([sys.executable, "-c", code])
    wait_until(lambda: count_calls(tmp_path, "step", 1) >= 5)
    pids = daemon_pids(tmp_path, 0) + daemon_pids(tmp_path, 1)
    assert set(pids) <= set(marked_processes(os.environ[MARK]))
    other = start("another pool's")
    try:
        learner.kill()
        learner.wait()
        wait_until(lambda: set(marked_processes(os.environ[MARK])) == {other.pid})
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_a_process_that_ends_within_the_grace_period_is_not_killed():
    environment = {**os.environ, POOL_MARK: "a-token-1"}
    with subprocess.Popen(["cat"], env=environment, stdin=subprocess.PIPE) as program:
        assert marked_pids("a-token-1") == [program.pid]
        assert program.stdin is not None
        ending = threading.Timer(0.2, program.stdin.close)
        ending.start()
        kill_marked("a-token", grace_until_s=time.monotonic() + 60)
        ending.join()
    assert program.returncode == 0


def test_processes_of_nested_pools_carry_both_marks(monkeypatch):
    monkeypatch.setenv(POOL_MARK, "outer")
    assert mark_value("inner") == "outer inner"
    monkeypatch.delenv(POOL_MARK)
    assert mark_value("inner") == "inner"


def test_the_guard_kills_the_groups_that_it_watches():
    programs = [start() for _ in range(3)]
    try:
        guard = Guard("a-token")
        for program in programs:
            guard.watch(program.pid)
        guard.forget(programs[1].pid)
        guard._pipe.close()  # as when the learner is killed
        assert [programs[i].wait(50) for i in (0, 2)] == [-signal.SIGKILL] * 2
        assert programs[1].poll() is None
        other_guard = Guard("a-token")
        other_guard.watch(programs[1].pid)
        other_guard.end()
        assert programs[1].poll() is None
    finally:
        for program in programs:
            program.kill()
            program.wait()
        guard._process.wait()


def test_the_guard_kills_only_processes_with_its_pools_token():
    token = "0123456789abcdef"
    marked = [start(f"{token}-1"), start(f"outer {token}-2")]
    unmarked = [start("fedcba9876543210-1"), start()]
    try:
        guard = Guard(token)
        guard._pipe.close()
        assert [program.wait(50) for program in marked] == [-signal.SIGKILL] * 2
        guard._process.wait(50)
        assert [program.poll() for program in unmarked] == [None, None]
    finally:
        for program in marked + unmarked:
            program.kill()
            program.wait()


def test_a_stopped_guard_does_not_block_the_pool(tmp_path):
    with open_pool("CartPole-v1") as pool:
        begin(pool).collect()
        os.kill(pool.supervisor._guard._process.pid, signal.SIGSTOP)
        for _ in range(20_000):  # more than its pipe holds
            pool.supervisor._guard.watch(2**22)
        pool.close()
    assert marked_processes(os.environ[MARK]) == []
