"""Workers that are killed, and workers that stand still: the training replaces them and ends."""

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
    chooser,
    inference_of,
    is_accounted_for,
    is_alive,
    kill,
    left_behind,
    metrics,
    num_lines,
    send,
    succeeded,
    times,
    wait_for_lines,
    wait_until,
    workers_of,
)

faults = pytest.mark.faults
_NUM_WORKERS = 2
_NUM_ROWS = 160  # of each environment

# By schedule, or algorithm: the training, and an environment that it can be of.
TRAININGS = {
    "barrier": ([*PPO, "--schedule", "barrier"], "CartPole-v1"),
    "variable": ([*PPO, "--schedule", "variable"], "CartPole-v1"),
    "async": ([*SAC, "--schedule", "async", "--report-interval", "50"], "Pendulum-v1"),
    "appo": ([*APPO, "--schedule", "async"], "CartPole-v1"),
}
# Stage → the call in which a worker dies, and which of these calls it may be.
STAGES = {
    "while it makes environments": ("make", 1, 2),
    "before its first row": ("reset", 1, 2),
    "in its first steps": ("step", 1, 2 * 8),
    "in a step": ("step", 2 * 8, 2 * _NUM_ROWS // 2),
    "in a reset": ("reset", 3, 4),
    "while it closes": ("close", 1, 2),
}


def _command(schedule, run, num_steps, **env_kwargs):
    command, env_id = TRAININGS[schedule]
    given = json.dumps({"env_id": env_id, **env_kwargs})
    return [
        *(*command, "--env-id", "tests.faults.worlds:mortal", "--env-kwargs", given),
        *("--workers", _NUM_WORKERS, "--total-timesteps", num_steps, "--run-dir", run),
    ]


def _ends_well(ended, run, children):
    succeeded(ended, "train")
    left_behind(children)
    told = is_accounted_for(run)
    return sum(worker["restarts"] for worker in told["workers"])


def _killed_in_a_call(forks, tmp_path, schedule, stage, seed):
    kind, first, last = STAGES[stage]
    number = random.Random(seed).randint(first, last)
    folder = tmp_path / f"{schedule}-{stage}-{seed}".replace(" ", "-")
    folder.mkdir()
    deaths = {f"{seed % _NUM_WORKERS} {kind}": number}
    run = folder / "run"
    command = _command(schedule, run, 4 * _NUM_ROWS, directory=str(folder), deaths=deaths)
    restarts = _ends_well(forks.run(*command), run, [])
    (counted,) = folder.glob(f"*.{kind}")
    if restarts == 0 and counted.stat().st_size > number:
        raise Failed("a worker died and was replaced, but that is not told")
    if counted.stat().st_size < number:
        return "ended before that"
    return "replaced" if restarts else "not needed any more"


@pytest.mark.parametrize("schedule", ["barrier"])
def test_a_worker_that_dies(forks, tally, tmp_path, schedule):
    """In a step: the other stages and schedules are marked `faults`."""
    tally("a few kills of workers").run(
        lambda seed: _killed_in_a_call(forks, tmp_path, schedule, "in a step", seed), [1, 2]
    )


@faults
@pytest.mark.timeout(900)
@pytest.mark.parametrize("schedule", list(TRAININGS))
def test_workers_that_die_in_a_call(forks, tally, tmp_path, schedule):
    places = [(stage, seed) for stage in STAGES for seed in range(times(3))]
    tally(f"kill a worker in a call, {schedule}").run(
        lambda place: _killed_in_a_call(forks, tmp_path, schedule, *place), places
    )


@faults
@pytest.mark.timeout(900)
@pytest.mark.parametrize("schedule", list(TRAININGS))
def test_workers_that_die_at_a_time(forks, tally, tmp_path, schedule):
    """From outside, from the moment that there are any to the run's end."""

    def trial(place):
        number, delay_s = place
        run = tmp_path / f"{schedule}-{number}"
        child = forks.command(*_command(schedule, run, 4 * _NUM_ROWS, pause_s=0.005))
        until = time.monotonic() + 10.0
        while not workers_of(child.pid) and time.monotonic() < until:
            time.sleep(0.002)
        time.sleep(delay_s)
        seen = workers_of(child.pid)
        if seen:
            send(random.Random(number).choice(seen), signal.SIGKILL)
        restarts = _ends_well(child.wait(), run, seen)
        return None if restarts else "killed at its end"

    rng = chooser(f"times of workers {schedule}")
    places = [(k, round(rng.uniform(0.0, 2.5), 3)) for k in range(times(8))]
    tally(f"kill a worker at any time, {schedule}").run(trial, places)


@faults
@pytest.mark.timeout(900)
@pytest.mark.parametrize("schedule", list(TRAININGS))
def test_whoever_dies_where_inference_is_central(forks, tally, tmp_path, schedule):
    """The inference process twice, or it and a worker, or a worker alone."""

    def trial(number):
        rng = random.Random(f"{schedule} {number}")
        run = tmp_path / f"{schedule}-{number}"
        command = _command(schedule, run, 4 * _NUM_ROWS, pause_s=0.005)
        child = forks.command(*command, "--inference", "central")
        seen = []
        for who in rng.choice([(inference_of,) * 2, (inference_of, workers_of), (workers_of,)]):
            until = time.monotonic() + 10.0
            while not (found := who(child.pid)) and time.monotonic() < until:
                time.sleep(0.002)
            time.sleep(rng.uniform(0.0, 1.5))
            found = who(child.pid)
            seen += workers_of(child.pid) + inference_of(child.pid)
            if found:
                send(rng.choice(found), signal.SIGKILL)
        _ends_well(child.wait(), run, seen)

    tally(f"kill of central inference, {schedule}").run(trial, range(times(6)))


@faults
@pytest.mark.timeout(900)
@pytest.mark.parametrize("inference", ["worker", "central"])
def test_a_killed_learner_goes_on_where_it_waits_for_nobody(forks, tally, tmp_path, inference):
    """Its workers end at once, and what is resumed counts on from a checkpoint to the end."""

    def trial(seed):
        rng, run = random.Random(f"{inference} {seed}"), tmp_path / f"{inference}-{seed}"
        size = 4 * 32
        total = 12 * size
        command = [*APPO, "--schedule", "async", "--workers", _NUM_WORKERS, "--run-dir", run]
        command += ["--env-id", "tests.faults.worlds:mortal", "--inference", inference]
        command += ["--env-kwargs", json.dumps({"env_id": "CartPole-v1", "pause_s": 0.003})]
        command += ["--total-timesteps", total, "--checkpoint-interval", 2 * size]
        child = forks.command(*command)
        if not wait_for_lines(child.pid, run, rng.randint(1, 8)):
            raise Failed(child.wait().told)
        time.sleep(rng.uniform(0.0, 0.1))
        seen = workers_of(child.pid) + inference_of(child.pid)
        kill(child.pid)
        child.wait()
        left_behind(seen)
        _ends_well(forks.run("resume", run), run, [])
        counted = [line["timesteps"] for line in metrics(run)]
        if counted != list(range(size, total + 1, size)):
            raise Failed(f"iterations end at {counted}")
        if any(line["age_max"] > 4 for line in metrics(run)):
            raise Failed("older than `max_policy_age`")

    tally(f"kill a learner of appo, {inference}").run(trial, range(times(6)))


@faults
@pytest.mark.timeout(900)
@pytest.mark.parametrize("inference", ["worker", "central"])
def test_a_hundred_kills_in_one_run(forks, tally, tmp_path, inference):
    """Of workers and the inference process, one after another, while it waits for nobody."""
    num_kills = times(100)

    def trial(seed):
        rng, run = random.Random(f"{inference} {seed}"), tmp_path / f"{inference}-{seed}"
        # More than there is time for: it ends by an interrupt.
        command = _command("appo", run, 10**7, pause_s=0.001)
        command += ["--inference", inference, "--max-failures", 10 * num_kills]
        child = forks.command(*command)
        seen: dict[int, float] = {}  # since when

        def at_work():
            """Who has had time to start: three starts in a row that fail are the run's end."""
            now = time.monotonic()
            for pid in workers_of(child.pid) + inference_of(child.pid):
                seen.setdefault(pid, now)
            return [pid for pid, since in seen.items() if now > since + 2.5 and is_alive(pid)]

        for _ in range(num_kills):
            found = wait_until(at_work)
            if not found:
                raise Failed(child.wait().told)
            send(rng.choice(found), signal.SIGKILL)
            time.sleep(rng.uniform(0.0, 0.4))
        lines = num_lines(run)
        if not wait_for_lines(child.pid, run, lines + 2):
            raise Failed(f"it did not go on: {child.wait().told}")
        send(child.pid, signal.SIGINT)
        ended = child.wait(120.0)
        if ended.code != 130:
            raise Failed(ended.told)
        left_behind(seen)
        told = is_accounted_for(run)
        # What the iteration that was interrupted had taken counts as trained.
        if not 0 <= told["trained"] - metrics(run)[-1]["timesteps"] <= 4 * 32:
            raise Failed(f"{told['trained']} trained, not {metrics(run)[-1]['timesteps']}")
        if sum(worker["restarts"] for worker in told["workers"]) < num_kills // 2:
            raise Failed(f"replacements are not counted: {told['workers']}")
        if told["policy_age_max"] > 4:
            raise Failed(f"experience was {told['policy_age_max']} versions old")

    tally(f"{num_kills} kills in a run, {inference}").run(trial, [SEED])


@faults
@pytest.mark.timeout(900)
@pytest.mark.parametrize("schedule", list(TRAININGS))
def test_workers_that_freeze(forks, tally, tmp_path, schedule):
    """A stopped process neither ends nor says a word."""

    def trial(seed):
        rng, run = random.Random(f"{schedule} {seed}"), tmp_path / f"{schedule}-{seed}"
        # Some seconds beyond the limit, also where the other worker does all of it.
        rows = 1000 if schedule in ("async", "appo") else 2 * _NUM_ROWS
        command = _command(schedule, run, 2 * rows, pause_s=0.005)
        child = forks.command(*command, "--num-envs", 2, "--step-timeout-s", 2)
        if not wait_for_lines(child.pid, run, rng.randint(1, 3)):
            raise Failed(child.wait().told)
        time.sleep(rng.uniform(0.0, 0.1))
        seen = workers_of(child.pid)
        frozen = rng.choice(seen)
        send(frozen, signal.SIGSTOP)
        ended = child.wait(120.0)
        was_replaced = not is_alive(frozen)
        send(frozen, signal.SIGKILL)
        restarts = _ends_well(ended, run, seen)
        if not restarts or not was_replaced:
            raise Failed("it ended without another worker in the frozen one's place")

    count = times(8 if schedule == "barrier" else 6)
    tally(f"freeze a worker, {schedule}").run(trial, range(count), jobs=4)


@faults
@pytest.mark.timeout(300)
def test_a_learner_that_freezes(forks, tally, tmp_path):
    """Whoever stops it for longer than a step may take does not make its workers guilty."""

    def trial(seed):
        rng, run = random.Random(seed), Path(tmp_path / str(seed))
        command = _command("barrier", run, 4 * 2 * _NUM_ROWS, pause_s=0.002)
        child = forks.command(*command, "--step-timeout-s", 1)
        if not wait_for_lines(child.pid, run, rng.randint(1, 3)):
            raise Failed(child.wait().told)
        send(child.pid, signal.SIGSTOP)
        time.sleep(3.0)
        send(child.pid, signal.SIGCONT)
        if _ends_well(child.wait(), run, []):
            raise Failed("workers were replaced that had done nothing")

    tally("freeze the learner").run(trial, range(times(4)), jobs=4)
