"""A session in a terminal: trees and tables, then what costs most, where one looks first.

What is printed last is seen without scrolling: above the prompt stand the dearest lines, above them
the diagnoses.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from hotloop import timing
from hotloop.profiler.diagnose.diagnosis import Diagnosis
from hotloop.profiler.render import gpu, words
from hotloop.profiler.render.findings import Findings
from hotloop.profiler.render.lines import Costs, Sources
from hotloop.profiler.session import Process, Session
from hotloop.profiler.session.stages import STAGES, Leaf, Share, Stages
from hotloop.timing import Node
from hotloop.timing.table import duration

if TYPE_CHECKING:
    from rich.console import Group

# A node with less of its component's time is left out of what is printed.
MIN_SHARE = 0.005
_KERNEL = ("on core", "queued", "blocked")
_HEADINGS = ("", "share", "calls", "p50", "p99", "total", *_KERNEL)
# Of main, and of other threads and workers.
_MAX_LINES, _MAX_LINES_OF_OTHERS = 5, 3
_MAX_SOURCE = 60
# So many diagnoses are told whole, the others by their first line.
_MAX_WHOLE = 3
_MAX_PLACES = 4

Row = tuple[str, ...]


def overview(source: Session | Findings) -> str:
    """What ran, for how long, of that to start, on what, and how it ended."""
    found = Findings.of(source)
    session = found.session
    about, main = session.about, session.main
    command = words.one_line(" ".join(session.command)) or main.name
    nanoseconds = session.end_ns - session.start_ns
    parts = [f"{nanoseconds / 1e9:,.1f} s"]
    if found.start_up_ns is not None:
        loop_ns = max(0, nanoseconds - found.start_up_ns)
        parts[0] += (
            f" ({found.start_up_ns / 1e9:,.1f} s {STAGES['import']}, {loop_ns / 1e9:,.1f} s loop)"
        )
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
            row = (*_cells(child, len(inner), whole, still), *of_kernel(times.get(inner)))
            items.append((child.total_ns, [row, *below(child, inner)]))
        items.sort(key=lambda item: -item[0])
        return [row for _, rows in items for row in rows]

    killed = " (killed)" if process.state == "killed" else ""
    root = (f"{process.name}{killed}", "100.0%", "", "", "", duration(whole))
    return [(*root, *of_kernel(times.get(()))), *below(tree, ())]


def of_kernel(share: Share | None) -> tuple[str, str, str]:
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
        shares = sorted(share_at(worker, path) for worker in workers)
        spread = shares[0], statistics.median(shares), shares[-1]
        rows.append((*_cells(node, len(path), whole), *(f"{share:.1%}" for share in spread)))
    return rows


def _cells(node: Node, level: int, whole: int, note: str = "") -> Row:
    """Name, share, calls, p50, p99 and total of a node."""
    kind = "" if node.kind == "work" else f" [{node.kind}]"
    return (
        "  " * level + node.name + kind + note,
        f"{node.total_ns / whole:.1%}",
        f"{node.count:,}",
        duration(node.percentile(50)),
        duration(node.percentile(99)),
        duration(node.total_ns),
    )


def share_at(process: Process, path: tuple[str, ...]) -> float:
    """The share of a process's time that a path of spans has."""
    try:
        return process.tree.find(*path).total_ns / (process.duration_ns or 1)
    except KeyError:
        return 0.0


def stage_rows(found: Stages) -> list[Row]:
    """A main thread's time by stage, told from what it was seen in."""
    rows: list[Row] = []
    for stage, share in sorted(found.by_stage.items(), key=lambda item: -item[1].elapsed_ns):
        part = share.elapsed_ns / (found.total.elapsed_ns or 1)
        if part >= MIN_SHARE:
            rows.append((STAGES[stage], f"{part:.1%}", *of_kernel(share)))
    return rows


def line_rows(costs: Costs, sources: Sources, at_most: int) -> list[Row]:
    """The user's dearest lines, the dearest first, each with its source."""
    return [
        (
            words.place(Leaf(one.function, one.file, one.line)),
            f"{one.part:.1%}",
            *of_kernel(one.share)[:2],
            f"{of_kernel(one.share)[2]} {one.blocked_on}".strip(),
            words.one_line(sources.text(one.file, one.line), _MAX_SOURCE),
        )
        for one in costs.lines[:at_most]
    ]


def notes(session: Session) -> list[str]:
    """What is missing, a sentence each."""
    lines = [
        f"not covered: process {one.pid}, {one.cpu_ns / 1e9:.1f} s of CPU: "
        f"{words.one_line(one.command) or '?'}"
        for one in session.uncovered
        if one.cpu_ns > 0
    ]
    return [*lines, *session.problems]


