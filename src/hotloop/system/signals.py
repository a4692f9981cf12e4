"""Ctrl-C, `kill` and a closed terminal: each ends a run once, and cleanly."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

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
    """Whether a signal has asked the run to end, and what the next one does.

    Args:
        numbers: the signals that are looked after; none outside the main thread.
    """

    def __init__(self, numbers: Sequence[int] = ()) -> None:
        self.number: int | None = None
        self.numbers = numbers

    def check(self) -> None:
        """Raise `Ended` again, if what was raised in the signal's moment got lost.

        Python drops exceptions in callbacks and destructors, and a bare `except` in an environment
        catches them.
        """
        if self.number is not None:
            raise Ended(self.number)

    def ignore(self) -> None:
        """Let the signals pass from here on: what is left to do takes a second."""
        self._handle(signal.SIG_IGN)

    def obey(self) -> None:
        """Let them end the process at once from here on: there is nothing left to lose."""
        self._handle(signal.SIG_DFL)

    def _handle(self, handler: signal.Handlers) -> None:
        for number in self.numbers:
            signal.signal(number, handler)


@contextlib.contextmanager
def _handled(numbers: Sequence[int], handler: Any) -> Iterator[Callable[[], None]]:
    """Handle signals in the body; yield what gives them back to who had them before."""
    before = {number: signal.signal(number, handler) for number in numbers}

    def restore() -> None:
        for number, one in before.items():
            signal.signal(number, one)

    try:
        yield restore
    finally:
        restore()


@contextlib.contextmanager
def end_once() -> Iterator[Ending]:
    """Raise `Ended` at the first signal; let later ones pass, so that what follows can finish.

    Under `nohup` a closed terminal goes on meaning nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield Ending()
        return
    is_detached = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    ending = Ending([one for one in ENDING if one is not signal.SIGHUP or not is_detached])

    def end(number: int, _frame: object) -> None:
        ending.ignore()
        ending.number = number
        raise Ended(number)

    with _handled(ending.numbers, end):
        yield ending


class Pending:
    """Whether a signal waits to be acted on."""

    def __init__(self) -> None:
        self.arrived: list[int] = []

    @property
    def has_come(self) -> bool:
        """True from the first signal on."""
        return bool(self.arrived)


@contextlib.contextmanager
def pending_interrupt(*, is_patient: bool = False) -> Iterator[Pending]:
    """Tell the body of SIGINT, SIGTERM and SIGHUP, which are acted on when it has ended.

    The body is to look, and to end soon. Outside the main thread, where signals don't arrive, it
    does nothing.

    Args:
        is_patient: let a second signal wait too; else it is acted on at once, for where the body
            can't look.
    """
    pending = Pending()
    if threading.current_thread() is not threading.main_thread():
        yield pending
        return

    def note(number: int, _frame: object) -> None:
        pending.arrived.append(number)
        if len(pending.arrived) > 1 and not is_patient:
            restore()
            signal.raise_signal(number)

    with _handled(ENDING, note) as restore:
        yield pending
    for number in pending.arrived[:1]:
        signal.raise_signal(number)


def delayed_interrupt() -> contextlib.AbstractContextManager[Pending]:
    """Let the body finish before SIGINT, SIGTERM and SIGHUP are acted on.

    For the moments in which something is half-written.
    """
    return pending_interrupt(is_patient=True)
