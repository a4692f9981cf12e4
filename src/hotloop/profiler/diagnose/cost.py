"""A cost: time at one place of the user's code, and the lines that tell of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

from hotloop.profiler.diagnose import kinds, source
from hotloop.profiler.diagnose.evidence import Row, positions
from hotloop.profiler.diagnose.kinds import Kind
from hotloop.profiler.session import Frame
from hotloop.profiler.session.stages import Leaf

_MAX_PLACES = 6


@dataclass
class Cost:
    """Time at one place of the user's code.

    Attributes:
        kind: what it is known for; None: not known.
        function: that it is in.
        block: its lines there.
        rows: samples of it.
        is_spread: over the lines of a function, of which none stands out.
        waited_at: where the main thread waits for it, if others do it.
        is_own_work: the program has neither networks nor environments of a library's, and this is
            in what steps, acts or learns: how much of it has to be no profile can tell.
        is_guess: the same of such a program's other lines, of no kind that is known.
    """

    kind: Kind | None
    function: Frame
    block: source.Block
    rows: list[Row] = field(default_factory=list)
    is_spread: bool = False
    waited_at: Leaf | None = None
    is_own_work: bool = False
    is_guess: bool = False

    @cached_property
    def ns(self) -> float:
        """Its time, of the whole program's."""
        return sum(row.ns for row in self.rows)

    @property
    def is_sure(self) -> bool:
        """Whether it is known to be nobody's inherent work."""
        return self.kind is not None and self.kind.is_sure

    @property
    def is_waste(self) -> bool:
        """Whether no program needs any of it in its loop."""
        return self.kind is not None and self.kind.is_sure and not self.kind.is_usual

    @cached_property
    def wait(self) -> str:
        """What most of its time is: see `Diagnosis.wait`."""
        known = self.kind.wait if self.kind is not None else ""
        return known or wait_of(self.rows)

    @cached_property
    def is_idle(self) -> bool:
        """Whether an event loop waits, nobody knows for what: for environments, it may be."""
        events = sum(row.weight * row.sample.waits.get("events", 0) for row in self.rows)
        return self.kind is None and events > 0.5 * self.ns

    @cached_property
    def places(self) -> tuple[Leaf, ...]:
        """Its dearest lines, then the lines that call it, from the inside out.

        What is known begins with the line that it is done at, what is not with the line that it is
        done for.
        """
        own: dict[Leaf, float] = {}
        innermost: dict[Leaf, float] = {}
        calls: dict[Leaf, float] = {}
        for row in self.rows:
            ns = row.ns
            chain = positions(row.stack)
            inside = (i for i, one in enumerate(chain) if one.frame == self.function)
            at = next((i for i in inside if chain[i].line in self.block), 0)
            # Evaluations are called too often, whatever they do.
            begin = at if self.kind is kinds.EVALUATION else 0
            for one in chain[begin : at + 1]:
                leaf = Leaf(one.frame.function, one.frame.file, one.line)
                own[leaf] = own.get(leaf, 0.0) + ns
            one = chain[begin]
            leaf = Leaf(one.frame.function, one.frame.file, one.line)
            innermost[leaf] = innermost.get(leaf, 0.0) + ns
            for one in chain[at + 1 : at + 3]:
                leaf = Leaf(one.frame.function, one.frame.file, one.line)
                calls[leaf] = calls.get(leaf, 0.0) + ns
        inside = sorted(own, key=lambda one: -own[one])
        outside = sorted(calls, key=lambda one: -calls[one])
        dearest = max(innermost, key=lambda one: innermost[one])
        # From the inside out, as they came.
        through = [one for one in own if own[one] >= 0.5 * self.ns and one != dearest]
        first = [dearest, *through[:1]] if self.kind is not None else [inside[0], dearest]
        if self.waited_at is not None:
            first.append(self.waited_at)
        rest = [one for one in inside if one not in first]
        order = [*first, *rest[:1], *outside[:1], *rest[1:3], *outside[1:2]]
        return tuple(dict.fromkeys(order))[:_MAX_PLACES]


def wait_of(rows: Iterable[Row]) -> str:
    """What most of some rows' time is: computing, queued for a core, or blocked on something."""
    found: dict[str, float] = {}
    for row in rows:
        sample, weight = row.sample, row.weight
        known = 0
        for wait, ns in sample.waits.items():
            known += ns
            name = "something" if wait == "events" else wait
            found[name] = found.get(name, 0.0) + weight * ns
        for name, ns in (
            ("computing", sample.on_core_ns),
            ("queued", sample.queued_ns),
            ("something", max(0, sample.blocked_ns - known)),
        ):
            found[name] = found.get(name, 0.0) + weight * ns
    # In a queue it would compute: that is what it is, unless it is there for the most part of that.
    queued = found.pop("queued", 0.0)
    if queued > 2 * found.get("computing", 0.0):
        found["queued"] = queued
    else:
        found["computing"] = found.get("computing", 0.0) + queued
    return max(found, key=lambda name: found[name], default="computing")
