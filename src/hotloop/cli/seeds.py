"""Trainings in processes of their own, some at a time: `--seeds 1-5 --jobs 2`.

Each is a `hotloop train` whose lines are printed behind a label. The run directories lie in one, so
that `hotloop plot DIRECTORY` draws the seeds of a setting as one curve.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hotloop.cli import tell
from hotloop.cli.planned import Plan, Planned
from hotloop.cli.runs import show
from hotloop.errors import RunDirectoryError
from hotloop.runs.directory import default_name
from hotloop.system.crowding import CROWDED, JOBS
from hotloop.system.signals import Ended, end_once

_LOOK_S = 0.1


def train(
    algorithm: str, args: list[str], directory: Path, *, plan: Plan, jobs: int, lanes: bool
) -> int:
    """Train all that is planned, in processes of their own.

    Args:
        algorithm: as the command line names it.
        args: options of each.
        directory: where the run directories are made.
        plan: which trainings.
        jobs: processes that run at once.
        lanes: whether those of a process are trained together; else each has one of its own.

    Returns:
        The exit code: the first that is not 0.

    Raises:
        RunDirectoryError: a training has a directory there already.
    """
    planned = plan.each()
    paths = paths_of(planned, directory)
    command = [sys.executable, "-m", "hotloop", "train", algorithm, *args]
    if lanes:
        parts = plan.split(jobs)
        own = {
            f"lanes {_numbers(part, planned)}": [
                *part.arguments(),
                "--lanes=on",
                "--jobs=1",
                f"--run-dir={directory}",
            ]
            for part in parts
        }
        told = f"lanes in {len(parts)} processes"
    else:
        own = {one.label: [*one.options, f"--run-dir={paths[one]}"] for one in planned}
        told = f"{min(jobs, len(planned))} at a time"
    print(f"{counted(planned)}, {told}, in {directory}", flush=True)
    codes, number = _run({label: [*command, *args] for label, args in own.items()}, jobs)
    conclude(list(paths.values()), directory)
    if number is not None:
        stopped = [label for label in own if codes.get(label) != 0]
        tell(f"interrupted: {_listed(stopped)} not finished; `hotloop resume` goes on with a run")
        return 128 + number
    failed = {label: code for label, code in codes.items() if code}
    for label, code in failed.items():
        tell(f"{label} ended with {code}: see its lines above")
    return next(iter(failed.values()), 0)


def _numbers(part: Plan, planned: Sequence[Planned]) -> str:
    """Return which of all trainings these are: `1-4`."""
    numbers = [planned.index(one) + 1 for one in part.each()]
    if numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"{numbers[0]}-{numbers[-1]}" if len(numbers) > 1 else str(numbers[0])
    return ",".join(map(str, numbers))


def _listed(labels: Sequence[str]) -> str:
    """Return them with a verb: `seeds 1, 2 are`, where they are seeds alone."""
    if all(label.startswith("seed ") for label in labels) and len(labels) > 1:
        return f"seeds {', '.join(label.removeprefix('seed ') for label in labels)} are"
    return f"{', '.join(labels)} {'are' if len(labels) > 1 else 'is'}"


def counted(planned: Sequence[Planned]) -> str:
    """Return how many trainings there are, in words."""
    seeds = {one.options[-1] for one in planned}
    settings = len(planned) // len(seeds)
    told = f"{len(seeds)} seed{'s' * (len(seeds) > 1)}"
    return told if settings == 1 else f"{settings} settings × {told}"


def paths_of(planned: Sequence[Planned], directory: Path) -> dict[Planned, Path]:
    """Return where each training is written.

    Raises:
        RunDirectoryError: one has a directory there already.
    """
    paths = {one: directory / one.name for one in planned}
    for one, path in paths.items():
        if path.exists():
            raise RunDirectoryError(
                f"{path} is there already, and no run is written over: leave {one.label} out, or "
                "name another --run-dir"
            )
    return paths


def conclude(paths: Sequence[Path], directory: Path) -> None:
    """List the runs that there are, and tell what to do next."""
    made = [path for path in paths if (path / "config.json").exists()]
    if made:
        print()
        show(made, directory)
        print(f"next: hotloop plot {shlex.quote(str(directory))}")


def _run(commands: Mapping[str, list[str]], jobs: int) -> tuple[dict[str, int], int | None]:
    """Run commands, some at a time; return exit codes by label, and the signal that has come."""
    codes: dict[str, int] = {}
    at_once = min(jobs, len(commands))
    with end_once() as ending:
        running: dict[str, _Child] = {}
        left = list(commands)
        try:
            while left or running:
                while left and len(running) < jobs:
                    label = left.pop(0)
                    running[label] = _Child(commands[label], label, at_once)
                time.sleep(_LOOK_S)
                _collect(running, codes)
                ending.check()
        except Ended as ended:
            for child in running.values():
                child.end(ended.exit_code - 128)
            while running:
                time.sleep(_LOOK_S)
                _collect(running, codes)
        finally:
            for child in running.values():  # after an error here
                child.kill()
    return codes, ending.number


def directory_of(config: Any, name: str) -> Path:
    """Return where the runs lie."""
    if config.run_dir is not None:
        return Path(config.run_dir)
    first = Path(config.runs_dir) / default_name(config.env_id, name, "seeds")
    path, count = first, 1
    while path.exists():
        count += 1
        path = first.with_name(f"{first.name}-{count}")
    return path


class _Child:
    """A training in a process of its own, whose lines are printed behind a label."""

    def __init__(self, command: list[str], label: str, at_once: int) -> None:
        # A terminal's Ctrl-C reaches this process alone, which hands it on.
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
            },
            start_new_session=True,
        )
        self._printers = [
            threading.Thread(target=print_from, args=(label,), daemon=True)
            for print_from in (self._print_progress, self._print_errors)
        ]
        for printer in self._printers:
            printer.start()

    def _print_progress(self, label: str) -> None:
        """Print the lines up to the first empty one: the timing that follows is in the run.

        Of what follows, that the cores are too few is said.
        """
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
        """Return it once all was printed; None before that."""
        code = self._process.poll()
        if code is None:
            return None
        for printer in self._printers:
            printer.join(timeout=5.0)
        return code if code >= 0 else 128 - code

    def end(self, number: int) -> None:
        """Hand a signal on."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()
        self._process.wait()


def _collect(running: dict[str, _Child], codes: dict[str, int]) -> None:
    """Take those that have ended from `running`, and keep their exit codes."""
    for label, child in list(running.items()):
        code = child.exit_code()
        if code is not None:
            codes[label] = code
            del running[label]
