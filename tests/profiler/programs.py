"""Functions that run and record small programs in separate processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

from hotloop.base.children import python_command
from hotloop.profiler.session import Session
from hotloop.profiler.session.reading import read
from tests.attempts import Attempt, attempts

TIMEOUT_S = 240


def environment(**variables: str) -> dict[str, str]:
    """Return the environment variables without the settings of an enclosing profile."""
    inherited = ("HOTLOOP_PROFILE", "HOTLOOP_START")
    env = {name: text for name, text in os.environ.items() if name not in inherited}
    env["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    return env | variables


def run(command: list[str], cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a program until it ends."""
    return subprocess.run(
        command,
        cwd=cwd,
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def write(directory: Path, text: str, name: str = "script.py") -> Path:
    """Write a script, dedented by the indentation of its first line."""
    path = directory / name
    path.write_text(dedent(text).lstrip("\n"))
    return path


def record(
    directory: Path,
    *target: str,
    interval_s: float = 0.01,
    hooks: bool = True,
    gpu_window_s: float = 0.0,
    name: str = "profile",
    **variables: str,
) -> tuple[subprocess.CompletedProcess[str], Session]:
    """Run a target of `hotloop profile` in a directory and read its profile there."""
    profile = directory / name
    settings = {
        "directory": str(profile),
        "interval_s": interval_s,
        "hooks": hooks,
        "gpu_window_s": gpu_window_s,
    }
    command = python_command("hotloop.profiler.collect.script", json.dumps(settings), *target)
    result = run(command, directory, **variables)
    return result, read(profile)


def recordings(
    directory: Path, *target: str, **options: Any
) -> Iterator[tuple[subprocess.CompletedProcess[str], Session, Attempt]]:
    """Record a target until the assertions about its times hold, like `attempts`."""

    def measure(number: int) -> tuple[subprocess.CompletedProcess[str], Session]:
        return record(directory, *target, name=f"profile-{number}", **options)

    for (result, session), attempt in attempts(measure):
        yield result, session, attempt


def spans(session: Session, name: str) -> set[tuple[str, ...]]:
    """Return all paths of a process's spans."""
    (process,) = [process for process in session.processes if process.name == name]
    return {path for path, _ in process.tree.walk()}
