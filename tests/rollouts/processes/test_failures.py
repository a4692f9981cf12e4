"""Real failures of environments, of worker processes and of the learner."""

import contextlib
import gc
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from hotloop.errors import EnvironmentFailure
from hotloop.rollouts.processes import supervisor
from hotloop.rollouts.processes.shared_memory import BEGUN, DONE, STEPPED, WAITING
from hotloop.rollouts.processes.supervisor import WorkerSupervisor
from tests.attempts import attempted
from tests.rollouts.processes.pools import (
    MARK,
    SCRIPTED,
    assert_adds_up,
    begin,
    kill,
    make_inline,
    marked_processes,
    num_descriptors,
    open_pool,
    play,
    wait_until,
)
from tests.worker_envs import count_calls

REPLACED = "ignore:.*similar failures are only counted:RuntimeWarning"

pytestmark = [pytest.mark.usefixtures("mark"), pytest.mark.filterwarnings(REPLACED)]


# --- an environment raises ------------------------------------------------------------------------


def test_a_raising_environment_is_created_again_and_its_siblings_continue(tmp_path):
    # Worker 1 has environments 2, 3 and 4 … its 17th step is the 6th of its second environment.
    result = play(tmp_path, 5, 3, {"1": {"step 17": "raise"}})
    account = result.account
    # 2 workers × 3 environments × 8 steps × 5 fragments, one of them no transition.
    assert (account.collected, account.trained) == (240, 239)
    assert account.dropped == {"environment failed": 1}
    assert count_calls(tmp_path, "step") == 240
    # The others end after 10, 20, 30 and 40 steps. This one is reset after 6.
    rows = result.trace.rows
    ends = {
        env: [k for k, row in enumerate(x) if row["next_obs"][0] == 10]
        for env, x in enumerate(rows)
    }
    assert ends == {**{env: [9, 19, 29, 39] for env in (0, 1, 2, 3, 5)}, 4: [15, 25, 35]}
    assert [k for k, row in enumerate(rows[4]) if not row["valid"]] == [5]
    assert rows[4][4]["truncated"]
    worker = account.workers[1]
    assert (worker.restarts, worker.env_failures) == (0, 1)
    assert count_calls(tmp_path, "make", 1) == 4


def test_an_environment_that_raises_in_its_first_step_of_a_fragment(tmp_path):
    # Rows 0, 8 and 16 begin fragments; 10 begins an episode.
    result = play(tmp_path, 4, 1, {"0": {f"step {k}": "raise" for k in (1, 9, 10, 17)}})
    assert result.account.dropped == {"environment failed": 4}


def test_failures_are_counted_with_the_rows_that_they_belong_to(tmp_path, monkeypatch):
    # Rows may appear in memory before the message of their failure is read.
    poll = WorkerSupervisor.poll
    blind = lambda self, timeout_s: time.sleep(0.01) if timeout_s else poll(self, 0.0)  # noqa: E731

    def hook(k, pool):
        monkeypatch.setattr(WorkerSupervisor, "poll", blind)
        assert pool.supervisor.failures.env_failures[1] == k

    result = play(tmp_path, 3, 1, {"1": {"step 9": "raise", "reset 3": "raise"}}, hook=hook)
    assert result.account.workers[1].env_failures == 2


def test_an_environment_that_raises_at_its_very_first_reset(tmp_path):
    result = play(tmp_path, 2, 1, {"1": {"reset 1": "raise"}})
    assert result.account.dropped == {}
    assert [e.episode for e in result.episodes] == [0, 1]


def test_making_an_environment_is_retried(tmp_path):
    faults = {"1": {"step 3": "raise", "make 2": "raise", "make 3": "raise", "reset 2": "raise"}}
    result = play(tmp_path, 3, 1, faults)
    assert result.account.dropped == {"environment failed": 1}
    assert result.account.workers[1].env_failures == 4
    assert len(result.warnings) == 3


# --- a process dies -------------------------------------------------------------------------------


