"""Trials: how many, where, how they are counted, and what it means that one ended well."""

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

from tests.faults.forks import Ended, Forks

SEED = int(os.environ.get("HOTLOOP_FAULTS_SEED", "1"))
SCALE = float(os.environ.get("HOTLOOP_FAULTS_SCALE", "1"))
JOBS = len(os.sched_getaffinity(0))
LONG_S = 60.0
# That a worker and the inference process run.
_PROGRAM, _INFERENCE = b"hotloop.rollouts.workers.worker", b"hotloop.rollouts.inference.program"

Place = TypeVar("Place")

_SMALL = ["--num-envs", "4", "--hidden-sizes", "16", "--execution", "eager", "--seed", "1"]
PPO = ["train", "ppo", *_SMALL, "--num-steps", "32", "--update-epochs", "2"]
PPO += ["--num-minibatches", "2"]
APPO = ["train", "appo", *PPO[2:]]
CARTPOLE = [*PPO, "--env-id", "CartPole-v1"]
SAC = ["train", "sac", *_SMALL, "--learning-starts", "64", "--batch-size", "32"]
SAC += ["--buffer-size", "1000", "--update-to-data", "0.1"]
PENDULUM = [*SAC, "--env-id", "Pendulum-v1"]

# Trainings of which each has many checkpoints.
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
    "workers": [
        *(*CARTPOLE, "--total-timesteps", "1024", "--checkpoint-interval", "128"),
        *("--workers", "2"),
    ],
}


class Failed(Exception):
    """A trial that did not end well, in one line."""


def times(number: int) -> int:
    """How many trials, where `number` are usual."""
    return max(1, round(number * SCALE))


def chooser(what: str) -> random.Random:
    """What chooses the places of a group of trials: the same ones for the same seed."""
    return random.Random(f"{SEED} {what}")


class Tally:
    """Counts the trials of one group.

    Args:
        what: is tried, in a few words.
    """

    def __init__(self, what: str) -> None:
        self.what = what
        self.num_trials = 0
        self.notes: Counter[str] = Counter()
        self.failures: list[str] = []
        self._lock = threading.Lock()

    @property
    def num_well(self) -> int:
        """How many ended well."""
        return self.num_trials - len(self.failures)

    def run(
        self, trial: Callable[[Place], str | None], places: Iterable[Place], jobs: int = JOBS
    ) -> None:
        """Make a trial at each place, some at a time, and count them.

        Args:
            trial: makes one, and returns a word where it ended well, but in another way than most.
            places: where.
            jobs: how many at a time.

        Raises:
            AssertionError: not all ended well.
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

        with ThreadPoolExecutor(jobs) as pool:
            list(pool.map(attempt, places))
        self.check()

    def check(self) -> None:
        """Raise an AssertionError where not all ended well."""
        told = "\n".join(f"  {failure}" for failure in self.failures[:25])
        assert not self.failures, f"{len(self.failures)} of {self.num_trials} trials:\n{told}"


# --- what a process says --------------------------------------------------------------------------

_BUG = re.compile(r"Traceback \(most recent|--debug shows the traceback|panicked at|Fatal Python")


def said_in_a_sentence(ended: Ended) -> None:
    """Check that a process failed as it should: no traceback, a sentence, exit code 1 or 2.

    Raises:
        Failed: it did not.
    """
    errors = [x for x in ended.err.splitlines() if x.startswith("hotloop: ")]
    errors = [x for x in errors if not x.startswith("hotloop: warning: ")]
    if ended.code not in (1, 2) or _BUG.search(ended.err) or not errors:
        raise Failed(f"no sentence, {ended.told}")
    if len(ended.err) > 6000:
        raise Failed(f"{len(ended.err)} characters on standard error")


def succeeded(ended: Ended, what: str) -> None:
    """Check that a process did what it was to do, in silence or in sentences.

    Raises:
        Failed: it did not.
    """
    if ended.code != 0 or _BUG.search(ended.err):
        raise Failed(f"{what}: {ended.told}")


# --- what a run is --------------------------------------------------------------------------------


def metrics(run: Path) -> list[dict[str, Any]]:
    """The lines of a run's metrics, without its times."""
    lines = [json.loads(x) for x in (run / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if not k.endswith("_s")} for line in lines]


