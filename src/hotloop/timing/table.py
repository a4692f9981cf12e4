"""Timing trees as tables, in plain text or for a rich console."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from hotloop.base.text_tables import aligned
from hotloop.timing._format import OVERFLOW
from hotloop.timing.tree import Node

if TYPE_CHECKING:
    from rich.table import Table

HEADINGS = ("span", "share", "calls", "mean", "p50", "p99", "total", "kind")
REST = "(rest)"


def duration(ns: float) -> str:
    """Format a duration with a suitable unit, such as "850 ns", "12.3 ms" or "4.20 s"."""
    if math.isnan(ns):
        return "–"
    for limit, unit, size in ((1e3, "ns", 1.0), (1e6, "µs", 1e3), (1e9, "ms", 1e6)):
        if ns < limit * 0.9995:
            value = ns / size
            digits = 0 if unit == "ns" else max(0, 2 - int(math.log10(max(value, 1))))
            return f"{value:.{digits}f} {unit}"
    return f"{ns / 1e9:,.2f} s"


def rows(tree: Node, min_share: float = 0.0) -> list[tuple[str, ...]]:
    """Return the cells of the table, one row per node, largest total first.

    Args:
        tree: the tree of a recording.
        min_share: nodes with a smaller share of the root's time are left out.
    """
    whole_ns = tree.total_ns or 1

    def node_row(node: Node, depth: int) -> tuple[str, ...]:
        suffix = f" (open: {node.open})" if node.open else ""
        return (
            "  " * depth + node.name + suffix,
            f"{node.total_ns / whole_ns:.1%}",
            f"{node.count:,}",
            duration(node.mean_ns),
            duration(node.percentile(50)),
            duration(node.percentile(99)),
            duration(node.total_ns),
            "" if node.kind == "work" else node.kind,
        )

    def child_rows(node: Node, depth: int) -> list[tuple[str, ...]]:
        items: list[tuple[int, list[tuple[str, ...]]]] = [
            (child.total_ns, [node_row(child, depth), *child_rows(child, depth + 1)])
            for child in node.children.values()
            if child.total_ns / whole_ns >= min_share
        ]
        if node.children and node.self_ns / whole_ns >= max(min_share, 0.0005):
            cells = ("  " * depth + REST, f"{node.self_ns / whole_ns:.1%}", "", "", "", "")
            items.append((node.self_ns, [(*cells, duration(node.self_ns), "")]))
        items.sort(key=lambda item: -item[0])
        return [row for _, item_rows in items for row in item_rows]

    root = (tree.name, "100.0%", "", "", "", "", duration(tree.total_ns), "")
    return [root, *child_rows(tree, 1)]


def _notes(tree: Node) -> list[str]:
    if any(node.name == OVERFLOW for _, node in tree.walk()):
        return [f"{OVERFLOW}: more names or levels than fit in the table; use fewer, fixed names"]
    return []


def render(tree: Node, *, min_share: float = 0.0, max_width: int | None = None) -> str:
    """Return the table as text.

    Args:
        tree: result of `Recording.tree()` or `merge()`.
        min_share: nodes with a smaller share of the root's time are left out.
        max_width: width of the terminal, or None. Columns that do not fit follow below.
    """
    lines = aligned([HEADINGS, *rows(tree, min_share)], num_texts=1, max_width=max_width)
    return "\n".join([lines, *_notes(tree)])


def renderable(tree: Node, *, min_share: float = 0.0, title: str | None = None) -> Table:
    """Return the table for a rich console."""
    from rich.table import Table
    from rich.text import Text

    notes = "; ".join(_notes(tree))
    # `Text` objects, because brackets in names are not markup.
    table = Table(title=title and Text(title), caption=notes and Text(notes))
    for column, heading in enumerate(HEADINGS):
        is_text = column in (0, len(HEADINGS) - 1)
        table.add_column(heading, justify="left" if is_text else "right", no_wrap=not column)
    for row in rows(tree, min_share):
        table.add_row(*(Text(cell) for cell in row))
    return table


def report() -> str:
    """Return the table of this process so far."""
    from hotloop.timing.reader import current

    return render(current().tree())
