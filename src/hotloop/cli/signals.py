"""Ctrl-C, `kill` and a closed terminal: each ends a run once, and cleanly."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Ended(KeyboardInterrupt):
    """A signal asked the run to end.

    Attributes:
        exit_code: 128 + the signal's number: 130 for Ctrl-C.
    """

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


class Ending:
    """Whether a signal has asked the run to end."""

    def __init__(self) -> None:
        self.number: int | None = None

    def check(self) -> None:
        """Raise `Ended` again, if what was raised in the signal's moment got lost.

        Python drops exceptions in callbacks and destructors, and a bare `except` in an environment
        catches them.
        """
        if self.number is not None:
            raise Ended(self.number)


@contextlib.contextmanager
def end_once() -> Iterator[Ending]:
    """Raise `Ended` at the first signal; let later ones pass, so that what follows can finish."""
    ending = Ending()
    if threading.current_thread() is not threading.main_thread():
        yield ending
        return

    def end(number: int, _frame: object) -> None:
        ignore()
        ending.number = number
        raise Ended(number)

    before = {number: signal.signal(number, end) for number in ENDING}
    try:
        yield ending
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def ignore() -> None:
    """Let the signals pass from here on: what is left to do takes a second."""
    if threading.current_thread() is threading.main_thread():
        for number in ENDING:
            signal.signal(number, signal.SIG_IGN)
