"""Times of threads by place, from what the kernel counted between two looks at them."""

from __future__ import annotations

from collections.abc import Set
from typing import Any, NamedTuple

from hotloop.system.processes import Times


class _Seen(NamedTuple):
    """A thread at a look: when, what the kernel had counted, where it was, and blocked on what."""

    at_ns: int
    times: Times | None
    key: tuple[int, int, int]
    wait: str | None


class _Row:
    """What was seen of a thread in one place: times in nanoseconds."""

    __slots__ = ("elapsed", "on_core", "queued", "samples", "waits")

    def __init__(self) -> None:
        self.samples = self.on_core = self.queued = self.elapsed = 0
        self.waits: dict[str, int] = {}

    def add(self, elapsed: int, on_core: int, queued: int, wait: str | None) -> None:
        """Add what passed between two looks, by where the thread was at the second one.

        Where it was blocked at the tick, all of it is blocked; else it is shared out as the kernel
        counted on a core and queued. Over many looks that adds up to what each place takes. Where
        it is not known, a place has what the kernel counted since the look before.
        """
        self.elapsed += elapsed
        if wait:
            self.waits[wait] = self.waits.get(wait, 0) + elapsed
        elif wait is None:
            self.on_core += on_core
            self.queued += queued
        else:
            at_work = on_core + queued
            of_queue = round(elapsed * queued / at_work) if at_work > 0 else 0
            self.queued += of_queue
            self.on_core += elapsed - of_queue

    def fields(self) -> list[Any]:
        """As they are written."""
        numbers = [self.samples, self.on_core, self.queued, self.elapsed]
        return [*numbers, self.waits] if self.waits else numbers


class Tally:
    """Counts samples by thread, path of spans and stack.

    Attributes:
        look_ns: when threads were last looked at.
        knows_times: whether the system tells when threads are on a core. Where it does not, as on
            macOS, all that passes counts as on a core: waiting is not told from computing.
    """

    def __init__(self) -> None:
        self.look_ns = 0
        self.knows_times = True
        # By thread, of the look before and of this one.
        self._last: dict[int, _Seen] = {}
        self._this: dict[int, _Seen] = {}
        self._counts: dict[tuple[int, int, int], _Row] = {}

    def begin(self, thread: int, at_ns: int, times: Times | None) -> None:
        """Have what passes until a thread's first sample count as well."""
        self._this[thread] = _Seen(at_ns, times, (0, 0, 0), None)

    def add(
        self,
        thread: int,
        path: int,
        stack: int,
        at_ns: int,
        times: Times | None,
        wait: str | None,
    ) -> None:
        """Count a sample of a thread, and what passed since the look before."""
        if at_ns != self.look_ns:
            self.look_ns, self._last, self._this = at_ns, self._this, {}
        key = thread, path, stack
        row = self._row_of(key)
        row.samples += 1
        before = self._last.get(thread)
        if before is not None:
            on_core_ns = queued_ns = 0
            if times is not None and before.times is not None:
                on_core_ns = times.on_core_ns - before.times.on_core_ns
                queued_ns = times.queued_ns - before.times.queued_ns
            elif not self.knows_times:
                on_core_ns = at_ns - before.at_ns
            row.add(at_ns - before.at_ns, on_core_ns, queued_ns, wait)
        self._this[thread] = _Seen(at_ns, times, key, wait)

    def add_idle(self, until_ns: int, ticks: int) -> None:
        """Until then all threads were where they were at the look before."""
        if not ticks:
            return
        for thread, seen in self._this.items():
            row = self._row_of(seen.key)
            row.samples += ticks
            # It has not run: at the look it was about to be blocked, or was.
            row.add(until_ns - seen.at_ns, 0, 0, seen.wait or None)
            self._this[thread] = seen._replace(at_ns=until_ns)

    def threads(self) -> Set[int]:
        """Those of the last look."""
        return self._this.keys()

    def at_work(self) -> list[int]:
        """Threads that were at work between the last two looks."""
        found: list[int] = []
        for thread, after in self._this.items():
            before = self._last.get(thread)
            if before is None or before.times is None or after.times is None:
                continue
            if sum(after.times) - sum(before.times) > 0.2 * (after.at_ns - before.at_ns):
                found.append(thread)
        return found

    def pop(self) -> list[list[Any]]:
        """All counts since the last call, as they are written."""
        counts, self._counts = self._counts, {}
        return [[*key, *row.fields()] for key, row in counts.items()]

    def _row_of(self, key: tuple[int, int, int]) -> _Row:
        row = self._counts.get(key)
        if row is None:
            row = self._counts[key] = _Row()
        return row
