"""The tree of where the time went, and what to say about it in one sentence."""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from hotloop.timing import _format as f
from hotloop.timing._format import Kind


@dataclass
class Node:
    """One place in the nesting of spans; the root is the whole of a component."""

    name: str
    kind: Kind = "work"
    count: int = 0
    """Spans that ended."""
    total_ns: int = 0
    """Time inside, including that of spans still open. Of the root: the threads' time, summed."""
    min_ns: int = 0
    max_ns: int = 0
    open: int = 0
    """Spans that have not ended."""
    open_ns: int = 0
    """The part of `total_ns` that lies in them, up to the last sign of life."""
    children: dict[tuple[str, Kind], Node] = field(default_factory=dict)
    histogram: np.ndarray = field(
        default_factory=lambda: np.zeros(f.NUM_BUCKETS, np.int64), repr=False
    )

    def __str__(self) -> str:
        from hotloop.timing.table import render

        return render(self)

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"

    @property
    def self_ns(self) -> int:
        """Time inside that no child covers."""
        return max(0, self.total_ns - sum(child.total_ns for child in self.children.values()))

    @property
    def mean_ns(self) -> float:
        """Mean of the spans that ended; NaN if none did."""
        return (self.total_ns - self.open_ns) / self.count if self.count else float("nan")

    def percentile(self, q: float) -> float:
        """The duration in nanoseconds that `q` percent of the spans stay under; NaN without spans.

        From the histogram: within 6.3 % of NumPy's `inverted_cdf` for what lasts 8 ns and longer.

        Raises:
            ValueError: `q` is not between 0 and 100.
        """
        if not 0 <= q <= 100:
            raise ValueError(f"a percentile lies between 0 and 100, got {q}: pass 99 for p99")
        if not self.count:
            return float("nan")
        rank = max(1, int(np.ceil(q / 100 * self.count)))
        if rank >= self.count:
            return float(self.max_ns)
        bucket = int(np.searchsorted(np.cumsum(self.histogram), rank))
        lower, upper = f.bucket_bounds(min(bucket, f.NUM_BUCKETS - 1))
        return float(min(max((lower + upper) / 2, self.min_ns), self.max_ns))

    def child(self, name: str, kind: Kind = "work") -> Node:
        """The child of that name and kind, made if there is none."""
        key = (name, kind)
        if key not in self.children:
            self.children[key] = Node(name, kind)
        return self.children[key]

    def find(self, *path: str) -> Node:
        """The node at `path`, of whatever kind.

        Raises:
            KeyError: there is none.
        """
        node = self
        for name in path:
            found = [child for child in node.children.values() if child.name == name]
            if not found:
                known = ", ".join(child.name for child in node.children.values()) or "nothing"
                raise KeyError(f"no span {name!r} inside of {node.name!r}: it holds {known}")
            node = found[0]
        return node

    def walk(self, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Node]]:
        """All nodes below this one with their paths, parents first."""
        for node in self.children.values():
            below = (*path, node.name)
            yield below, node
            yield from node.walk(below)

    def add(self, other: Node) -> None:
        """Add another tree's numbers to this one's, node by node."""
        if other.count:
            self.min_ns = min(self.min_ns, other.min_ns) if self.count else other.min_ns
            self.max_ns = max(self.max_ns, other.max_ns)
        self.count += other.count
        self.total_ns += other.total_ns
        self.open += other.open
        self.open_ns += other.open_ns
        self.histogram = self.histogram + other.histogram
        for key, node in other.children.items():
            self.child(*key).add(node)


def merge(trees: Iterable[Node], name: str = "all") -> Node:
    """One tree of several: of a component's processes, say. The time of the roots adds up."""
    merged = Node(name)
    for tree in trees:
        merged.add(tree)
    return merged


class Cost(NamedTuple):
    """The largest cost in a tree."""

    path: tuple[str, ...]
    kind: Kind
    self_ns: int
    share: float
    """Of the root's time."""

    def __str__(self) -> str:
        return f"{' > '.join(self.path)}: {self.share:.0%} of the time"


def costliest(tree: Node, kinds: Sequence[Kind] = f.KINDS) -> Cost | None:
    """The node whose own time, children apart, is the largest; None if there are no spans.

    Args:
        kinds: only nodes of these kinds are looked at. The root's own time is not (`tree.self_ns`
            is what no span covers).
    """
    nodes = [(path, node) for path, node in tree.walk() if node.kind in kinds]
    if not nodes:
        return None
    path, node = max(nodes, key=lambda item: item[1].self_ns)
    share = node.self_ns / tree.total_ns if tree.total_ns else 0.0
    return Cost(path, node.kind, node.self_ns, share)
