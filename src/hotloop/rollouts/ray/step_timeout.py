"""A timeout that ends a process whose step takes too long, even if no thread can interrupt it."""

from __future__ import annotations

import faulthandler
import math
import time

# The timer restarts only after this share of the time limit, so that most steps cost nothing.
_SHARE = 0.1


class StepTimeout:
    """Ends this process if a step of its environments takes too long.

    The timeout runs in a thread of the interpreter that needs no GIL. So it also ends a library
    that hangs while holding the GIL, and it writes the traceback to the actor's log.

    Args:
        timeout_s: Time limit for stepping all environments of the process. None: no limit.
    """

    def __init__(self, timeout_s: float | None) -> None:
        self._timeout_s = math.inf if timeout_s is None else timeout_s
        self._armed_at_s = -math.inf

    def on_step_start(self) -> None:
        """Start the timer for a step, unless it was started recently. It runs until `stop`."""
        now = time.monotonic()
        if now - self._armed_at_s > _SHARE * self._timeout_s:
            faulthandler.dump_traceback_later((1 + _SHARE) * self._timeout_s, exit=True)
            self._armed_at_s = now

    def stop(self) -> None:
        """Stop the timer."""
        if self._armed_at_s != -math.inf:
            faulthandler.cancel_dump_traceback_later()
            self._armed_at_s = -math.inf
