"""The recorder in Python, for installations without a compiler.

The design follows from costs in CPython 3.11 (in ns, on a 2-core machine): reading the clock 48, a
`threading.local` attribute 45, a call of a Python function 42, from C 65, packing three numbers 80,
an attribute of `self` 8. So a span object belongs to one thread and one node of its tree. `span()`
finds it with a single access to thread-local data. Each span has its own class, whose `__enter__`
and `__exit__` are closures over local cells instead of methods (this saves 0.1 µs of 0.7).

The limitation is that a span object must be entered in the thread that called `span()`.
"""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from hotloop.timing import _format as fmt
from hotloop.timing._fold import fold as fold_events
from hotloop.timing._span import check_span, decorate

FLAGS = fmt.FLOAT_TIMES | fmt.PYTHON_RECORDER
_WORK = "work"
_EVENT = np.dtype([("start", "f8"), ("node", "i8"), ("end", "f8")])
_pack_event = struct.Struct("dqd").pack_into  # in this order: the end commits


class _Span:
    """The base class of all spans, with the methods that need not be fast."""

    __slots__ = ("kind", "name")

    def __init__(self, name: str, kind: str) -> None:
        self.name = name
        self.kind = kind

    def __repr__(self) -> str:
        return f"span({self.name!r}, kind={self.kind!r})"

    def __call__(self, function: Any) -> Any:
        return decorate(span, self.name, self.kind, function)


class _Uncounted(_Span):
    """A span without a node, because the table is full. Its time counts as its parent's."""

    __slots__ = ("children", "parent", "state")

    def __init__(self, name: str, kind: str, state: RecorderState, parent: _Children) -> None:
        super().__init__(name, kind)
        self.state = state
        self.parent = parent
        self.children = _Children()
        self.children.node = (self, parent, -1, None)
        self.children.make = parent.make

    def __enter__(self) -> _Uncounted:
        innermost = self.state.innermost
        if innermost[0] is self.parent:
            innermost[0] = self.children
            self.state.segment.count_unnamed()
        return self

    def __exit__(self, *_: object) -> None:
        self.state.leave(self, self.state.clock())


class _Children(dict):
    """The child spans of one node of the tree by name, created on first access."""

    __slots__ = ("make", "node")

    node: tuple[_Span, _Children, int, Callable[[], float] | None] | None
    make: Callable[[_Children, str, str], Any]

    def __missing__(self, key: object) -> Any:
        name, kind = key, _WORK
        if isinstance(key, str) and "\0" in key:
            name, _, kind = key.rpartition("\0")
            if kind not in fmt.KINDS:
                name, kind = key, _WORK
        check_span(name, kind)
        return self.make(self, name, kind)  # pyright: ignore[reportArgumentType]


