"""Trainings in separate processes, a limited number at a time: `--seeds 1-5 --jobs 2`.

Each process is a `hotloop train` whose lines are printed after a label. All run directories are in
one directory, so that `hotloop plot DIRECTORY` draws the seeds of a setting as one curve.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hotloop.base.children import PARENT, python_command
from hotloop.base.crowding import CROWDED, JOBS
from hotloop.base.signals import Interrupted, interrupt_once, pending_interrupt, start_thread
from hotloop.base.streams import notify
from hotloop.cli.runs import print_runs
from hotloop.cli.training_plan import PlannedTraining, TrainingPlan
from hotloop.errors import RunDirectoryError
from hotloop.runs.new_directory import default_name

_POLL_INTERVAL_S = 0.1


def train(
    algorithm: str, args: list[str], directory: Path, *, plan: TrainingPlan, jobs: int, lanes: bool
) -> int:
    """Run all trainings of a plan, in separate processes.

    Args:
        algorithm: The algorithm's name on the command line.
        args: Options of all trainings.
        directory: The parent of the run directories.
        plan: The trainings.
        jobs: The number of processes that run at once.
        lanes: Whether one process trains several runs in one update. Else each run has a process.

    Returns:
        The first exit code that is not 0, else 0.

    Raises:
        RunDirectoryError: A run directory exists already.
    """
    trainings = plan.trainings()
    paths = run_paths(trainings, directory)
    command = python_command("hotloop", "train", algorithm, *args)
    if lanes:
        parts = plan.split(jobs)
        commands = {
            f"lanes {_training_numbers(part, trainings)}": [
                *part.arguments(),
                "--lanes=on",
                "--jobs=1",
                f"--run-dir={directory}",
            ]
            for part in parts
        }
        description = f"lanes in {len(parts)} processes"
    else:
        commands = {run.label: [*run.options, f"--run-dir={paths[run]}"] for run in trainings}
        description = f"{min(jobs, len(trainings))} at a time"
    print(f"{count_text(trainings)}, {description}, in {directory}", flush=True)
    codes, number = _run({label: [*command, *args] for label, args in commands.items()}, jobs)
    print_summary(list(paths.values()), directory)
    if number is not None:
        stopped = [label for label in commands if codes.get(label) != 0]
        notify(f"interrupted: {_join_labels(stopped)} not finished; continue by `hotloop resume`")
        return 128 + number
    failed = {label: code for label, code in codes.items() if code}
    for label, code in failed.items():
        notify(f"{label} failed with exit code {code}: see its lines above")
    return next(iter(failed.values()), 0)


def _training_numbers(part: TrainingPlan, trainings: Sequence[PlannedTraining]) -> str:
    """Return the positions of a part's trainings in the whole plan, such as `1-4`."""
    numbers = [trainings.index(training) + 1 for training in part.trainings()]
    if numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"{numbers[0]}-{numbers[-1]}" if len(numbers) > 1 else str(numbers[0])
    return ",".join(map(str, numbers))


def _join_labels(labels: Sequence[str]) -> str:
    """Return the labels with a verb, shortened to `seeds 1, 2 are` if all are seeds."""
    if all(label.startswith("seed ") for label in labels) and len(labels) > 1:
        return f"seeds {', '.join(label.removeprefix('seed ') for label in labels)} are"
    return f"{', '.join(labels)} {'are' if len(labels) > 1 else 'is'}"


def count_text(trainings: Sequence[PlannedTraining]) -> str:
    """Return the number of settings and seeds as text."""
    seeds = {training.options[-1] for training in trainings}
    settings = len(trainings) // len(seeds)
    text = f"{len(seeds)} seed{'s' * (len(seeds) > 1)}"
    return text if settings == 1 else f"{settings} settings × {text}"


def run_paths(trainings: Sequence[PlannedTraining], directory: Path) -> dict[PlannedTraining, Path]:
    """Return the run directory of each training.

    Raises:
        RunDirectoryError: A run directory exists already.
    """
    paths = {training: directory / training.name for training in trainings}
    for training, path in paths.items():
        if path.exists():
            raise RunDirectoryError(
                f"{path} exists already, and runs are never overwritten: remove {training.label}, "
                "or pass another --run-dir"
            )
    return paths


def print_summary(paths: Sequence[Path], directory: Path) -> None:
    """List the runs, and print the next command."""
    existing = [path for path in paths if (path / "config.json").exists()]
    if existing:
        print()
        print_runs(existing, directory)
        print(f"next: hotloop plot {shlex.quote(str(directory))}")


def _run(commands: Mapping[str, list[str]], jobs: int) -> tuple[dict[str, int], int | None]:
    """Run commands in up to `jobs` processes. Return exit codes by label, and a received signal."""
    codes: dict[str, int] = {}
    at_once = min(jobs, len(commands))
    with interrupt_once() as guard:
        running: dict[str, _Child] = {}
        waiting = list(commands)
        try:
            while waiting or running:
                while waiting and len(running) < jobs:
                    label = waiting.pop(0)
                    with pending_interrupt():  # each process that has started is in `running`
                        running[label] = _Child(commands[label], label, at_once)
                time.sleep(_POLL_INTERVAL_S)
                _collect(running, codes)
                guard.check()
        except Interrupted as interrupt:
            for child in running.values():
                child.send_signal(interrupt.exit_code - 128)
            while running:
                time.sleep(_POLL_INTERVAL_S)
                _collect(running, codes)
        finally:
            for child in running.values():  # after an exception in this process
                child.kill()
    return codes, guard.number


def output_directory(config: Any, name: str) -> Path:
    """Return the parent of the run directories, by default a new name."""
    if config.run_dir is not None:
        return Path(config.run_dir)
    base = Path(config.runs_dir) / default_name(config.env_id, name, "seeds")
    path, count = base, 1
    while path.exists():
        count += 1
        path = base.with_name(f"{base.name}-{count}")
    return path


class _Child:
    """A training in a separate process, whose lines are printed after a label."""

    def __init__(self, command: list[str], label: str, at_once: int) -> None:
        # In a new session, so that Ctrl-C only reaches this process, which forwards it.
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            env={
                **os.environ,
                "PYTHONUNBUFFERED": "1",
                "PYTHONIOENCODING": "utf-8",
                JOBS: str(at_once),
                PARENT: str(os.getpid()),
            },
            start_new_session=True,
        )
        self._printers = [
            start_thread(print_from, label)
            for print_from in (self._print_progress, self._print_errors)
        ]

    def _print_progress(self, label: str) -> None:
        """Print the lines up to the first empty one, since the run stores the timing after it."""
        # The warning about too few cores is the only later line that is printed.
        assert self._process.stdout is not None
        is_concluding = False
        for line in self._process.stdout:
            is_concluding |= not line.strip()
            if not is_concluding or line.startswith(CROWDED):
                print(f"{label} | {line}", end="", flush=True)

    def _print_errors(self, label: str) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            print(f"{label} | {line}", end="", file=sys.stderr, flush=True)

    def exit_code(self) -> int | None:
        """Return the exit code once all output is printed, else None."""
        code = self._process.poll()
        if code is None:
            return None
        for printer in self._printers:
            printer.join(timeout=5.0)
        return code if code >= 0 else 128 - code

    def send_signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


def _collect(running: dict[str, _Child], codes: dict[str, int]) -> None:
    """Move finished processes from `running` to `codes`, with their exit codes."""
    for label, child in list(running.items()):
        code = child.exit_code()
        if code is not None:
            codes[label] = code
            del running[label]
