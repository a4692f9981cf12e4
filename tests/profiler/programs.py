"""Runs small programs, recorded, in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

from hotloop.profiler.session import Session
from hotloop.profiler.session.reading import read

TIMEOUT_S = 120


def environment(**more: str) -> dict[str, str]:
    """Without what this process's own surroundings may say of profiles."""
    env = {name: text for name, text in os.environ.items() if name != "HOTLOOP_PROFILE"}
    env["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    return env | more


def run(command: list[str], cwd: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a program to its end."""
    return subprocess.run(
        command,
        cwd=cwd,
        env=environment(**more),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def write(directory: Path, text: str, name: str = "script.py") -> Path:
    """A script; its indentation is that of its first line."""
    path = directory / name
    path.write_text(dedent(text).lstrip("\n"))
    return path


def record(
    directory: Path,
    *target: str,
    interval_s: float = 0.01,
    hooks: bool = True,
    gpu_window_s: float = 0.0,
    **more: str,
) -> tuple[subprocess.CompletedProcess[str], Session]:
    """Run a target of `hotloop profile` in a directory; its profile goes to `profile` in it."""
    profile = directory / "profile"
    settings = {
        "directory": str(profile),
        "interval_s": interval_s,
        "hooks": hooks,
        "gpu_window_s": gpu_window_s,
    }
    command = [
        sys.executable,
        "-m",
        "hotloop.profiler.collect.script",
        json.dumps(settings),
        *target,
    ]
    done = run(command, directory, **more)
    return done, read(profile)


def spans(session: Session, name: str) -> set[tuple[str, ...]]:
    """All paths of a process's spans."""
    (process,) = [one for one in session.processes if one.name == name]
    return {path for path, _ in process.tree.walk()}
