"""Closing of environments with a time limit, since the user's code may raise or hang."""

from __future__ import annotations

import signal
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

CLOSE_S = 10.0
"""Time limit for closing all environments of a training, in seconds."""
_REPEAT_S = 1.0


class _CloseTimeout(BaseException):
    """Raised inside an environment's `close`. No `except Exception` catches it."""


@contextmanager
def closing_environments() -> Iterator[list[Any]]:
    """Yield an empty list, and close the environments in it when the body returns or raises.

    An error, or more than `CLOSE_S` seconds, causes a warning. Only the main thread can be
    interrupted. In other threads there is no limit.
    """
    envs: list[Any] = []
    try:
        yield envs
    finally:
        problem = None
        try:
            with _limit(CLOSE_S):
                close_all(envs)
        except _CloseTimeout:
            problem = f"took longer than {CLOSE_S:g} s: some of them may not be closed"
        except (Exception, SystemExit) as error:
            problem = f"raised {error!r}"
        if problem is not None:
            warnings.warn(f"closing the environments {problem}", stacklevel=3)


@contextmanager
def _limit(limit_s: float) -> Iterator[None]:
    """Raise `_CloseTimeout` in the body after `limit_s`, repeatedly in case the body catches it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    is_over = False

    def interrupt(_number: int, _frame: object) -> None:
        if not is_over:
            raise _CloseTimeout

    start_s = time.monotonic()
    old_handler = signal.signal(signal.SIGALRM, interrupt)
    remaining_s, interval_s = signal.setitimer(signal.ITIMER_REAL, limit_s, _REPEAT_S)
    try:
        try:
            yield
        finally:
            is_over = True
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old_handler or signal.SIG_DFL)
        if remaining_s:  # restart the timer of the caller
            elapsed_s = time.monotonic() - start_s
            signal.setitimer(signal.ITIMER_REAL, max(remaining_s - elapsed_s, 1e-3), interval_s)


def close_all(envs: Sequence[Any]) -> None:
    """Close every environment, then raise the first exception of a `close`, if any."""
    first_error: BaseException | None = None
    for env in envs:
        try:
            env.close()
        except (Exception, SystemExit) as error:
            first_error = first_error or error
    if first_error is not None:
        raise first_error