def test_a_worker_that_dies_in_a_step_is_replaced(tmp_path):
    # Worker 1's 26th step is its second environment's 13th: row 12 is lost.
    result = play(tmp_path, 4, 2, {"1": {"step 26": "kill"}})
    account = result.account
    assert (account.collected, account.trained) == (130, 128)
    assert account.dropped == {"worker died": 2}
    assert count_calls(tmp_path, "step") == 130
    assert [worker.restarts for worker in account.workers] == [0, 1]
    assert "SIGKILL" in result.warnings[0]
    for env in (2, 3):
        rows = result.trace.rows[env]
        assert len(rows) == 32
        assert rows[11]["truncated"]
        assert [row["obs"][0] for row in rows[9:14]] == [9, 0, 1, 0, 1]
    # Episodes of the new process have new numbers.
    assert [e.episode for e in result.episodes if e.env == 2] == [0, 2, 3]


def test_a_worker_that_dies_between_two_fragments(tmp_path):
    # Worker 1 is killed after 8 rows, while it waits. The next row reports the cut.
    def hook(k, pool):
        if k == 0:
            kill(pool.workers[1])
            wait_until(
                lambda: not Path(f"/proc/{pool.workers[1].pid}/fd").exists() or is_dead(pool)
            )

    def is_dead(pool):
        return Path(f"/proc/{pool.workers[1].pid}/stat").read_text().split()[2] == "Z"

    result = play(tmp_path, 3, 1, {}, hook=hook)
    assert result.account.dropped == {}
    assert result.trace.rows[1][7]["is_cut"]
    assert [row["obs"][0] for row in result.trace.rows[1][7:10]] == [7, 0, 1]


@pytest.mark.parametrize("schedule", ["barrier", "variable", "async"])
def test_a_worker_that_dies_with_steps_that_are_not_evaluated(tmp_path, schedule):
    with open_pool(SCRIPTED, env_kwargs={"directory": str(tmp_path)}) as pool:
        rollout = begin(pool, schedule=schedule, overlap=schedule != "async")
        first = rollout.collect()
        memory = rollout.transport.memory[1]
        words = memory.words
        wait_until(lambda: words[WAITING] and words[DONE] > rollout._groups[1].next_row)
        # As if it had died after stepping the last rows of a fragment, before evaluating them.
        kill(pool.workers[1])
        os.waitid(os.P_PID, pool.workers[1].pid, os.WEXITED | os.WNOWAIT)
        _, t = memory.slot_and_step(words[STEPPED] - 1)
        # Collected rows had been evaluated.
        words[DONE] = max(words[STEPPED] - (t + 1), rollout._groups[1].next_row)
        slot_index, start = memory.slot_and_step(words[DONE])
        slot = memory.slots[slot_index].fragment
        for array in (slot.value, slot.next_value, slot.log_prob):
            array[start : t + 1] = np.nan
        num_rows = 0
        while num_rows < 24:
            for fragment in rollout.collect():
                want = rollout.policy.value(fragment.obs.reshape(-1, 2))
                np.testing.assert_allclose(fragment.value.reshape(-1), want, rtol=1e-5, atol=1e-6)
                assert np.isfinite(fragment.next_value).all()
                assert (fragment.log_prob < 0).all()
                num_rows += fragment.num_steps
        assert rollout.accounting().workers[1].restarts == 1
        assert first


def test_a_worker_that_dies_at_a_reset(tmp_path):
    result = play(tmp_path, 3, 1, {"0": {"reset 1": "kill", "reset 3": "kill"}})
    # The very first reset, and the one at the end of step 10.
    assert result.account.dropped == {"worker died": 1}
    assert result.account.workers[0].restarts == 2
    assert (result.account.collected, result.account.trained) == (49, 48)
    assert count_calls(tmp_path, "step") == 49


def test_a_worker_that_dies_while_it_starts_again(tmp_path):
    result = play(tmp_path, 2, 1, {"1": {"step 3": "kill", "make 2": "kill", "make 3": "exit"}})
    assert result.account.dropped == {"worker died": 1}
    assert result.account.workers[1].restarts == 3


