"""Run `hotloop` in this process and send it signals."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hotloop.cli import main

TIMEOUT_S = 200.0


def run(capsys: Any, *args: Any) -> tuple[Any, str, str]:
    """Return the exit code, standard output and standard error of a command."""
    try:
        code: Any = main([str(arg) for arg in args])
    except SystemExit as stop:  # argument parsers exit
        code = stop.code
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def has_learned(run_dir: Path) -> bool:
    """Return whether a run has written some metrics."""
    path = run_dir / "metrics.jsonl"
    return path.exists() and path.read_text().count("\n") > 2


def timesteps(run_dir: Path) -> tuple[int, list[int]]:
    """Return the timesteps of the last checkpoint and of every line of metrics."""
    lines = (run_dir / "metrics.jsonl").read_text().splitlines()
    state = json.loads((run_dir / "checkpoints" / "last" / "state.json").read_text())
    return state["timesteps"], [json.loads(line)["timesteps"] for line in lines]


@contextlib.contextmanager
def signal_when(condition: Callable[[], bool], number: int) -> Iterator[None]:
    """Send this process a signal once a condition holds; the body must not end before that."""
    finished = threading.Event()

    def send() -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while not condition():
            if finished.is_set() or time.monotonic() > deadline:
                return
            time.sleep(0.01)
        os.kill(os.getpid(), number)

    # Tests in the background inherit ignored signals, which a training would ignore too.
    # It would leave a cluster's warning to any handler of its caller.
    is_warning = number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU)
    before = signal.signal(number, signal.SIG_DFL if is_warning else lambda *_: None)
    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        finished.set()
        thread.join()
        signal.signal(number, before)
