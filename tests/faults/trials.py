"""Trials: their number and places, tallies, and checks of their results."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from safetensors.numpy import load_file

from hotloop.runs.policies import POLICIES, POOL, SELF_PLAY_FILE, policy_runs
from tests.faults.forks import Forks, ProcessResult

SEED = int(os.environ.get("HOTLOOP_FAULTS_SEED", "1"))
SCALE = float(os.environ.get("HOTLOOP_FAULTS_SCALE", "1"))
JOBS = len(os.sched_getaffinity(0))
LONG_S = 60.0
# Modules in the command lines of a worker and of the inference process.
_WORKER, _INFERENCE = b"hotloop.rollouts.processes.worker", b"hotloop.rollouts.inference.server"

Place = TypeVar("Place")

_SMALL = ["--num-envs", "4", "--hidden-sizes", "16", "--execution", "eager", "--seed", "1"]
PPO = ["train", "ppo", *_SMALL, "--num-steps", "32", "--update-epochs", "2"]
PPO += ["--num-minibatches", "2"]
APPO = ["train", "appo", *PPO[2:]]
CARTPOLE = [*PPO, "--env-id", "CartPole-v1"]
SAC = ["train", "sac", *_SMALL, "--learning-starts", "64", "--batch-size", "32"]
SAC += ["--buffer-size", "1000", "--update-to-data", "0.1"]
PENDULUM = [*SAC, "--env-id", "Pendulum-v1"]

# Trainings with many checkpoints each.
KINDS = {
    "plain": [*CARTPOLE, "--total-timesteps", "1536", "--checkpoint-interval", "128"],
    "long": [*CARTPOLE, "--total-timesteps", "6144", "--checkpoint-interval", "256"],
    "evaluated": [
        *(*CARTPOLE, "--total-timesteps", "1536", "--checkpoint-interval", "256"),
        *("--eval-interval", "256", "--eval-episodes", "2", "--keep-checkpoints", "1"),
    ],
    "replay": [
        *(*PENDULUM, "--total-timesteps", "600", "--checkpoint-interval", "100"),
        *("--report-interval", "50", "--save-replay"),
    ],
    "self-play": [
        *(*PPO, "--env-id", "tests.toy_games:Nim", "--action-masks", "--self-play", "prioritized"),
        *("--self-play-interval", "128", "--self-play-pool", "2", "--self-play-keep", "2"),
        *("--self-play-epsilon", "0.2", "--total-timesteps", "1536", "--checkpoint-interval"),
        *("256", "--keep-checkpoints", "1"),
    ],
    "workers": [
        *(*CARTPOLE, "--total-timesteps", "1024", "--checkpoint-interval", "128"),
        *("--workers", "2"),
    ],
    "policies": [
        *("train", "ppo", "--env-id", "tests.toy_games:Teams", "--policies", "red,blue"),
        *("--num-envs", "6", "--num-steps", "16", "--total-timesteps", "768", "--seed", "1"),
        *("--checkpoint-interval", "96", "--hidden-sizes", "16", "--execution", "eager"),
        *("--keep-checkpoints", "0"),
    ],
}


class Failed(Exception):
    """A failed trial, described in one line."""


def scale(number: int) -> int:
    """Scale a usual number of trials by HOTLOOP_FAULTS_SCALE."""
    return max(1, round(number * SCALE))


def make_rng(name: str) -> random.Random:
    """Return the generator that chooses the places of a group of trials."""
    return random.Random(f"{SEED} {name}")


class Tally:
    """Counts the trials of one group.

    Args:
        name: Short description of the fault.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.num_trials = 0
        self.notes: Counter[str] = Counter()
        self.failures: list[str] = []
        self._lock = threading.Lock()

    @property
    def num_passed(self) -> int:
        """Number of passed trials."""
        return self.num_trials - len(self.failures)

    def run(
        self, trial: Callable[[Place], str | None], places: Iterable[Place], jobs: int = JOBS
    ) -> None:
        """Run a trial at each place, several at a time, and count them.

        Args:
            trial: Runs one trial, and may return a note about an unusual result.
            places: Argument of each trial.
            jobs: Number of trials at a time, 0 to run them in this thread.

        Raises:
            AssertionError: A trial failed.
        """

        def attempt(place: Place) -> None:
            note, failure = None, None
            try:
                note = trial(place)
            except Failed as error:
                failure = f"{place}: {error}"
            except Exception as error:
                failure = f"{place}: {type(error).__name__}: {error}"
            with self._lock:
                self.num_trials += 1
                self.notes.update([note] if note else [])
                self.failures += [failure] if failure else []

        if not jobs:
            for place in places:
                attempt(place)
        else:
            with ThreadPoolExecutor(jobs) as pool:
                list(pool.map(attempt, places))
        self.check()

    def check(self) -> None:
        """Raise an AssertionError if a trial failed."""
        failures = "\n".join(f"  {failure}" for failure in self.failures[:25])
        assert not self.failures, f"{len(self.failures)} of {self.num_trials} trials:\n{failures}"


# --- results of processes -------------------------------------------------------------------------

_BUG = re.compile(r"Traceback \(most recent|--debug shows the traceback|panicked at|Fatal Python")