def test_a_replaced_worker_does_not_repeat_the_first_episodes_of_envpool():
    pytest.importorskip("envpool")
    with open_pool("envpool:CartPole-v1", 1, 2) as pool:
        rollout = begin(pool, 4)
        (first,) = rollout.collect()
        kill(pool.workers[0])
        (second,) = rollout.collect()
        assert (second.obs[0] != first.obs[0]).any(axis=-1).all()
        assert rollout.accounting().workers[0].restarts == 1


def test_numbers_of_episodes_are_used_once(tmp_path):
    # Two failures in the middle of an episode, then the process dies.
    faults = {"1": {"step 3": "raise", "step 6": "raise", "step 8": "kill"}}
    result = play(tmp_path, 4, 1, faults)  # checks that no episode is played twice
    assert result.account.dropped == {"environment failed": 2, "worker died": 1}


def test_an_interrupt_is_not_an_environment_failure(tmp_path, capfd):
    # A KeyboardInterrupt in an environment is no failure of the environment.
    faults = {"1": {"step 3": "interrupt"}}
    with contextlib.suppress(EnvironmentFailure):
        result = play(tmp_path, 2, 1, faults, max_failures=3)
        assert result.account.workers[1].restarts == 1
    assert "Traceback" not in capfd.readouterr().err  # the learner reports it


def test_a_worker_that_dies_after_a_resume_continues_from_there(tmp_path):
    kwargs = {"directory": str(tmp_path), "length": 40}
    first = make_inline(SCRIPTED, 2, 1, env_kwargs=kwargs)
    rollout = begin(first)
    rollout.collect()
    state, fragments = rollout.state(), rollout.collect()
    first.close()
    with open_pool(SCRIPTED, env_kwargs=kwargs) as pool:
        rollout = begin(pool)
        assert rollout.restore(state.to_arrays(), state.position()) == []
        kill(pool.workers[1])
        for actual, expected in zip(rollout.collect(), fragments, strict=True):
            np.testing.assert_array_equal(actual.obs, expected.obs)
            np.testing.assert_array_equal(actual.action, expected.action)
        assert rollout.accounting().workers[1].restarts == 1


# --- a step does not end --------------------------------------------------------------------------


@pytest.mark.parametrize(("schedule", "fault"), [("barrier", "stop"), ("async", "hang")])
@attempted
def test_a_step_that_does_not_end_is_given_up(tmp_path, schedule, fault):

    def hook(k, pool):
        # A learner that takes time. Worker 0 always has rows, so the learner never waits.
        if schedule == "async" and pool._rollouts[0]._groups[1].next_row < 7:
            time.sleep(0.03)

    num_fragments = 3 if schedule == "barrier" else 80
    faults = {"1": {"step 6": fault}}
    plan = {"schedule": schedule, "step_timeout_s": 0.6}
    result = play(tmp_path, num_fragments, 1, faults, hook=hook, **plan)
    account = result.account
    assert account.dropped["worker died"] == 1
    assert account.workers[1].restarts == 1
    assert r"took more than 0.6 s (`step_timeout_s`)" in result.warnings[0]
    assert account.collected == count_calls(tmp_path, "step")
    # The five rows before that are not lost.
    rows = result.trace.rows[1]
    assert [row["obs"][0] for row in rows[:7]] == [0, 1, 2, 3, 4, 0, 1]
    assert rows[4]["truncated"] or rows[4]["is_cut"]


@attempted
def test_a_reset_that_does_not_end_is_given_up(tmp_path):
    result = play(tmp_path, 3, 1, {"0": {"reset 2": "hang"}}, step_timeout_s=0.6)
    assert result.account.dropped == {"worker died": 1}


@attempted
def test_a_process_that_does_not_start_again_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(WorkerSupervisor, "start_timeout_s", 3.0)  # else a minute
    faults = {"0": {"step 3": "kill", "make 2": "hang"}}
    result = play(tmp_path, 2, 1, faults, step_timeout_s=3.0)
    assert result.account.workers[0].restarts == 2


# --- the end --------------------------------------------------------------------------------------


