"""Killed and frozen workers: the training replaces them and ends."""

import json
import random
import signal
import time
from pathlib import Path

import pytest

from tests.faults.trials import (
    APPO,
    PPO,
    SAC,
    SEED,
    Failed,
    check_accounting,
    check_ended,
    check_success,
    inference_of,
    is_alive,
    kill,
    make_rng,
    num_lines,
    read_metrics,
    scale,
    send,
    wait_for_lines,
    wait_until,
    workers_of,
)

faults = pytest.mark.faults
_NUM_WORKERS = 2
_NUM_ROWS = 160  # of each environment

# Schedule or algorithm → the training and its environment.
TRAININGS = {
    "barrier": ([*PPO, "--schedule", "barrier"], "CartPole-v1"),
    "variable": ([*PPO, "--schedule", "variable"], "CartPole-v1"),
    "async": ([*SAC, "--schedule", "async", "--report-interval", "50"], "Pendulum-v1"),
    "appo": ([*APPO, "--schedule", "async"], "CartPole-v1"),
}
# Stage → the kind of call in which a worker dies, and the range of its number.
STAGES = {
    "while it makes environments": ("make", 1, 2),
    "before its first row": ("reset", 1, 2),
    "in its first steps": ("step", 1, 2 * 8),
    "in a step": ("step", 2 * 8, 2 * _NUM_ROWS // 2),
    "in a reset": ("reset", 3, 4),
    "while it closes": ("close", 1, 2),
}


def _train_command(schedule, run, num_steps, **env_kwargs):
    command, env_id = TRAININGS[schedule]
    kwargs_json = json.dumps({"env_id": env_id, **env_kwargs})
    return [
        *(
            *command,
            "--env-id",
            "tests.faults.fatal_envs:make_env",
            "--env-kwargs",
            kwargs_json,
        ),
        *("--workers", _NUM_WORKERS, "--total-timesteps", num_steps, "--run-dir", run),
    ]


def _check_training(result, run, children):
    check_success(result, "train")
    check_ended(children)
    accounting = check_accounting(run)
    return sum(worker["restarts"] for worker in accounting["workers"])


def _kill_in_call(forks, tmp_path, schedule, stage, seed):
    kind, first, last = STAGES[stage]
    number = random.Random(seed).randint(first, last)
    folder = tmp_path / f"{schedule}-{stage}-{seed}".replace(" ", "-")
    folder.mkdir()
    deaths = {f"{seed % _NUM_WORKERS} {kind}": number}
    run = folder / "run"
    command = _train_command(schedule, run, 4 * _NUM_ROWS, directory=str(folder), deaths=deaths)
    restarts = _check_training(forks.run(*command), run, [])
    (count_file,) = folder.glob(f"*.{kind}")
    if restarts == 0 and count_file.stat().st_size > number:
        raise Failed("a worker was replaced, but the accounting does not count it")
    if count_file.stat().st_size < number:
        return "ended before that"
    return "replaced" if restarts else "not needed any more"


@pytest.mark.parametrize("schedule", ["barrier"])
def test_a_worker_that_dies(forks, tally, tmp_path, schedule):
    """Kill workers in a step. Other stages and schedules are marked `faults`."""
    tally("a few kills of workers").run(
        lambda seed: _kill_in_call(forks, tmp_path, schedule, "in a step", seed), [1, 2]
    )


@faults
@pytest.mark.timeout(900)
@pytest.mark.parametrize("schedule", list(TRAININGS))
def test_workers_that_die_in_a_call(forks, tally, tmp_path, schedule):
    places = [(stage, seed) for stage in STAGES for seed in range(scale(3))]
    tally(f"kill a worker in a call, {schedule}").run(
        lambda place: _kill_in_call(forks, tmp_path, schedule, *place), places
    )


@faults
@pytest.mark.timeout(900)
@pytest.mark.parametrize("schedule", list(TRAININGS))
def test_workers_that_die_at_a_time(forks, tally, tmp_path, schedule):
    """Kill workers from outside, at any time from their start to the run's end."""

    def trial(place):
        number, delay_s = place
        run = tmp_path / f"{schedule}-{number}"
        child = forks.command(*_train_command(schedule, run, 4 * _NUM_ROWS, pause_s=0.005))
        deadline = time.monotonic() + 10.0
        while not workers_of(child.pid) and time.monotonic() < deadline:
            time.sleep(0.002)
        time.sleep(delay_s)
        pids = workers_of(child.pid)
        if pids:
            send(random.Random(number).choice(pids), signal.SIGKILL)
        restarts = _check_training(child.wait(), run, pids)
        return None if restarts else "killed at its end"

    rng = make_rng(f"times of workers {schedule}")
    places = [(k, round(rng.uniform(0.0, 2.5), 3)) for k in range(scale(8))]
    tally(f"kill a worker at any time, {schedule}").run(trial, places)


@faults
@pytest.mark.timeout(900)
@pytest.mark.parametrize("schedule", list(TRAININGS))
def test_workers_and_central_inference_that_die(forks, tally, tmp_path, schedule):
    """Kill the inference process twice, or it and a worker, or a worker alone."""

    def trial(number):
        rng = random.Random(f"{schedule} {number}")
        run = tmp_path / f"{schedule}-{number}"
        command = _train_command(schedule, run, 4 * _NUM_ROWS, pause_s=0.005)
        child = forks.command(*command, "--inference", "central")
        pids = []
        for find_pids in rng.choice(
            [(inference_of,) * 2, (inference_of, workers_of), (workers_of,)]
        ):
            deadline = time.monotonic() + 10.0
            while not (candidates := find_pids(child.pid)) and time.monotonic() < deadline:
                time.sleep(0.002)
            time.sleep(rng.uniform(0.0, 1.5))
            candidates = find_pids(child.pid)
            pids += workers_of(child.pid) + inference_of(child.pid)
            if candidates:
                send(rng.choice(candidates), signal.SIGKILL)
        _check_training(child.wait(), run, pids)

    tally(f"kill of central inference, {schedule}").run(trial, range(scale(6)))


@faults
@pytest.mark.timeout(900)
@pytest.mark.parametrize("inference", ["worker", "central"])
def test_a_killed_asynchronous_learner_is_resumed(forks, tally, tmp_path, inference):
    """Its workers end at once, and `resume` counts from a checkpoint to the end."""

    def trial(seed):
        rng, run = random.Random(f"{inference} {seed}"), tmp_path / f"{inference}-{seed}"
        size = 4 * 32
        total = 12 * size
        command = [*APPO, "--schedule", "async", "--workers", _NUM_WORKERS, "--run-dir", run]
        command += ["--env-id", "tests.faults.fatal_envs:make_env", "--inference", inference]
        command += ["--env-kwargs", json.dumps({"env_id": "CartPole-v1", "pause_s": 0.003})]
        command += ["--total-timesteps", total, "--checkpoint-interval", 2 * size]
        child = forks.command(*command)
        if not wait_for_lines(child.pid, run, rng.randint(1, 8)):
            raise Failed(child.wait().summary)
        time.sleep(rng.uniform(0.0, 0.1))
        pids = workers_of(child.pid) + inference_of(child.pid)
        kill(child.pid)
        child.wait()
        check_ended(pids)
        _check_training(forks.run("resume", run), run, [])
        timesteps = [line["timesteps"] for line in read_metrics(run)]
        if timesteps != list(range(size, total + 1, size)):
            raise Failed(f"iterations end at {timesteps}")
        if any(line["age_max"] > 4 for line in read_metrics(run)):
            raise Failed("rows were older than `max_policy_age`")

    tally(f"kill a learner of appo, {inference}").run(trial, range(scale(6)))


@faults
@pytest.mark.timeout(900)
@pytest.mark.parametrize("inference", ["worker", "central"])
def test_a_hundred_kills_in_one_run(forks, tally, tmp_path, inference):
    """Kill workers and the inference process one after another, without a barrier."""
    num_kills = scale(100)

    def trial(seed):
        rng, run = random.Random(f"{inference} {seed}"), tmp_path / f"{inference}-{seed}"
        # More steps than it can make: an interrupt ends it.
        command = _train_command("appo", run, 10**7, pause_s=0.001)
        command += ["--inference", inference, "--max-failures", 10 * num_kills]
        child = forks.command(*command)
        first_seen: dict[int, float] = {}  # process ID → first seen

        def started_processes():
            """Return processes that have started: three failed starts in a row end the run."""
            now = time.monotonic()
            for pid in workers_of(child.pid) + inference_of(child.pid):
                first_seen.setdefault(pid, now)
            return [pid for pid, start in first_seen.items() if now > start + 2.5 and is_alive(pid)]

        for _ in range(num_kills):
            pids = wait_until(started_processes)
            if not pids:
                raise Failed(child.wait().summary)
            send(rng.choice(pids), signal.SIGKILL)
            time.sleep(rng.uniform(0.0, 0.4))
        lines = num_lines(run)
        if not wait_for_lines(child.pid, run, lines + 2):
            raise Failed(f"it did not continue: {child.wait().summary}")
        send(child.pid, signal.SIGINT)
        result = child.wait(120.0)
        if result.code != 130:
            raise Failed(result.summary)
        check_ended(first_seen)
        accounting = check_accounting(run)
        # Rows of the interrupted iteration count as trained.
        if not 0 <= accounting["trained"] - read_metrics(run)[-1]["timesteps"] <= 4 * 32:
            raise Failed(
                f"{accounting['trained']} trained, not {read_metrics(run)[-1]['timesteps']}"
            )
        if sum(worker["restarts"] for worker in accounting["workers"]) < num_kills // 2:
            raise Failed(f"replacements are not counted: {accounting['workers']}")
        if accounting["policy_age_max"] > 4:
            raise Failed(f"experience was {accounting['policy_age_max']} versions old")

    tally(f"{num_kills} kills in a run, {inference}").run(trial, [SEED])


@faults
@pytest.mark.timeout(900)
@pytest.mark.parametrize("schedule", list(TRAININGS))
def test_workers_that_freeze(forks, tally, tmp_path, schedule):
    """A stopped process neither ends nor reports an error."""

    def trial(seed):
        rng, run = random.Random(f"{schedule} {seed}"), tmp_path / f"{schedule}-{seed}"
        # Some seconds beyond the limit, even if the other worker does all steps.
        rows = 1000 if schedule in ("async", "appo") else 2 * _NUM_ROWS
        command = _train_command(schedule, run, 2 * rows, pause_s=0.005)
        child = forks.command(*command, "--num-envs", 2, "--step-timeout-s", 2)
        if not wait_for_lines(child.pid, run, rng.randint(1, 3)):
            raise Failed(child.wait().summary)
        time.sleep(rng.uniform(0.0, 0.1))
        pids = workers_of(child.pid)
        frozen = rng.choice(pids)
        send(frozen, signal.SIGSTOP)
        result = child.wait(120.0)
        was_replaced = not is_alive(frozen)
        send(frozen, signal.SIGKILL)
        restarts = _check_training(result, run, pids)
        if not restarts or not was_replaced:
            raise Failed("the frozen worker was not replaced")

    count = scale(8 if schedule == "barrier" else 6)
    tally(f"freeze a worker, {schedule}").run(trial, range(count), jobs=4)


@faults
@pytest.mark.timeout(300)
def test_a_learner_that_freezes(forks, tally, tmp_path):
    """A learner that is stopped for longer than the step timeout does not blame its workers."""

    def trial(seed):
        rng, run = random.Random(seed), Path(tmp_path / str(seed))
        command = _train_command("barrier", run, 4 * 2 * _NUM_ROWS, pause_s=0.002)
        child = forks.command(*command, "--step-timeout-s", 1)
        if not wait_for_lines(child.pid, run, rng.randint(1, 3)):
            raise Failed(child.wait().summary)
        send(child.pid, signal.SIGSTOP)
        time.sleep(3.0)
        send(child.pid, signal.SIGCONT)
        if _check_training(child.wait(), run, []):
            raise Failed("workers were replaced without a reason")

    tally("freeze the learner").run(trial, range(scale(4)), jobs=4)