def check_error_message(result: ProcessResult) -> None:
    """Check that a process failed with a sentence, exit code 1 or 2 and no traceback.

    Raises:
        Failed: It did not.
    """
    errors = [x for x in result.err.splitlines() if x.startswith("hotloop: ")]
    errors = [x for x in errors if not x.startswith("hotloop: warning: ")]
    if result.code not in (1, 2) or _BUG.search(result.err) or not errors:
        raise Failed(f"no sentence, {result.summary}")
    if len(result.err) > 6000:
        raise Failed(f"{len(result.err)} characters on standard error")


def check_success(result: ProcessResult, command: str) -> None:
    """Check that a process ended with exit code 0 and without a traceback.

    Raises:
        Failed: It did not.
    """
    if result.code != 0 or _BUG.search(result.err):
        raise Failed(f"{command}: {result.summary}")


# --- runs -----------------------------------------------------------------------------------------


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """Return the lines of a run's metrics, without times and checksums (which cover times)."""
    lines = [json.loads(x) for x in (run / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if not k.endswith(("_s", "checksum"))} for line in lines]


def check_same_run(run: Path, reference: Path) -> None:
    """Check that two runs have bitwise the same last checkpoint and metrics.

    With several policies, those of each policy are compared.

    Raises:
        Failed: They differ.
    """
    for policy in policy_runs(reference):
        check_same_run(run / POLICIES / policy.name, policy)
    if policy_runs(reference):
        return
    for name in ("policy", "learner"):
        actual, expected = (
            load_file(x / "checkpoints" / "last" / f"{name}.safetensors") for x in (run, reference)
        )
        different = [
            x for x in expected if x not in actual or actual[x].tobytes() != expected[x].tobytes()
        ]
        if different or actual.keys() != expected.keys():
            raise Failed(f"{name}.safetensors differs in {', '.join(different)}")
    if read_metrics(run) != read_metrics(reference):
        raise Failed("metrics.jsonl differs")
    if (reference / POOL).exists():
        # Files that no checkpoint needs may stay until the next snapshot.
        names = [{x.name for x in (path / POOL).glob("step-*")} for path in (run, reference)]
        if missing := names[1] - names[0]:
            raise Failed(f"the pool lacks {', '.join(sorted(missing))}")
        if (run / SELF_PLAY_FILE).read_text() != (reference / SELF_PLAY_FILE).read_text():
            raise Failed("self_play.json differs")


def has_begun(run: Path) -> bool:
    """Return whether a killed training had stored its configuration."""
    return (run / "config.json").exists()


def finish(forks: Forks, run: Path, reference: Path, **options: Any) -> str | None:
    """Resume a run and check that it ends like an undisturbed one.

    Returns:
        A note if there was no run to resume yet.

    Raises:
        Failed: It does not.
    """
    result = forks.run("resume", run, **options)
    if not has_begun(run):
        check_error_message(result)
        return "killed before it was a run"
    check_success(result, "resume")
    check_same_run(run, reference)
    return None


def check_accounting(run: Path) -> dict[str, Any]:
    """Check that every transition is counted once; return the accounting of the run.

    Raises:
        Failed: Some are missing.
    """
    accounting = json.loads((run / "accounting.json").read_text())
    if (
        accounting["collected"]
        != accounting["trained"] + sum(accounting["dropped"].values()) + accounting["in_flight"]
    ):
        raise Failed(f"{accounting['collected']} collected, but {accounting}")
    return accounting


# --- running processes ----------------------------------------------------------------------------


def wait_until(condition: Callable[[], Any], timeout_s: float = LONG_S) -> Any:
    """Poll until the condition is true and return its value, or None after a timeout."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.003)
    return None


def is_alive(pid: int) -> bool:
    """Return whether a process has not ended."""
    with contextlib.suppress(OSError):
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return state not in "ZX"
    return False


def num_lines(run: Path) -> int:
    """Return the number of iterations in a run's metrics."""
    with contextlib.suppress(OSError):
        return (run / "metrics.jsonl").read_bytes().count(b"\n")
    return 0


def wait_for_lines(pid: int, run: Path, number: int) -> bool:
    """Wait for this number of iterations; return False if the process ended before."""
    wait_until(lambda: num_lines(run) >= number or not is_alive(pid))
    return is_alive(pid)


def workers_of(pid: int) -> list[int]:
    """Return the process IDs of a learner's living workers."""
    return _children_of(pid, _WORKER)


def inference_of(pid: int) -> list[int]:
    """Return the process ID of a learner's inference process, if it lives."""
    return _children_of(pid, _INFERENCE)


def _children_of(pid: int, program: bytes) -> list[int]:
    pids = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, path.read_text().split()):
                if program in Path(f"/proc/{child}/cmdline").read_bytes():
                    pids += [child] if is_alive(child) else []
    return sorted(pids)


def send(pid: int, signal_number: int) -> bool:
    """Send a signal; return False if there is no such process."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal_number)
        return True
    return False


def kill(pid: int) -> bool:
    """Kill a process; return False if it has ended."""
    return send(pid, signal.SIGKILL)


def check_ended(pids: Iterable[int], timeout_s: float = 5.0) -> None:
    """Check that processes end.

    Raises:
        Failed: Some do not.
    """
    pids = list(pids)
    wait_until(lambda: not any(map(is_alive, pids)), timeout_s)
    living = [pid for pid in pids if is_alive(pid)]
    for pid in living:
        kill(pid)
    if living:
        raise Failed(f"{len(living)} of {len(pids)} processes were left behind")