def test_a_pool_that_is_closed_during_a_step_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(supervisor, "_GRACE_S", 0.5)
    kwargs = {"directory": str(tmp_path), "faults": {"1": {"step 12": "hang"}}}
    with open_pool(SCRIPTED, env_kwargs=kwargs) as pool:
        rollout = begin(pool, overlap=True)
        rollout.collect()
        wait_until(lambda: rollout.transport.memory[1].words[BEGUN] == 12)
        wait_until(lambda: rollout.transport.memory[0].words[DONE] == 16)
        began = time.monotonic()
        pool.close()
        assert time.monotonic() - began >= 0.5  # the worker gets this time to end by itself
    account = rollout.accounting()
    assert (account.collected, account.trained, account.in_flight) == (28, 16, 0)
    assert account.dropped == {"run ended": 12}
    assert count_calls(tmp_path, "step") == 28


def test_child_processes_of_environments_end_with_them(tmp_path):
    kwargs = {"directory": str(tmp_path)}
    with open_pool("tests.worker_envs:LeavesAChild", env_kwargs=kwargs) as pool:
        begin(pool).collect()
        children = [int(path.read_text()) for path in tmp_path.glob("*.child")]
        assert len(children) == 2
        assert set(children) <= set(marked_processes(os.environ[MARK]))
    wait_until(lambda: not marked_processes(os.environ[MARK]))


def run_learner(tmp_path, env, sleeping_worker, **options):
    """Start a learner in a new process. One of its workers sleeps in a step for a minute."""
    faults = {sleeping_worker: {"step 5": "hang"}}
    code = (
        "from tests.rollouts.processes.pools import begin, open_pool\n"
        f"kwargs = {{'directory': {str(tmp_path)!r}, 'faults': {faults!r}}}\n"
        f"with open_pool({env!r}, env_kwargs=kwargs, **{options!r}) as pool:\n"
        "    rollout = begin(pool)\n"
        "    while True:\n"
        "        rollout.collect()\n"
    )
    return subprocess.Popen([sys.executable, "-c", code])


