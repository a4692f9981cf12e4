"""An alarm that ends a process whose step takes too long, even one that no thread can interrupt."""

from __future__ import annotations

import faulthandler
import math
import time

# It is set again after this share of the time that a step may take, so that a row costs nothing.
_SHARE = 0.1


class Alarm:
    """Ends this process if a step of its environments takes too long; see `Watch`.

    It rings in a thread of the interpreter's own that needs no lock: a library that hangs and holds
    it is ended too, and what it was at goes to the actor's log.

    Args:
        longest_s: that stepping all of the process's environments may take; None: any time.
    """

    def __init__(self, longest_s: float | None) -> None:
        self._longest_s = math.inf if longest_s is None else longest_s
        self._set_s = -math.inf

    def begins(self) -> None:
        """A step begins."""
        now = time.monotonic()
        if now - self._set_s > _SHARE * self._longest_s:
            faulthandler.dump_traceback_later((1 + _SHARE) * self._longest_s, exit=True)
            self._set_s = now

    def ended(self, t: int) -> None:
        """A step has ended; the next one begins soon."""

    def rest(self) -> None:
        """Nothing is to be done."""
        if self._set_s != -math.inf:
            faulthandler.cancel_dump_traceback_later()
            self._set_s = -math.inf
