"""A session in a terminal: each component's tree, workers merged, where threads waited."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from hotloop import timing
from hotloop.profiler.session import Process, Session
from hotloop.profiler.session.stages import STAGES, Share, stages
from hotloop.timing import Node
from hotloop.timing.table import duration

if TYPE_CHECKING:
    from rich.console import Group

# A node with less of its component's time is left out of what is printed.
MIN_SHARE = 0.005
_HEADINGS = ("", "share", "calls", "p50", "p99", "total", "on core", "queued", "blocked")

Row = tuple[str, ...]


def overview(session: Session) -> str:
    """What ran, for how long, on what, and how it ended."""
    about, main = session.about, session.main
    command = " ".join(session.command) or main.name
    seconds = (session.end_ns - session.start_ns) / 1e9
    parts = [f"{seconds:,.1f} s"]
    if "exit_code" in about:
        code = about["exit_code"]
        parts.append(f"killed by signal {-code}" if code < 0 else f"exit code {code}")
    elif main.state == "killed":
        parts.append("killed")
    count = len(session.processes)
    parts.append(f"{count} process{'es' if count > 1 else ''}")
    if main.cores:
        parts.append(f"{main.cores} cores")
    return f"{command}: {', '.join(parts)}"


def cost(session: Session) -> str:
    """What recording took, in shares of the processes' time."""
    whole = sum(process.duration_ns for process in session.processes) or 1
    spans = sum(_num_spans(process.tree) for process in session.processes) * _span_ns()
    sampling = sum(process.own_ns for process in session.processes)
    return f"recording took {spans / whole:.2%} for spans, {sampling / whole:.2%} for sampling"


def _num_spans(tree: Node) -> int:
    return sum(node.count for _, node in tree.walk())


def _span_ns() -> float:
    return timing.overhead()


def selected(session: Session) -> list[Process]:
    """The processes whose trees are shown: main, others, and the first, last and slowest worker."""
    workers = session.workers
    shown = [process for process in session.processes if process.role == "main"]
    shown += [p for p in session.processes if p.role == "helper" and p.tree.children]
    if workers:
        slowest = max(workers, key=busy_ns)
        chosen = {workers[0].pid, workers[-1].pid, slowest.pid}
        shown += [worker for worker in workers if worker.pid in chosen]
    return shown


def busy_ns(process: Process) -> int:
    """Time in spans that are work, waits within them left out."""
    return sum(node.self_ns for _, node in process.tree.walk() if node.kind == "work")


def kernel_times(process: Process) -> dict[tuple[str, ...], Share]:
    """What the kernel said while each path of spans was open, inner spans included."""
    found: dict[tuple[str, ...], Share] = {}
    for sample in process.samples:
        if sample.thread != process.pid:
            continue
        row = sample.elapsed_ns, sample.on_core_ns, sample.queued_ns, sample.count
        for depth in range(len(sample.path) + 1):
            found.setdefault(sample.path[:depth], Share()).add(*row)
    return found


def tree_rows(process: Process, min_share: float = MIN_SHARE) -> list[Row]:
    """A component's tree, a row a node, in the order of cost."""
    tree, times = process.tree, kernel_times(process)
    whole = process.duration_ns or 1

    def below(node: Node, path: tuple[str, ...]) -> list[Row]:
        items: list[tuple[int, list[Row]]] = []
        for child in node.children.values():
            if child.total_ns / whole < min_share:
                continue
            inner = (*path, child.name)
            still = " (still open)" if child.open else ""
            kind = "" if child.kind == "work" else f" [{child.kind}]"
            row = (
                "  " * len(inner) + child.name + kind + still,
                f"{child.total_ns / whole:.1%}",
                f"{child.count:,}",
                duration(child.percentile(50)),
                duration(child.percentile(99)),
                duration(child.total_ns),
                *_of_kernel(times.get(inner)),
            )
            items.append((child.total_ns, [row, *below(child, inner)]))
        items.sort(key=lambda item: -item[0])
        return [row for _, rows in items for row in rows]

    killed = " (killed)" if process.state == "killed" else ""
    root = (f"{process.name}{killed}", "100.0%", "", "", "", duration(whole))
    return [(*root, *_of_kernel(times.get(()))), *below(tree, ())]


def _of_kernel(share: Share | None) -> tuple[str, str, str]:
    """On a core, queued for one, blocked; nothing where there are too few samples to say."""
    if share is None or share.samples < 10 or not share.elapsed_ns:
        return "", "", ""
    return (
        f"{share.on_core_ns / share.elapsed_ns:.0%}",
        f"{share.queued_ns / share.elapsed_ns:.0%}",
        f"{share.blocked_ns / share.elapsed_ns:.0%}",
    )