def memory_files(pid):
    """Return the files in memory that a process has mapped and that have names."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return {line[line.index("/dev/shm/") :] for line in lines if "/dev/shm/" in line}


@pytest.mark.parametrize(
    ("env", "sleeping_worker"),
    [(SCRIPTED, "none"), (SCRIPTED, "1"), ("tests.worker_envs:LeavesAChild", "none")],
)
def test_workers_end_when_the_learner_is_killed(tmp_path, env, sleeping_worker):
    learner = run_learner(tmp_path, env, sleeping_worker)
    wait_until(lambda: count_calls(tmp_path, "step", 1) >= 5)
    pids = marked_processes(os.environ[MARK])
    assert len(pids) >= 3
    files = set().union(*map(memory_files, pids))
    learner.kill()
    learner.wait()
    wait_until(lambda: not marked_processes(os.environ[MARK]))
    assert not [path for path in files if os.path.exists(path)]


@pytest.mark.slow
def test_an_interrupted_training_ends_its_workers_and_goes_on_later(tmp_path):
    run_dir = tmp_path / "run"
    program = [sys.executable, "-m", "hotloop"]
    options = ["--workers", "2", "--num-envs", "4", "--num-steps", "32", "--execution", "eager"]
    learner = subprocess.Popen(
        [*program, "train", "ppo", "--run-dir", str(run_dir), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    metrics = run_dir / "metrics.jsonl"
    wait_until(lambda: metrics.exists() and metrics.read_text().count("\n") > 2, timeout_s=200)
    os.killpg(learner.pid, signal.SIGINT)  # as a terminal does
    _, err = learner.communicate(timeout=200)
    assert learner.returncode == 130
    assert err == (
        "hotloop: interrupted; metrics, timing and the last checkpoint are kept: "
        f"continue with hotloop resume {run_dir}\n"
    )
    assert marked_processes(os.environ[MARK]) == []
    reached = len(metrics.read_text().splitlines())
    resumed = subprocess.run(
        [*program, "resume", str(run_dir), "--total-timesteps", str(128 * (reached + 2))],
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert (resumed.returncode, resumed.stderr) == (0, "")
    assert resumed.stdout.startswith(f"resumed at {128 * reached:,} steps")
    assert len(metrics.read_text().splitlines()) == reached + 2


# --- random failures ------------------------------------------------------------------------------

CALLS = st.one_of(
    st.tuples(st.just("step"), st.integers(1, 60)),
    st.tuples(st.just("reset"), st.integers(1, 8)),
)
FAULTS = st.dictionaries(
    CALLS.map(lambda call: f"{call[0]} {call[1]}"),
    st.sampled_from(["raise", "raise", "kill", "exit"]),
    max_size=4,
)
ASYNC = ("async", False)
KILLS = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 1), st.floats(0, 0.01)), max_size=3)


def check_random_faults(directory, schedule, overlap, num_envs, faults, kills):
    gc.collect()  # garbage of earlier tests
    before = num_descriptors()
    directory.mkdir()

    def hook(k, pool):
        for number, worker, after_s in kills:
            if number == k:
                time.sleep(after_s)
                kill(pool.workers[worker])

    result = play(
        *(directory, 8, num_envs, faults),
        hook=hook,
        num_steps=6,
        schedule=schedule,
        overlap=overlap,
    )
    account, num_steps = result.account, count_calls(directory, "step")
    # A worker that dies in a vector step may not have stepped all its environments. A worker that
    # dies while the rollout is closed is not replaced.
    deaths = sum(worker.restarts + 1 for worker in account.workers)
    assert account.collected - deaths * num_envs <= num_steps <= account.collected
    if num_envs == 1 and not kills:
        assert num_steps == account.collected
    assert account.trained == sum(row["valid"] for rows in result.trace.rows for row in rows)
    assert marked_processes(os.environ[MARK]) == []
    assert num_descriptors() == before


@pytest.mark.slow
@settings(
    max_examples=60,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],  # each example takes a second
)
@given(
    st.sampled_from(
        [("barrier", False), ("barrier", True), ("variable", False), ("variable", True), ASYNC]
    ),
    st.integers(1, 3),
    st.fixed_dictionaries({"0": FAULTS, "1": FAULTS}),
    KILLS,
)
def test_rows_add_up_after_many_random_failures(tmp_path, plan, num_envs, faults, kills):
    directory = tmp_path / str(len(list(tmp_path.iterdir())))
    check_random_faults(directory, *plan, num_envs, faults, kills)


def resident_bytes():
    with open("/proc/self/status") as file:
        return next(int(x.split()[1]) * 1024 for x in file if x.startswith("VmRSS:"))


@pytest.mark.slow
def test_two_hundred_kills():
    def play_and_kill(num_kills, rng):
        with open_pool("CartPole-v1", 4, 2, max_failures=1000) as pool:
            rollout = begin(pool, 64, overlap=True)
            num_killed = 0
            while num_killed < num_kills:
                for fragment in rollout.collect():
                    assert np.isfinite(fragment.obs).all()
                    ongoing = ~(fragment.terminated | fragment.truncated)[:-1]
                    np.testing.assert_array_equal(
                        fragment.obs[1:][ongoing], fragment.next_obs[:-1][ongoing]
                    )
                rollout.pop_episodes()
                assert_adds_up(rollout.accounting(with_workers=False))
                worker = rng.randrange(4)
                if pool.workers[worker].ready is not None:
                    time.sleep(rng.random() * 0.003)
                    kill(pool.workers[worker])
                    num_killed += 1
            for _ in range(3):
                rollout.collect()
            words = [memory.words[STEPPED] for memory in rollout.transport.memory]
            # Measured before the recordings of two hundred processes are read.
            memory = resident_bytes()
        return rollout.accounting(), words, memory

    _, _, memory = play_and_kill(5, random.Random(0))  # imports and caches
    descriptors = num_descriptors()
    gc.collect()
    memory = max(memory, resident_bytes())
    account, words, final_memory = play_and_kill(200, random.Random(1))
    restarts = sum(worker.restarts for worker in account.workers)
    # A worker killed twice in quick succession is replaced once.
    assert 150 <= restarts <= 200
    assert_adds_up(account)
    assert account.in_flight == 0
    assert account.dropped.get("worker died", 0) <= 2 * restarts
    assert account.trained >= 2 * (sum(words) - 4 * 64)
    assert num_descriptors() == descriptors
    assert final_memory - memory < 4 * 2**20
    assert marked_processes(os.environ[MARK]) == []
