"""Code locations at which the tasks of an idle event loop wait.

A thread that runs an event loop is in one system call while nothing is ready, whatever its tasks
wait for. The coroutines contain the code locations. Tasks that wait for another one (a queue, a
lock, a task) are skipped, because the other task determines how long they wait. One of the
remaining tasks is chosen at random, so that each gets its share of the samples.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from types import CodeType
from typing import Any, NamedTuple

# Limits on the tasks that are inspected, and on those among which they are searched. A program may
# have a hundred thousand, and cannot run meanwhile.
_MAX_TASKS, _MAX_LISTED = 64, 512
_MAX_DEPTH = 64
# Files in which a task waits for another task.
_TASK_WAIT_FILES = ("/asyncio/queues.py", "/asyncio/locks.py")
_LOOP_FILE = "/asyncio/base_events.py"
_rng = random.Random(0)


class AwaitedTask(NamedTuple):
    """Code location at which a task waits.

    Attributes:
        codes, lines: code objects and line numbers, innermost first.
        wait: "sleep", "network" or "events".
    """

    codes: list[CodeType]
    lines: list[int]
    wait: str


def runs_event_loop(codes: Sequence[CodeType]) -> bool:
    """Return whether an event loop is among a thread's innermost functions."""
    return any(code.co_filename.endswith(_LOOP_FILE) for code in codes[:8])


def pick_awaited_task(codes: Sequence[CodeType], thread: int) -> AwaitedTask | None:
    """Return a task that an event loop waits for; None if there is no loop or no such task.

    Args:
        codes: code objects of the thread, innermost first.
        thread: Python's identifier of the thread.
    """
    tasks = sys.modules.get("asyncio.tasks")
    if tasks is None or not runs_event_loop(codes):
        return None
    try:
        waits = [_inspect_task(task) for task in islice(_pending_tasks(tasks, thread), _MAX_TASKS)]
    except Exception:  # another Python version, a set that has just changed, a program's own object
        return None
    active = [wait for wait in waits if wait is not None]
    return _rng.choice(active) if active else None


def _pending_tasks(tasks: Any, thread: int) -> Iterator[Any]:
    """Yield tasks of the event loop that runs in a thread."""
    all_tasks = getattr(tasks, "_scheduled_tasks", None) or getattr(tasks, "_all_tasks", ())
    for task in list(islice(all_tasks, _MAX_LISTED)):
        if not task.done() and getattr(task.get_loop(), "_thread_id", thread) == thread:
            yield task


def _inspect_task(task: Any) -> AwaitedTask | None:
    """Return the location of a task; None if it waits for another task, or does not wait."""
    codes: list[CodeType] = []
    lines: list[int] = []
    coroutine: Any = task.get_coro()
    while coroutine is not None and len(codes) < _MAX_DEPTH:
        frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "gi_frame", None)
        if frame is None:
            break
        codes.append(frame.f_code)
        lines.append(frame.f_lineno or 0)
        coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "gi_yieldfrom", None)
    if not codes:
        return None
    innermost, waiter = codes[-1], task._fut_waiter
    if waiter is None or innermost.co_filename.endswith(_TASK_WAIT_FILES):
        return None
    if hasattr(waiter, "get_coro") or hasattr(waiter, "_children"):
        return None  # another task, or several
    is_sleep = innermost.co_name == "sleep"
    is_stream = innermost.co_filename.endswith(("/asyncio/streams.py", "selector_events.py"))
    wait = "sleep" if is_sleep else "network" if is_stream else "events"
    return AwaitedTask(codes[::-1], lines[::-1], wait)
