"""Ctrl-C at the wrong moment."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Pending:
    """Whether a signal waits to be acted on."""

    def __init__(self) -> None:
        self.arrived: list[int] = []

    @property
    def has_come(self) -> bool:
        """True from the first signal on."""
        return bool(self.arrived)


@contextmanager
def pending_interrupt() -> Iterator[Pending]:
    """Tell the body of SIGINT, SIGTERM and SIGHUP, which are acted on when it has ended.

    The body is to look, and to end soon. A second signal is acted on at once, for where it can't.
    Outside the main thread, where signals don't arrive, it does nothing.
    """
    pending = Pending()
    if threading.current_thread() is not threading.main_thread():
        yield pending
        return

    def note(number: int, frame: Any) -> None:
        pending.arrived.append(number)
        if len(pending.arrived) > 1:
            restore()
            signal.raise_signal(number)

    before = {number: signal.signal(number, note) for number in _ENDING}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    try:
        yield pending
    finally:
        restore()
    for number in pending.arrived[:1]:
        signal.raise_signal(number)


@contextmanager
def delayed_interrupt() -> Iterator[None]:
    """Let the body finish before SIGINT, SIGTERM and SIGHUP are acted on.

    For the moments in which something is half-written. Outside the main thread, where signals don't
    arrive, it does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[tuple[int, Any]] = []
    before = {
        number: signal.signal(number, lambda *args: arrived.append(args)) for number in _ENDING
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    for number, _ in arrived[:1]:
        signal.raise_signal(number)