def merged_rows(workers: Sequence[Process], min_share: float = MIN_SHARE) -> list[Row]:
    """All workers as one tree, with the spread of each node's share over them."""
    merged = timing.merge((worker.tree for worker in workers), f"all {len(workers)} workers")
    whole = sum(worker.duration_ns for worker in workers) or 1
    rows: list[Row] = [(merged.name, "100.0%", "", "", "", duration(whole), "min", "median", "max")]
    for path, node in merged.walk():
        if node.total_ns / whole < min_share:
            continue
        shares = sorted(_share_at(worker, path) for worker in workers)
        kind = "" if node.kind == "work" else f" [{node.kind}]"
        rows.append(
            (
                "  " * len(path) + node.name + kind,
                f"{node.total_ns / whole:.1%}",
                f"{node.count:,}",
                duration(node.percentile(50)),
                duration(node.percentile(99)),
                duration(node.total_ns),
                *(f"{x:.1%}" for x in (shares[0], statistics.median(shares), shares[-1])),
            )
        )
    return rows


def _share_at(process: Process, path: tuple[str, ...]) -> float:
    try:
        node = process.tree.find(*path)
    except KeyError:
        return 0.0
    return node.total_ns / (process.duration_ns or 1)


def stage_rows(process: Process) -> list[Row]:
    """The main thread's time by stage, told from what it was seen in."""
    found = stages(process)
    rows: list[Row] = []
    for stage, share in sorted(found.by_stage.items(), key=lambda item: -item[1].elapsed_ns):
        part = share.elapsed_ns / (found.total.elapsed_ns or 1)
        if part >= MIN_SHARE:
            rows.append((STAGES[stage], f"{part:.1%}", *_of_kernel(share)))
    return rows


def notes(session: Session) -> list[str]:
    """What is missing, a sentence each."""
    lines = [
        f"not covered: process {one.pid}, {one.cpu_ns / 1e9:.1f} s of CPU: {one.command or '?'}"
        for one in session.uncovered
        if one.cpu_ns > 0
    ]
    return [*lines, *session.problems]


def render(session: Session) -> str:
    """The report as plain text."""
    parts = [overview(session), ""]
    shown = selected(session)
    rows = [row for process in shown for row in tree_rows(process)]
    parts.append(_plain([_HEADINGS, *rows]))
    workers = session.workers
    if len(workers) > 1:
        parts += ["", _plain(merged_rows(workers))]
    stage = stage_rows(session.main)
    if stage:
        heads = (f"{session.main.name}, by samples", "share", "on core", "queued", "blocked")
        parts += ["", _plain([heads, *stage])]
    parts += ["", cost(session), *notes(session)]
    parts += ["", *diagnosis_lines(session)]
    return "\n".join(parts)


def diagnosis_lines(session: Session) -> list[str]:
    """What keeps it from being faster, the dearest first, and what to change."""
    from hotloop.profiler.diagnose import bound, diagnose

    found = diagnose(session)
    if not found:
        return [f"nothing found that keeps it from being faster. {bound(session)}"]
    lines = ["why it is not faster:"]
    for rank, one in enumerate(found, 1):
        gain = "" if one.gain is None else f": {one.gain:.1f}× as fast without"
        lines.append(f"{rank}. {one.title}{gain} ({one.confidence:.0%} sure) [{one.rule}]")
        lines += [f"     {sentence}" for sentence in one.evidence]
        lines += [f"   → {one.advice}", f"   $ {one.verify}"]
    return lines


def _plain(rows: Iterable[Row]) -> str:
    table = [tuple(row) for row in rows]
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if i else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in table
    )


def renderable(session: Session) -> Group:
    """The report for a rich console."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    def table(rows: Sequence[Row], title: str | None = None) -> Table:
        made = Table(title=title and Text(title), box=None, pad_edge=False)
        for i, heading in enumerate(rows[0]):
            made.add_column(
                Text(heading), justify="right" if i else "left", no_wrap=i > 0, overflow="fold"
            )
        for row in rows[1:]:
            made.add_row(*(Text(cell) for cell in row))
        return made

    parts: list[object] = [Text(overview(session), style="bold"), Text("")]
    rows = [row for process in selected(session) for row in tree_rows(process)]
    parts.append(table([_HEADINGS, *rows]))
    if len(session.workers) > 1:
        parts += [Text(""), table(merged_rows(session.workers))]
    stage = stage_rows(session.main)
    if stage:
        heads = (f"{session.main.name}, by samples", "share", "on core", "queued", "blocked")
        parts += [Text(""), table([heads, *stage])]
    parts += [Text(""), Text(cost(session), style="dim")]
    parts += [Text(note, style="yellow") for note in notes(session)]
    parts += [Text(""), *map(Text, diagnosis_lines(session))]
    return Group(*parts)  # pyright: ignore[reportArgumentType]
