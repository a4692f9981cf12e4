"""The process beside a profiled program: it starts the program and stores how it ended."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from hotloop.base import documents
from hotloop.base.children import python_command
from hotloop.base.redaction import redacted
from hotloop.errors import ConfigError
from hotloop.profiler.collect.pyspy import attach
from hotloop.profiler.collect.stacks import MISSING_EXTENSION
from hotloop.timing.gpu_window import LENGTH_S

# Environment variables that change the speed of a program. No others are stored.
_SPEED = re.compile(
    r"(OMP|KMP|GOMP|MKL|OPENBLAS|BLIS|VECLIB|NUMEXPR|NUMBA)_(NUM|DYNAMIC|PROC|PLACES|WAIT|SCHEDULE|"
    r"BLOCKTIME|AFFINITY|CPU_AFFINITY|SPINCOUNT|MAXIMUM|MAX|THREAD|CBWR|DISABLE|DEBUG)\w*$|"
    r"(CUDA_VISIBLE_DEVICES|CUDA_LAUNCH_BLOCKING|PYTORCH_CUDA_ALLOC_CONF|PYTORCH_ALLOC_CONF|"
    r"XLA_FLAGS|LD_PRELOAD|MALLOC_ARENA_MAX|PYTHON(DEVMODE|ASYNCIODEBUG|MALLOC|OPTIMIZE|"
    r"TRACEMALLOC|HASHSEED))$"
)
# The output of a program whose terminal shows a live report.
OUTPUT_FILE = "output.txt"
# Signals to this process are for the program. Clusters send SIGUSR1 or 2 before they end a job.
_WARNINGS = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU)
_FORWARDED: tuple[int, ...] = (signal.SIGTERM, signal.SIGHUP, *_WARNINGS)
# The terminal sends Ctrl-C and Ctrl-\ to the program directly.
_OF_TERMINAL: tuple[int, ...] = (signal.SIGINT, signal.SIGQUIT)


def record_program(
    arguments: Sequence[str],
    directory: Path,
    *,
    interval_s: float = 0.01,
    gpu_window_s: float = LENGTH_S,
    hooks: bool = True,
    py_spy: bool = False,
    is_live: bool = False,
    what_if: bool = False,
    options: Sequence[str] = (),
) -> int:
    """Run a Python program to its end while it is recorded.

    Args:
        arguments: Python's arguments, see `program.python_arguments`.
        directory: An empty directory for the profile, see `make_directory`.
        interval_s: Time between two samples of the stacks. 0 takes none.
        gpu_window_s: Length of each recording with torch's profiler. 0 makes none.
        hooks: Whether to wrap functions of other libraries.
        py_spy: Whether py-spy samples the program too.
        is_live: Whether a live report fills the terminal. The program's output to it is then stored
            in the profile, and printed at the end.
        what_if: Whether places of the program can be delayed.
        options: The options of `hotloop profile` that a comparable profile needs.

    Returns:
        The exit code of the program, as shells report it: 128 + N after signal N.
    """
    settings = {
        "directory": str(directory),
        "interval_s": interval_s,
        # hotloop's own commands open spans themselves, without hooks.
        "hooks": hooks and [*arguments[:2]] != ["-m", "hotloop"],
        "gpu_window_s": gpu_window_s,
        "what_if": what_if,
        "parent": os.getpid(),
    }
    command = python_command("hotloop.profiler.collect.script", json.dumps(settings), *arguments)
    metadata: dict[str, Any] = {
        "command": redacted(["python", *arguments]),
        "options": [*options],
        "environment": {
            name: os.environ[name] for name in sorted(os.environ) if _SPEED.match(name)
        },
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "start_ns": time.monotonic_ns(),
    }
    _write_metadata(directory, metadata)
    spied = directory / "py-spy.txt" if py_spy else None
    code, problem = _run_command(command, spied, directory / OUTPUT_FILE if is_live else None)
    problems = [problem] if problem is not None else []
    if MISSING_EXTENSION and interval_s:
        problems.append(
            f"the profiler's C extension is not available ({MISSING_EXTENSION}): a Python thread "
            "takes the samples, which costs more and samples code that holds the GIL less often"
        )
    metadata |= {"exit_code": code, "end_ns": time.monotonic_ns()}
    _write_metadata(directory, metadata | ({"problems": problems} if problems else {}))
    return 128 - code if code < 0 else code


def print_output(directory: Path) -> None:
    """Print what a program has printed during a live report, and remove the file."""
    path = directory / OUTPUT_FILE
    with suppress(OSError):
        content = path.read_bytes()
        path.unlink()
        sys.stdout.write(content.decode("utf-8", "replace"))
        sys.stdout.flush()


def make_directory(out: str | None, name: str) -> Path:
    """Create the directory of a profile: `out`, or a new one of this name below `profiles`.

    Raises:
        ConfigError: `out` has content, or the directory can't be created.
    """
    directory = Path(out or f"profiles/{name}__{time.strftime('%Y%m%d-%H%M%S')}")
    if out and directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise ConfigError(f"`--out` must be a new or an empty directory, got {directory}")
    attempt, candidate = 1, directory
    while True:
        try:
            candidate.mkdir(parents=True, exist_ok=bool(out))
            return candidate
        except FileExistsError:
            attempt += 1
            candidate = directory.with_name(f"{directory.name}-{attempt}")
        except OSError as error:
            raise ConfigError(
                f"expected to create the directory {candidate}, got '{error.strerror}': pass "
                "another `--out`"
            ) from error


def _write_metadata(directory: Path, metadata: dict[str, Any]) -> None:
    with suppress(OSError):  # a full disk: the report names what is missing
        text = json.dumps(documents.sealed(metadata), indent=1)
        (directory / "profile.json").write_text(text, encoding="utf-8")


def _run_command(
    command: list[str], py_spy: Path | None, output: Path | None
) -> tuple[int, str | None]:
    """Run the command. Return its exit code, −N after signal N, and the error of py-spy, if any."""
    process: subprocess.Popen[Any] | None = None
    early: list[int] = []  # signals that arrived before the process existed

    def forward(number: int, _: Any) -> None:
        if process is None:
            early.append(number)
        else:
            with suppress(ProcessLookupError):
                process.send_signal(number)

    def wait(number: int, _: Any) -> None:
        """Ignore a signal. Unlike SIG_IGN, the command does not inherit this function."""

    actions = dict.fromkeys(_FORWARDED, forward) | dict.fromkeys(_OF_TERMINAL, wait)
    if threading.current_thread() is not threading.main_thread():
        actions = {}  # Python allows handlers in the main thread alone
    handlers = {number: signal.getsignal(number) for number in actions}
    # Python could not restore a handler of C, for which it returns None.
    handlers = {number: handler for number, handler in handlers.items() if handler is not None}
    with ExitStack() as exits:
        streams: dict[str, Any] = {}
        if output is not None:
            file = exits.enter_context(output.open("wb"))
            streams = {name: file for name in ("stdout", "stderr") if getattr(sys, name).isatty()}
        for number, handler in handlers.items():
            exits.callback(signal.signal, number, handler)
            if handler is not signal.SIG_IGN:  # which the command inherits, as under `nohup`
                signal.signal(number, actions[number])
        # The command inherits all descriptors, such as that of `<(...)` in a shell.
        started = subprocess.Popen(command, env={**os.environ}, close_fds=False, **streams)
        process = started
        for number in early:
            forward(number, None)
        for number in handlers.keys() & {*_FORWARDED}:  # also those that this process ignored
            signal.signal(number, forward)
        spy = attach(started.pid, py_spy) if py_spy is not None else None
        code = started.wait()
        return code, spy.stop() if spy is not None else None