def diagnosis_lines(source: Session | Findings) -> list[str]:
    """What keeps it from being faster, the dearest first, and what to change."""
    found = Findings.of(source)
    lines = [words.banner(one) for one in found.banners]
    if found.is_bounded:
        lines.append(found.bound)
    if not found.diagnoses:
        return lines
    lines.append("what it could be built as:" if found.is_bounded else "why it is not faster:")
    for rank, one in enumerate(found.diagnoses, 1):
        lines.append(f"{rank}. {_headline(one)}")
        at = words.places(one.places)
        if rank > _MAX_WHOLE:
            lines += [f"   at {at[0]}"] if at else []
            continue
        if at:
            told = words.one_line(found.sources.text(one.places[0].file, one.places[0].line))
            lines.append(f"   at {at[0]}" + (f": {told}" if told else ""))
        if at[1:]:
            more = ", …" if len(at) > _MAX_PLACES else ""
            lines.append(f"   and {', '.join(at[1:_MAX_PLACES])}{more}")
        lines += [f"     {sentence}" for sentence in one.evidence]
        lines += [f"   → {one.advice}", f"   $ {one.verify}"]
    return lines


def _headline(one: Diagnosis) -> str:
    """ "a sleep in the loop: up to 3.4× (of the loop alone 3.9×); blocked: sleep, again and again;
    90% sure [sleep]"."""
    gain, rule = words.gain(one), words.rule(one)
    told = one.title + (f": {gain}" if gain else "")
    return f"{told}; {', '.join(words.kind(one))}; {one.confidence:.0%} sure" + (
        f" [{rule}]" if rule else ""
    )


# --- the report -----------------------------------------------------------------------------------


class _Table(NamedTuple):
    """Rows, the first of which holds headings.

    Attributes:
        last_is_text: the last column is as wide as there is room for, and begins at its left.
    """

    rows: Sequence[Row]
    last_is_text: bool = False


class _Words(NamedTuple):
    """Lines; the style is rich's."""

    lines: Sequence[str]
    style: str = ""


def _parts(found: Findings) -> list[_Table | _Words]:
    """What the report is made of: what is seen last, and first, is at the end."""
    session, workers = found.session, found.session.workers
    rows = [row for process in selected(session) for row in tree_rows(process)]
    parts: list[_Table | _Words] = [_Table([_HEADINGS, *rows])]
    if len(workers) > 1:
        parts.append(_Table(merged_rows(workers)))
    if found.lockstep is not None:
        parts.append(_Words(words.lockstep(found.lockstep)))
    stage = stage_rows(found.stages(session.main))
    if stage:
        parts.append(_Table([(f"{session.main.name}, by samples", "share", *_KERNEL), *stage]))
    if found.gpu is not None:
        heading = ("GPU: " + gpu.title(found.gpu), *gpu.HEADINGS)
        parts.append(_Table([heading, *gpu.rows(found.gpu)], last_is_text=True))
        parts.append(_Words([gpu.note(found.gpu)], "dim"))
    elif unseen := gpu.no_windows(session):
        parts.append(_Words([unseen], "yellow"))
    parts.append(_Words([cost(session)], "dim"))
    if missing := notes(session):
        parts.append(_Words(missing, "yellow"))
    parts += [_Words([overview(found)], "bold"), _Words(diagnosis_lines(found))]
    return parts + _line_parts(found)


def _line_parts(found: Findings) -> list[_Table | _Words]:
    parts: list[_Table | _Words] = []
    files: list[str] = []
    for number, costs in enumerate(found.costs):
        at_most = _MAX_LINES_OF_OTHERS if number else _MAX_LINES
        rows = line_rows(costs, found.sources, at_most)
        if rows:
            heading = f"lines of yours: {words.lines_of(costs)}"
            parts.append(_Table([(heading, "share", *_KERNEL, ""), *rows], last_is_text=True))
            files += [one.file for one in costs.lines[:at_most]]
    problems = [
        f"{words.one_line(file)} {problem}"
        for file in dict.fromkeys(files)
        if (problem := found.sources.problem(file))
    ]
    return [*parts, _Words(problems, "yellow")] if problems else parts


def render(source: Session | Findings) -> str:
    """The report as plain text."""
    return "\n\n".join(
        _plain(part) if isinstance(part, _Table) else "\n".join(part.lines)
        for part in _parts(Findings.of(source))
    )


def _plain(table: _Table) -> str:
    rows = table.rows
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    left = {0, len(widths) - 1} if table.last_is_text else {0}
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i in left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def renderable(source: Session | Findings) -> Group:
    """The report for a rich console."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    def drawn(table: _Table) -> Table:
        made = Table(box=None, pad_edge=False)
        last = len(table.rows[0]) - 1
        for i, heading in enumerate(table.rows[0]):
            is_text = table.last_is_text and i == last
            made.add_column(
                Text(heading),
                justify="left" if is_text or not i else "right",
                # What stands in a wide column gives way to the numbers.
                no_wrap=i > 0 and not is_text,
                overflow="fold",
            )
        for row in table.rows[1:]:
            cells = [Text(cell) for cell in row]
            if table.last_is_text:
                cells[-1] = Text(row[-1], no_wrap=True, overflow="ellipsis")
            made.add_row(*cells)
        return made

    parts: list[object] = []
    for part in _parts(Findings.of(source)):
        if parts:
            parts.append(Text(""))
        if isinstance(part, _Table):
            parts.append(drawn(part))
        else:
            parts += [Text(line, style=part.style) for line in part.lines]
    return Group(*parts)  # pyright: ignore[reportArgumentType]
