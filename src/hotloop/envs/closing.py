"""Closing of environments: the user's code, which may raise, and may never end."""

from __future__ import annotations

import signal
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hotloop.envs.serial import close_all

CLOSE_S = 10.0
"""Seconds that a training's environments may take to close, all together."""
_AGAIN_S = 1.0


class _TooLong(BaseException):
    """Raised inside of what closes; no environment's `except Exception` catches it."""


@contextmanager
def closed_in_time() -> Iterator[list[Any]]:
    """Give the body a list; close what it has put there when it ends, whatever ended it.

    What raises or takes longer than `CLOSE_S` is told as a warning. Outside the main thread, which
    alone can be interrupted, there is no limit.
    """
    envs: list[Any] = []
    try:
        yield envs
    finally:
        problem = None
        try:
            with _limit(CLOSE_S):
                close_all(envs)
        except _TooLong:
            problem = f"took longer than {CLOSE_S:g} s: they were left as they are"
        except Exception as error:
            problem = f"raised {error!r}"
        if problem is not None:
            warnings.warn(f"closing the environments {problem}", stacklevel=3)


@contextmanager
def _limit(limit_s: float) -> Iterator[None]:
    """Raise `_TooLong` in the body after `limit_s`, again and again where it is swallowed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    is_over = False

    def interrupt(_number: int, _frame: object) -> None:
        if not is_over:
            raise _TooLong

    began_s = time.monotonic()
    before = signal.signal(signal.SIGALRM, interrupt)
    left_s, every_s = signal.setitimer(signal.ITIMER_REAL, limit_s, _AGAIN_S)
    try:
        try:
            yield
        finally:
            is_over = True
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before or signal.SIG_DFL)
        if left_s:  # somebody else's alarm
            passed_s = time.monotonic() - began_s
            signal.setitimer(signal.ITIMER_REAL, max(left_s - passed_s, 1e-3), every_s)
