"""The recorder in Python, for installations without a compiler.

Everything here is shaped by what costs time in CPython 3.11 (ns on one 2-core machine): reading the
clock 48, a `threading.local` attribute 45, calling a Python function 42, from C 65, packing three
numbers 80, an attribute of `self` 8. So a span is an object of one thread and one place in its
tree; it is found when `span()` is called, with the only look-up of the thread; and it has a class
of its own, whose `__enter__` and `__exit__` are closures over local cells instead of methods
(0.1 µs saved of 0.7).

The price: a span object belongs to the thread that called `span()`, and must be entered there.
"""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from hotloop.timing import _format as f
from hotloop.timing._fold import fold as fold_events
from hotloop.timing._span import check_span, decorate

FLAGS = f.FLOAT_TIMES | f.PYTHON_RECORDER
_WORK = "work"
_EVENT = np.dtype([("start", "f8"), ("node", "i8"), ("end", "f8")])
_pack_event = struct.Struct("dqd").pack_into  # in this order: the end commits


class _Span:
    """Base of every span's own class: what need not be fast."""

    __slots__ = ("kind", "name")

    def __init__(self, name: str, kind: str) -> None:
        self.name = name
        self.kind = kind

    def __repr__(self) -> str:
        return f"span({self.name!r}, kind={self.kind!r})"

    def __call__(self, function: Any) -> Any:
        return decorate(span, self.name, self.kind, function)


class _Uncounted(_Span):
    """A span for which no node was left: it keeps the nesting right, and its parent's time."""

    __slots__ = ("children", "parent", "state")

    def __init__(self, name: str, kind: str, state: State, parent: _Children) -> None:
        super().__init__(name, kind)
        self.state = state
        self.parent = parent
        self.children = _Children()
        self.children.node = (self, parent, -1, None)
        self.children.make = parent.make

    def __enter__(self) -> _Uncounted:
        here = self.state.here
        if here[0] is self.parent:
            here[0] = self.children
            self.state.segment.count_unnamed()
        return self

    def __exit__(self, *_: object) -> None:
        self.state.leave(self, self.state.clock())


class _Children(dict):
    """The spans that can be entered at one place of the tree; made when first asked for."""

    __slots__ = ("make", "node")

    node: tuple[_Span, _Children, int, Callable[[], float] | None] | None
    make: Callable[[_Children, str, str], Any]

    def __missing__(self, key: object) -> Any:
        name, kind = key, _WORK
        if isinstance(key, str) and "\0" in key:
            name, _, kind = key.rpartition("\0")
            if kind not in f.KINDS:
                name, kind = key, _WORK
        check_span(name, kind)
        return self.make(self, name, kind)  # pyright: ignore[reportArgumentType]


