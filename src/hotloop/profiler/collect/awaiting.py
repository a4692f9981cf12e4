"""Waits of an idle event loop: the places in code at which its tasks stand.

A thread that runs an event loop is in one call of the kernel while nothing is ready, whatever
its tasks wait for. Their coroutines say where they stand. Those that wait for another one (a queue,
a lock, a task) are passed over: what they wait for is what another task does. Of several that are
left one is taken at random, so that each has its share.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from types import CodeType
from typing import Any, NamedTuple

# Of more tasks than these, some are looked at.
_MAX_TASKS = 64
_MAX_DEPTH = 64
# Where a task stands that waits for another one.
_PASSIVE = ("/asyncio/queues.py", "/asyncio/locks.py")
_LOOP = "/asyncio/base_events.py"
_chance = random.Random(0)


class Awaited(NamedTuple):
    """Where a task stands.

    Attributes:
        codes, lines: from the innermost out.
        wait: what it is: "sleep", "network" or "events".
    """

    codes: list[CodeType]
    lines: list[int]
    wait: str


def runs_loop(codes: Sequence[CodeType]) -> bool:
    """Whether a thread's innermost functions are an event loop's."""
    return any(code.co_filename.endswith(_LOOP) for code in codes[:8])


def what_is_awaited(codes: Sequence[CodeType]) -> Awaited | None:
    """Where a task stands for which an event loop waits; None: no loop does, or nothing is known.

    Args:
        codes: of the thread, from the innermost out.
    """
    tasks = sys.modules.get("asyncio.tasks")
    if tasks is None or not runs_loop(codes):
        return None
    try:
        found = [_standing(task) for task in _all_tasks(tasks)[:_MAX_TASKS]]
    except (AttributeError, RuntimeError):  # of another version, or a set that has just changed
        return None
    active = [one for one in found if one is not None]
    return _chance.choice(active) if active else None


def _all_tasks(tasks: Any) -> list[Any]:
    """Those of all loops that are not done."""
    known = list(getattr(tasks, "_scheduled_tasks", None) or getattr(tasks, "_all_tasks", ()))
    return [task for task in known if not task.done()]


def _standing(task: Any) -> Awaited | None:
    """Where a task stands; None where it waits for another one, or for nobody."""
    codes: list[CodeType] = []
    lines: list[int] = []
    one: Any = task.get_coro()
    while one is not None and len(codes) < _MAX_DEPTH:
        frame = getattr(one, "cr_frame", None) or getattr(one, "gi_frame", None)
        if frame is None:
            break
        codes.append(frame.f_code)
        lines.append(frame.f_lineno or 0)
        one = getattr(one, "cr_await", None) or getattr(one, "gi_yieldfrom", None)
    if not codes:
        return None
    innermost, waiter = codes[-1], task._fut_waiter
    if waiter is None or innermost.co_filename.endswith(_PASSIVE):
        return None
    if hasattr(waiter, "get_coro") or hasattr(waiter, "_children"):
        return None  # another task, or several
    is_sleep = innermost.co_name == "sleep"
    is_stream = innermost.co_filename.endswith(("/asyncio/streams.py", "selector_events.py"))
    wait = "sleep" if is_sleep else "network" if is_stream else "events"
    return Awaited(codes[::-1], lines[::-1], wait)
