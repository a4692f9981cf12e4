"""Commands one after the other in one process, and what each of them said."""

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
    """A command hung; no `except Exception` is to catch it."""


def run_all(commands: list[list[str]], told: str) -> int:
    """Run commands; write a list of [exit code, standard output, standard error] to `told`.

    An exit code of None is a command that took too long.
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
        # Also if the next one brings the process down.
        Path(told).write_text(json.dumps(results))
    return 0