class State:
    """One thread's recorder: where it is in its tree, and how it writes an event.

    Args:
        segment: what it writes to.
        clock: seconds; tests put their own here.
    """

    def __init__(self, segment: Any, clock: Callable[[], float] = time.monotonic) -> None:
        layout = segment.layout
        memory = memoryview(segment.buffer)
        words = segment.words
        opens = memory[layout.opens : layout.ring].cast("d")
        ring = memory[layout.ring : layout.bank_a]
        events = np.frombuffer(ring, _EVENT)
        bank_size = layout.bank_b - layout.bank_a
        banks = [
            np.frombuffer(memory[at : at + bank_size], np.int64).reshape(-1, f.ROW_WORDS)
            for at in (layout.bank_a, layout.bank_b)
        ]
        root = _Children()
        root.node = None
        here = [root]  # one cell: the children of the innermost open span
        pack, struct_error, event_size = _pack_event, struct.error, f.EVENT_SIZE
        period_bytes, ring_bytes = f.PERIOD * event_size, layout.ring_capacity * event_size
        window = ring[:period_bytes]  # the period that is being filled
        offset, limit = 0, period_bytes
        named_nodes = layout.node_capacity - layout.node_capacity // 8
        overflows: dict[int, Any] = {}

        def fold() -> None:
            """Add the period that is full to the totals, and go on to the next."""
            nonlocal limit, window, offset
            first = limit // event_size - f.PERIOD
            period = events[first : first + f.PERIOD]
            start_ns = np.rint(period["start"] * 1e9).astype(np.int64)
            end_ns = np.rint(period["end"] * 1e9).astype(np.int64)
            num_folded, side = divmod(words[f.S_FOLDED], 2)
            num_rows = 1 + words[f.S_NUM_NODES]
            idle = banks[1 - side]
            idle[:num_rows] = banks[side][:num_rows]
            fold_events(idle[1:num_rows], period["node"], start_ns, end_ns)
            idle[0, 0] = end_ns.min()
            words[f.S_FOLDED] = 2 * (num_folded + f.PERIOD) + (1 - side)
            following = limit % ring_bytes
            limit = following + period_bytes
            window, offset = ring[following:limit], 0

        def leave(left: Any, end: float) -> None:
            """Leave a span that is not the innermost: those inside of it end with it."""
            nonlocal offset
            chain = []
            children = here[0]
            while True:
                if children.node is None:
                    return  # not open, or ended already with a span around it
                chain.append(children.node)
                if children.node[0] is left:
                    break
                children = children.node[1]
            for _, parent, index, started in chain:
                if started is not None:
                    try:
                        pack(window, offset, started(), index, end)
                    except struct_error:
                        fold()
                        pack(window, 0, started(), index, end)
                    offset += event_size
                here[0] = parent

        def place(parent: _Children, index: int, depth: int, name: str, kind: str) -> Any:
            """The span of one node: the hot path."""
            children = _Children()
            start = 0.0
            elsewhere: list[Any] = []

            # Static methods need no bound method; ExitStack passes the span all the same.
            def enter(_span: object = None) -> Any:
                nonlocal start
                if here[0] is parent:
                    here[0] = children
                    start = opens[index] = clock()
                else:  # an object that its user kept, and enters at another place of the tree
                    real = here[0][name if kind == _WORK else f"{name}\0{kind}"]
                    elsewhere.append(real)
                    real.__enter__()
                return made

            def exit_(_1: object, _2: object = None, _3: object = None, _4: object = None) -> None:
                nonlocal offset
                end = clock()
                if here[0] is children:
                    try:
                        pack(window, offset, start, index, end)
                    except struct_error:  # the period is full; looking first would cost 10 ns
                        fold()
                        pack(window, 0, start, index, end)
                    offset += event_size
                    here[0] = parent
                elif elsewhere:
                    elsewhere.pop().__exit__(None, None, None)
                else:
                    leave(made, end)

            members = {"__enter__": staticmethod(enter), "__exit__": staticmethod(exit_)}
            made: Any = type("Span", (_Span,), {"__slots__": (), **members})(name, kind)
            children.node = (made, parent, index, lambda: start)
            children.make = uncounted if name == f.OVERFLOW else maker(index, depth + 1)
            return made

        def uncounted(parent: _Children, name: str, kind: str) -> Any:
            return _Uncounted(name, kind, self, parent)

        def maker(parent_index: int, depth: int) -> Callable[[_Children, str, str], Any]:
            def make(parent: _Children, name: str, kind: str) -> Any:
                if words[f.S_NUM_NODES] < named_nodes and depth <= f.MAX_DEPTH:
                    index = segment.add_node(parent_index, name, kind)
                    made = place(parent, index, depth, name, kind)
                    parent[name if kind == _WORK else f"{name}\0{kind}"] = made
                    return made
                if parent_index not in overflows:
                    if words[f.S_NUM_NODES] == layout.node_capacity:
                        return uncounted(parent, name, kind)
                    index = segment.add_node(parent_index, f.OVERFLOW, _WORK)
                    made = place(parent, index, depth, f.OVERFLOW, _WORK)
                    overflows[parent_index] = made
                return overflows[parent_index]

            return make

        root.make = maker(0, 1)
        self.segment = segment
        self.clock = clock
        self.here = here
        self.leave = leave
        self.root = root

    def current(self) -> int:
        """Index of the innermost open span that is counted; 0 where none is."""
        node = self.here[0].node
        while node is not None and node[2] < 0:
            node = node[1].node
        return 0 if node is None else node[2]

    def rewind(self) -> None:
        """Begin again at the top of the tree, for the next thread."""
        self.here[0] = self.root

    def retire(self) -> None:
        """Write no more: spans that are open go nowhere, kept ones to where the process is now.

        In a forked child this memory is the parent's file.
        """
        nowhere = _Children()
        nowhere.node = None
        nowhere.make = lambda _, name, kind: span(name, kind)
        self.here[0] = nowhere


def _not_installed() -> Any:
    raise RuntimeError("no recorder is installed")


_attach: Callable[[], Any] = _not_installed
_local = threading.local()


def install(attach: Callable[[], Any]) -> None:
    """Say where a thread gets its state from."""
    global _attach
    _attach = attach


def reset() -> None:
    """Have every thread ask for a state again, when it next needs one."""
    global _local
    _local = threading.local()


def exchange(state: State | None) -> State | None:
    """Have the calling thread record into another state; returns the one it had."""
    previous = getattr(_local, "state", None)
    if state is None:
        _local.__dict__.clear()
    else:
        _local.state = state
        _local.here = state.here
    return previous


def span(name: str, kind: str | None = None) -> Any:
    """See `hotloop.timing.span`."""
    if kind is None:  # instead of comparing with "work": 45 ns
        try:
            return _local.here[0][name]
        except AttributeError:
            exchange(_attach())
            return _local.here[0][name]
    check_span(name, kind)
    if kind == _WORK:
        return span(name)
    if not hasattr(_local, "here"):
        exchange(_attach())
    return _local.here[0][f"{name}\0{kind}"]
