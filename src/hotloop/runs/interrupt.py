"""Ctrl-C at the wrong moment."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


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
        number: signal.signal(number, lambda *args: arrived.append(args))
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    for number, _ in arrived[:1]:
        signal.raise_signal(number)
