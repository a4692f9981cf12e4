"""A cost: avoidable time at one place in the user's code, and the lines to report."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

from hotloop.profiler.diagnose import causes, source
from hotloop.profiler.diagnose.causes import Cause, Explanation
from hotloop.profiler.diagnose.evidence import SampleRow, user_positions
from hotloop.profiler.diagnose.libraries import calls_into
from hotloop.profiler.diagnose.wrappers import wrapper_places
from hotloop.profiler.session import Frame
from hotloop.profiler.session.stages import CodeLine
from hotloop.profiler.session.sums import ranked, sums

_MAX_PLACES = 6


@dataclass(eq=False)
class Cost:
    """Avoidable time at one place in the user's code. Each cost is equal only to itself.

    Attributes:
        cause: its cause, None if unknown.
        function: the function that contains it.
        block: its lines in the function.
        rows: its samples.
        is_spread: whether it is spread over a function's lines and no line dominates.
        wait_line: line at which the main thread waits for it, if another thread or process runs it.
        is_core_work: whether it is in code that steps, acts or learns, in a program without library
            networks and environments. A profile cannot show how much of this work is necessary.
        is_guess: whether it is elsewhere in such a program, and its cause is unknown.
        explanation: its explanation, if its cause was found in the program's structure.
    """

    cause: Cause | None
    function: Frame
    block: source.CodeBlock
    rows: list[SampleRow] = field(default_factory=list)
    is_spread: bool = False
    wait_line: CodeLine | None = None
    is_core_work: bool = False
    is_guess: bool = False
    explanation: Explanation | None = None

    @cached_property
    def ns(self) -> float:
        """Its part of the program's duration, in nanoseconds."""
        return sum(row.ns for row in self.rows)

    @property
    def is_sure(self) -> bool:
        """Whether its cause is never inherent work."""
        return self.cause is not None and self.cause.is_sure

    @property
    def is_waste(self) -> bool:
        """Whether no program needs any of it in its loop."""
        return self.cause is not None and self.cause.is_waste

    @cached_property
    def wait(self) -> str:
        """The main part of its time, see `Diagnosis.wait`."""
        known = self.cause.wait if self.cause is not None else ""
        return known or main_wait(self.rows)

    @cached_property
    def is_idle(self) -> bool:
        """Whether it waits for unknown work: of an event loop or a library's processes."""
        events = sum(row.weight * row.sample.waits.get("events", 0) for row in self.rows)
        remote = sum(row.ns for row in self.rows if calls_into(row, "remote_waits"))
        if self.cause is None:
            return events > 0.5 * self.ns
        return self.cause is causes.WAITING_FOR_OTHERS and remote > 0.5 * self.ns

    @cached_property
    def places(self) -> tuple[CodeLine, ...]:
        """The most expensive lines, then the lines that call them, from the inside out.

        A cost of known cause starts with the line that does the work, any other with the line that
        causes it.
        """
        if self.cause is causes.WRAPPERS:
            return wrapper_places(self.rows)
        inner: list[tuple[CodeLine, float]] = []
        innermost: list[tuple[CodeLine, float]] = []
        calls: list[tuple[CodeLine, float]] = []
        for row in self.rows:
            chain = user_positions(row.stack)
            if not chain:
                continue  # a structure also explains a library's own samples
            indices = (i for i, position in enumerate(chain) if position.frame == self.function)
            at = next((i for i in indices if chain[i].line in self.block), 0)
            # An evaluation runs too often. Its inner lines do not matter.
            begin = at if self.cause is causes.EVALUATION else 0
            inner += [(position.code_line, row.ns) for position in chain[begin : at + 1]]
            innermost.append((chain[begin].code_line, row.ns))
            calls += [(position.code_line, row.ns) for position in chain[at + 1 : at + 3]]
        if not innermost:
            return () if self.explanation is None else self.explanation.places
        top, times = ranked(sums(innermost))[0], sums(inner)
        inside, outside = ranked(times), ranked(sums(calls))
        # The order of `times` is from the inside out.
        through = [leaf for leaf in times if times[leaf] >= 0.5 * self.ns and leaf != top]
        first = [top, *through[:1]] if self.cause is not None else [inside[0], top]
        if self.wait_line is not None:
            first.append(self.wait_line)
        more = [leaf for leaf in inside if leaf not in first]
        order = [*first, *more[:1], *outside[:1], *more[1:3], *outside[1:2]]
        if self.explanation is not None:
            order = [*self.explanation.places[:2], *order]
        return tuple(dict.fromkeys(order))[:_MAX_PLACES]


def main_wait(rows: Iterable[SampleRow]) -> str:
    """Return how most of the time passes: computing, queued for a core, or blocked on something."""
    parts: list[tuple[str, float]] = []
    for row in rows:
        sample, weight = row.sample, row.weight
        unknown_ns = max(0, sample.blocked_ns - sum(sample.waits.values()))
        parts += [
            ("something" if wait == "events" else wait, weight * ns)
            for wait, ns in sample.waits.items()
        ]
        parts.append(("computing", weight * sample.on_core_ns))
        parts.append(("queued", weight * sample.queued_ns))
        parts.append(("something", weight * unknown_ns))
    times = sums(parts)
    # A queued thread would compute, so queueing counts as computing unless it dominates.
    queued = times.pop("queued", 0.0)
    name = "queued" if queued > 2 * times.get("computing", 0.0) else "computing"
    times[name] = times.get(name, 0.0) + queued
    return ranked(times)[0]
