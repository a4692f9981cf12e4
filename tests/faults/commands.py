"""Run several commands in one process and store their output."""

from __future__ import annotations

import contextlib
import io
import json
import signal
import sys
from pathlib import Path
from typing import Any

TOO_LONG_S = 40


class TookTooLong(BaseException):
    """A command hung. `except Exception` must not catch it."""


def run_all(commands: list[list[str]], path: str) -> int:
    """Run commands; write [exit code, standard output, standard error] of each to a JSON file.

    The exit code is None if a command took too long.
    """
    from hotloop.cli import main

    def interrupt(number: int, frame: Any) -> None:
        raise TookTooLong

    signal.signal(signal.SIGALRM, interrupt)
    results: list[tuple[int | None, str, str]] = []
    for command in commands:
        out, err = io.StringIO(), io.StringIO()
        code: Any = None
        sys.argv = ["hotloop", *command]
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            signal.alarm(TOO_LONG_S)
            try:
                code = main(command)
            except SystemExit as stop:
                code = stop.code
            except TookTooLong:
                pass
            except BaseException as error:
                err.write(f"Traceback (most recent call last): {type(error).__name__}: {error}\n")
                code = 1
            finally:
                signal.alarm(0)
        results.append((code, out.getvalue(), err.getvalue()))
        # Write after each command, in case the next one ends the process.
        Path(path).write_text(json.dumps(results))
    return 0