def is_same(run: Path, reference: Path) -> None:
    """Check that a run has the last checkpoint and the metrics of another one, bit for bit.

    Raises:
        Failed: something differs.
    """
    for name in ("policy", "learner"):
        ours, theirs = (
            load_file(x / "checkpoints" / "last" / f"{name}.safetensors") for x in (run, reference)
        )
        different = [x for x in theirs if x not in ours or ours[x].tobytes() != theirs[x].tobytes()]
        if different or ours.keys() != theirs.keys():
            raise Failed(f"{name}.safetensors differs in {', '.join(different)}")
    if metrics(run) != metrics(reference):
        raise Failed("metrics.jsonl differs")


def has_begun(run: Path) -> bool:
    """Whether a killed training had come to be a run."""
    return (run / "config.json").exists()


def finish(forks: Forks, run: Path, reference: Path, **options: Any) -> str | None:
    """Resume a run and check that it ends as if nothing had happened.

    Returns:
        A note where there was nothing to be resumed yet.

    Raises:
        Failed: it does not.
    """
    ended = forks.run("resume", run, **options)
    if not has_begun(run):
        said_in_a_sentence(ended)
        return "killed before it was a run"
    succeeded(ended, "resume")
    is_same(run, reference)
    return None


def is_accounted_for(run: Path) -> dict[str, Any]:
    """Check that every transition is counted once; return what is told of the run.

    Raises:
        Failed: some are missing.
    """
    told = json.loads((run / "accounting.json").read_text())
    if told["collected"] != told["trained"] + sum(told["dropped"].values()) + told["in_flight"]:
        raise Failed(f"{told['collected']} collected, but {told}")
    return told


# --- what happens meanwhile -----------------------------------------------------------------------


def wait_until(condition: Callable[[], Any], timeout_s: float = LONG_S) -> Any:
    """Look again and again until something is true, and return it; None: it took too long."""
    until = time.monotonic() + timeout_s
    while time.monotonic() < until:
        found = condition()
        if found:
            return found
        time.sleep(0.003)
    return None


def is_alive(pid: int) -> bool:
    """Whether a process has not ended."""
    with contextlib.suppress(OSError):
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return state not in "ZX"
    return False


def num_lines(run: Path) -> int:
    """How many iterations a run has told of."""
    with contextlib.suppress(OSError):
        return (run / "metrics.jsonl").read_bytes().count(b"\n")
    return 0


def wait_for_lines(pid: int, run: Path, number: int) -> bool:
    """Wait until a run has told of so many iterations; False: its process ended before."""
    wait_until(lambda: num_lines(run) >= number or not is_alive(pid))
    return is_alive(pid)


def workers_of(pid: int) -> list[int]:
    """The numbers of a learner's living workers."""
    return _children_of(pid, _PROGRAM)


def inference_of(pid: int) -> list[int]:
    """The number of its inference process, if that lives."""
    return _children_of(pid, _INFERENCE)


def _children_of(pid: int, program: bytes) -> list[int]:
    found = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, path.read_text().split()):
                if program in Path(f"/proc/{child}/cmdline").read_bytes():
                    found += [child] if is_alive(child) else []
    return sorted(found)


def send(pid: int, number: int) -> bool:
    """Send a signal; False: there is nobody."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
        return True
    return False


def kill(pid: int) -> bool:
    """Kill a process; False: it has ended."""
    return send(pid, signal.SIGKILL)


def left_behind(pids: Iterable[int], timeout_s: float = 5.0) -> None:
    """Check that processes end.

    Raises:
        Failed: some do not.
    """
    pids = list(pids)
    wait_until(lambda: not any(map(is_alive, pids)), timeout_s)
    left = [pid for pid in pids if is_alive(pid)]
    for pid in left:
        kill(pid)
    if left:
        raise Failed(f"{len(left)} of {len(pids)} processes were left behind")
