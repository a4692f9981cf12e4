"""Whatever environments start ends with them, by whichever way they end."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from hotloop.rollouts.workers.guard import MARK as POOL_MARK
from hotloop.rollouts.workers.guard import Guard, end_marked, mark_of, marked
from tests.rollouts.workers.pools import MARK, begin, marked_processes, open_pool, play, wait_until
from tests.worker_envs import count_calls

DAEMON = "tests.worker_envs:LeavesADaemon"
REPLACED = "ignore:.*others like it are only counted:RuntimeWarning"

pytestmark = [pytest.mark.usefixtures("mark"), pytest.mark.filterwarnings(REPLACED)]


def daemons(directory, worker):
    """Those that a worker's environments have left, the first one first."""
    return list(map(int, (directory / f"{worker}.daemons").read_text().split()))


def start(token=None, **options):
    """A process that sleeps, in a session of its own."""
    environment = os.environ if token is None else {**os.environ, POOL_MARK: token}
    return subprocess.Popen(["sleep", "60"], start_new_session=True, env=environment, **options)


def test_what_left_its_group_ends_with_its_worker(tmp_path):
    seen = []

    def between(k, pool):
        living = marked_processes(os.environ[MARK])
        seen.append([[pid in living for pid in daemons(tmp_path, worker)] for worker in (0, 1)])

    play(tmp_path, 2, 1, {"1": {"step 12": "kill"}}, env=DAEMON, between=between)
    # The replaced worker's alone; and after the end none.
    assert seen == [[[True], [True]], [[True], [False, True]]]
    assert marked_processes(os.environ[MARK]) == []


def test_what_left_its_group_ends_with_the_pool(tmp_path):
    with open_pool(DAEMON, env_kwargs={"directory": str(tmp_path)}) as pool:
        begin(pool).collect()
        left = daemons(tmp_path, 0) + daemons(tmp_path, 1)
        assert set(left) <= set(marked_processes(os.environ[MARK]))
    assert marked_processes(os.environ[MARK]) == []


def test_what_left_its_group_ends_with_a_learner_that_is_killed(tmp_path):
    code = (
        "from tests.rollouts.workers.pools import begin, open_pool\n"
        f"with open_pool({DAEMON!r}, env_kwargs={{'directory': {str(tmp_path)!r}}}) as pool:\n"
        "    rollout = begin(pool)\n"
        "    while True:\n"
        "        rollout.collect()\n"
    )
    learner = subprocess.Popen([sys.executable, "-c", code])
    wait_until(lambda: count_calls(tmp_path, "step", 1) >= 5)
    left = daemons(tmp_path, 0) + daemons(tmp_path, 1)
    assert set(left) <= set(marked_processes(os.environ[MARK]))
    other = start("another pool's")
    try:
        learner.kill()
        learner.wait()
        wait_until(lambda: set(marked_processes(os.environ[MARK])) == {other.pid})
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_what_ends_by_itself_in_its_grace_is_not_killed():
    environment = {**os.environ, POOL_MARK: "a-token-1"}
    with subprocess.Popen(["cat"], env=environment, stdin=subprocess.PIPE) as program:
        assert marked("a-token-1") == [program.pid]
        assert program.stdin is not None
        ending = threading.Timer(0.2, program.stdin.close)
        ending.start()
        end_marked("a-token", grace_until=time.monotonic() + 60)
        ending.join()
    assert program.returncode == 0


def test_pools_within_pools_are_marked_by_both(monkeypatch):
    monkeypatch.setenv(POOL_MARK, "outer")
    assert mark_of("inner") == "outer inner"
    monkeypatch.delenv(POOL_MARK)
    assert mark_of("inner") == "inner"


def test_the_guard_kills_groups_that_it_was_not_told_to_forget():
    programs = [start() for _ in range(3)]
    try:
        guard = Guard("a-token")
        for program in programs:
            guard.watch(program.pid)
        guard.forget(programs[1].pid)
        guard._pipe.close()  # as when the learner is killed
        assert [programs[i].wait(5) for i in (0, 2)] == [-signal.SIGKILL] * 2
        assert programs[1].poll() is None
        told = Guard("a-token")
        told.watch(programs[1].pid)
        told.end()
        assert programs[1].poll() is None
    finally:
        for program in programs:
            program.kill()
            program.wait()
        guard._process.wait()


def test_the_guard_kills_what_has_the_token_of_its_pool_alone():
    token = "0123456789abcdef"
    ours = [start(f"{token}-1"), start(f"outer {token}-2")]
    others = [start("fedcba9876543210-1"), start()]
    try:
        guard = Guard(token)
        guard._pipe.close()
        assert [program.wait(10) for program in ours] == [-signal.SIGKILL] * 2
        guard._process.wait(10)
        assert [program.poll() for program in others] == [None, None]
    finally:
        for program in ours + others:
            program.kill()
            program.wait()


def test_a_guard_that_is_stopped_holds_nobody_up(tmp_path):
    with open_pool("CartPole-v1") as pool:
        begin(pool).collect()
        os.kill(pool.supervisor._guard._process.pid, signal.SIGSTOP)
        for _ in range(20_000):  # more than its pipe holds
            pool.supervisor._guard.watch(2**22)
        pool.close()
    assert marked_processes(os.environ[MARK]) == []
