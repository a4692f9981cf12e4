"""Trainings of several seeds by one command, some at a time: `--seeds 1-5 --jobs 2`.

Each is a process of its own, `hotloop train` with its seed, whose lines are printed behind the
seed. Their run directories lie in one, so that `hotloop plot DIRECTORY` draws them as one curve.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from hotloop.cli import tell
from hotloop.cli.runs import show
from hotloop.errors import ConfigError, RunDirectoryError, shortened
from hotloop.runs.directory import default_name
from hotloop.system.cores import available_cores
from hotloop.system.crowding import CROWDED, JOBS
from hotloop.system.signals import Ended, end_once

_PART = re.compile(r"([0-9]+)(?:-([0-9]+))?")
_MOST, _DIGITS = 1_000, 19
_LOOK_S = 0.1


def parse_seeds(text: str) -> list[int]:
    """Return the seeds that `1-5` or `1,3,7-9` names.

    Raises:
        ConfigError: it names none, one twice, or too many.
    """
    example = "write `1-5`, or `1,3,7-9`"
    seeds: list[int] = []
    for part in text.split(","):
        match = _PART.fullmatch(part.strip())
        if match is None:
            raise ConfigError(f"`--seeds` must be numbers and ranges, got '{text}': {example}")
        ends = [number.lstrip("0") or "0" for number in (match[1], match[2] or match[1])]
        if any(len(number) > _DIGITS or int(number) >= 2**63 for number in ends):
            raise ConfigError(
                f"`--seeds` must be below 2⁶³, got '{shortened(part, 50)}': {example}"
            )
        first, last = map(int, ends)
        if last < first:
            raise ConfigError(
                f"`--seeds` must name ranges from the smaller number to the larger, got '{part}' "
                f"in '{text}': {example}"
            )
        if len(seeds) + last - first >= _MOST:
            raise ConfigError(f"`--seeds` must be at most {_MOST:,}, got more in '{text}'")
        seeds += range(first, last + 1)
    for seed in seeds:
        if seeds.count(seed) > 1:
            raise ConfigError(f"`--seeds` names {seed} twice in '{text}': name each once")
    return seeds


def parse_jobs(text: str | None, config: Any) -> int:
    """Return how many trainings run at once; by default one for each core that a training takes.

    Args:
        text: what was given; None for nothing.
        config: of the trainings.

    Raises:
        ConfigError: it is no number above 0.
    """
    if text is None:
        takes = available_cores()
        if isinstance(config.workers, int):
            takes = 1 + config.workers + (config.inference != "worker")
        return max(1, available_cores() // takes)
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(f"`--jobs` must be how many trainings run at once, got '{text}'")
    return int(text)


def train(
    algorithm: str, args: list[str], config: Any, *, name: str, seeds: list[int], jobs: int
) -> int:
    """Train with each seed.

    Args:
        algorithm: as the command line names it.
        args: options of each.
        config: what the options come to.
        name: of the algorithm, for the directory's.
        seeds: one training each.
        jobs: trainings that run at once.

    Returns:
        The exit code: the first that is not 0.

    Raises:
        RunDirectoryError: a seed has a directory there already.
    """
    directory = _directory(config, name)
    paths = {seed: directory / f"seed_{seed}" for seed in seeds}
    for seed, path in paths.items():
        if path.exists():
            raise RunDirectoryError(
                f"{path} is there already, and no run is written over: leave seed {seed} out, or "
                "name another --run-dir"
            )
    print(
        f"{len(seeds)} seed{'s' * (len(seeds) > 1)}, {min(jobs, len(seeds))} at a time, in "
        f"{directory}",
        flush=True,
    )
    at_once = min(jobs, len(seeds))
    command = [sys.executable, "-m", "hotloop", "train", algorithm, *args]
    codes: dict[int, int] = {}
    with end_once() as ending:
        running: dict[int, _Child] = {}
        left = list(seeds)
        try:
            while left or running:
                while left and len(running) < jobs:
                    seed = left.pop(0)
                    own = ["--seed", str(seed), "--run-dir", str(paths[seed])]
                    running[seed] = _Child([*command, *own], f"seed {seed}", at_once)
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
    made = [path for path in paths.values() if (path / "config.json").exists()]
    if made:
        print()
        show(made, directory)
        print(f"next: hotloop plot {shlex.quote(str(directory))}")
    if ending.number is not None:
        stopped = [str(seed) for seed in seeds if codes.get(seed) != 0]
        tell(f"interrupted: seeds {', '.join(stopped)} are not finished; `hotloop resume` goes on")
        return 128 + ending.number
    failed = {seed: code for seed, code in codes.items() if code}
    for seed, code in failed.items():
        tell(f"seed {seed} ended with {code}: see its lines above")
    return next(iter(failed.values()), 0)


def _directory(config: Any, name: str) -> Path:
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


def _collect(running: dict[int, _Child], codes: dict[int, int]) -> None:
    """Take those that have ended from `running`, and keep their exit codes."""
    for seed, child in list(running.items()):
        code = child.exit_code()
        if code is not None:
            codes[seed] = code
            del running[seed]