class RecorderState:
    """The recorder of one thread: its innermost open span, and the functions that write events.

    Args:
        segment: the segment to write into.
        clock: a function that returns seconds. Tests pass their own.
    """

    def __init__(self, segment: Any, clock: Callable[[], float] = time.monotonic) -> None:
        layout = segment.layout
        memory = memoryview(segment.buffer)
        words = segment.words
        # Map the parts of the segment.
        num_folded = bank = 0
        opens = memory[layout.opens : layout.ring].cast("d")
        ring = memory[layout.ring : layout.bank_a]
        events = np.frombuffer(ring, _EVENT)
        bank_size = layout.bank_b - layout.bank_a
        banks = [
            np.frombuffer(memory[offset : offset + bank_size], np.int64).reshape(-1, fmt.ROW_WORDS)
            for offset in (layout.bank_a, layout.bank_b)
        ]
        root = _Children()
        root.node = None
        innermost = [root]  # a list of one item: the children of the innermost open span
        pack, struct_error, event_size = _pack_event, struct.error, fmt.EVENT_SIZE
        period_bytes, ring_bytes = fmt.PERIOD * event_size, layout.ring_capacity * event_size
        window = ring[:period_bytes]  # the current period
        offset, limit = 0, period_bytes
        # The last eighth is for overflow nodes, one per parent with too many children.
        named_nodes = layout.node_capacity - layout.node_capacity // 8
        overflows: dict[int, Any] = {}

        def fold() -> None:
            """Add the full period to the totals and start the next one."""
            nonlocal limit, window, offset, num_folded, bank
            first = limit // event_size - fmt.PERIOD
            period = events[first : first + fmt.PERIOD]
            # Another process may have overwritten the events in the file.
            num_nodes, nodes = segment.num_nodes, period["node"]
            period = period[(nodes > 0) & (nodes < num_nodes)]
            with np.errstate(invalid="ignore", over="ignore"):
                start_ns = np.rint(period["start"] * 1e9).astype(np.int64)
                end_ns = np.rint(period["end"] * 1e9).astype(np.int64)
            num_rows = 1 + num_nodes
            idle = banks[1 - bank]
            idle[:num_rows] = banks[bank][:num_rows]
            fold_events(idle[1:num_rows], period["node"], start_ns, end_ns)
            idle[0, 0] = end_ns.min(initial=2**63 - 1)
            num_folded, bank = num_folded + fmt.PERIOD, 1 - bank
            words[fmt.S_FOLDED] = 2 * num_folded + bank
            start = limit % ring_bytes
            limit = start + period_bytes
            window, offset = ring[start:limit], 0

        def leave(left_span: Any, end: float) -> None:
            """Leave `left_span`, which is not the innermost one, and all spans inside it."""
            nonlocal offset
            nodes = []
            children = innermost[0]
            while True:
                if children.node is None:
                    return  # not open, or already ended with a span around it
                nodes.append(children.node)
                if children.node[0] is left_span:
                    break
                children = children.node[1]
            for _, parent, index, get_start in nodes:
                if get_start is not None:
                    try:
                        pack(window, offset, get_start(), index, end)
                    except struct_error:
                        fold()
                        pack(window, 0, get_start(), index, end)
                    offset += event_size
                innermost[0] = parent

        def make_span(parent: _Children, index: int, depth: int, name: str, kind: str) -> Any:
            """Create the span of one node. Its `enter` and `exit_` are the hot path."""
            children = _Children()
            start = 0.0
            redirected: list[Any] = []

            # A static method saves creating a bound method. ExitStack passes the span nevertheless.
            def enter(_span: object = None) -> Any:
                nonlocal start
                if innermost[0] is parent:
                    innermost[0] = children
                    start = opens[index] = clock()
                else:  # a stored object, entered at another node of the tree
                    target = innermost[0][name if kind == _WORK else f"{name}\0{kind}"]
                    redirected.append(target)
                    target.__enter__()
                return new_span

            def exit_(_1: object, _2: object = None, _3: object = None, _4: object = None) -> None:
                nonlocal offset
                end = clock()
                if innermost[0] is children:
                    try:
                        pack(window, offset, start, index, end)
                    except struct_error:  # the period is full: a check before would cost 10 ns
                        fold()
                        pack(window, 0, start, index, end)
                    offset += event_size
                    innermost[0] = parent
                elif redirected:
                    redirected.pop().__exit__(None, None, None)
                else:
                    leave(new_span, end)

            members = {"__enter__": staticmethod(enter), "__exit__": staticmethod(exit_)}
            new_span: Any = type("Span", (_Span,), {"__slots__": (), **members})(name, kind)
            children.node = (new_span, parent, index, lambda: start)
            children.make = uncounted if name == fmt.OVERFLOW else span_maker(index, depth + 1)
            return new_span

        def uncounted(parent: _Children, name: str, kind: str) -> Any:
            return _Uncounted(name, kind, self, parent)

        def span_maker(parent_index: int, depth: int) -> Callable[[_Children, str, str], Any]:
            """Return a function that creates the span of a new child, or an overflow span."""

            def make(parent: _Children, name: str, kind: str) -> Any:
                if segment.num_nodes < named_nodes and depth <= fmt.MAX_DEPTH:
                    index = segment.add_node(parent_index, name, kind)
                    new_span = make_span(parent, index, depth, name, kind)
                    parent[name if kind == _WORK else f"{name}\0{kind}"] = new_span
                    return new_span
                if parent_index not in overflows:
                    if segment.num_nodes == layout.node_capacity:
                        return uncounted(parent, name, kind)
                    index = segment.add_node(parent_index, fmt.OVERFLOW, _WORK)
                    new_span = make_span(parent, index, depth, fmt.OVERFLOW, _WORK)
                    overflows[parent_index] = new_span
                return overflows[parent_index]

            return make

        root.make = span_maker(0, 1)
        self.segment = segment
        self.clock = clock
        self.innermost = innermost
        self.leave = leave
        self.root = root

    def current(self) -> int:
        """Return the node index of the innermost open span that is counted, 0 if there is none."""
        node = self.innermost[0].node
        while node is not None and node[2] < 0:
            node = node[1].node
        return 0 if node is None else node[2]

    def rewind(self) -> None:
        """Return to the root of the tree when a thread ends or begins."""
        self.innermost[0] = self.root

    def retire(self) -> None:
        """Stop writing. Open spans are discarded, stored span objects use the current recorder.

        In a forked child this memory is the parent's file.
        """
        retired = _Children()
        retired.node = None
        retired.make = lambda _, name, kind: span(name, kind)
        self.innermost[0] = retired


def _not_installed() -> Any:
    raise RuntimeError("no recorder is installed")


_attach: Callable[[], Any] = _not_installed
_local = threading.local()


def install(attach: Callable[[], Any]) -> None:
    """Set the function that returns a state for the calling thread."""
    global _attach
    _attach = attach


def reset() -> None:
    """Discard the states of all threads. Each thread requests a new one at its next span."""
    global _local
    _local = threading.local()


def exchange(state: RecorderState | None) -> RecorderState | None:
    """Switch the calling thread to another state, and return its previous state."""
    previous = getattr(_local, "state", None)
    if state is None:
        _local.__dict__.clear()
    else:
        _local.state = state
        _local.innermost = state.innermost
    return previous


def _attach_thread() -> list[Any]:
    """Attach the calling thread to the recorder, and return the `innermost` of its new state."""
    while True:
        local = _local
        state = _attach()
        if local is _local:  # else another thread has started or stopped a recording
            local.state, local.innermost = state, state.innermost
            return state.innermost


def span(name: str, kind: str | None = None) -> Any:
    """Return a span: see `hotloop.timing.span`."""
    if kind is None:  # a comparison with "work" would take 45 ns
        try:
            return _local.innermost[0][name]
        except AttributeError:
            return _attach_thread()[0][name]
    check_span(name, kind)
    if kind == _WORK:
        return span(name)
    innermost = getattr(_local, "innermost", None) or _attach_thread()
    return innermost[0][f"{name}\0{kind}"]
