"""Terminal report of a session: trees and tables, then the diagnoses and the most expensive lines.

The most important parts come last, so that they are visible without scrolling.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import NamedTuple, TextIO

from hotloop import timing
from hotloop.base.streams import make_console
from hotloop.base.text_tables import aligned
from hotloop.profiler.diagnose.diagnosis import Diagnosis
from hotloop.profiler.render import gpu, phrases, what_if
from hotloop.profiler.render.findings import Findings
from hotloop.profiler.render.lines import SourceFiles, ThreadCosts
from hotloop.profiler.session import ProfiledProcess, Session
from hotloop.profiler.session.stages import STAGES, CodeLine, StageTimes, TimeSum
from hotloop.timing import Node, policy_shares
from hotloop.timing.table import duration

# Nodes with a smaller share of their component's time are not printed.
MIN_SHARE = 0.005
_CPU_HEADINGS = ("on CPU", "queued", "blocked")
_HEADINGS = ("", "share", "calls", "p50", "p99", "total", *_CPU_HEADINGS)
# Lines of the main thread, and of other threads and workers.
_MAX_LINES, _MAX_OTHER_LINES = 5, 3
_MAX_SOURCE, _MIN_SOURCE = 60, 10
# Diagnoses printed in full. Of the others, only the headline and the first place are printed.
_MAX_FULL = 3
_MAX_PLACES = 4

Row = tuple[str, ...]


def overview(source: Session | Findings) -> str:
    """Return the command, its duration and start-up, exit status, processes and cores."""
    findings = Findings.from_source(source)
    session = findings.session
    metadata, main = session.metadata, session.main
    command = phrases.one_line(" ".join(session.command)) or main.name
    nanoseconds = session.end_ns - session.start_ns
    parts = [f"{nanoseconds / 1e9:,.1f} s"]
    if (start_ns := findings.start_up_ns) is not None:
        loop_ns = max(0, nanoseconds - start_ns)
        parts[0] += f" ({start_ns / 1e9:,.1f} s {STAGES['import']}, {loop_ns / 1e9:,.1f} s loop)"
    if "exit_code" in metadata:
        code = metadata["exit_code"]
        parts.append(f"killed by signal {-code}" if code < 0 else f"exit code {code}")
    elif main.state == "killed":
        parts.append("killed")
    count = len(session.processes)
    parts.append(f"{count} process{'es' if count > 1 else ''}")
    if main.cores:
        parts.append(f"{main.cores} cores")
    return f"{command}: {', '.join(parts)}"


def recording_overhead(session: Session) -> str:
    """Return a text on the overhead of recording, as shares of the processes' time."""
    if tool := session.metadata.get("recorded_by"):
        return f"recorded by {phrases.one_line(tool)}, whose overhead is unknown"
    whole = sum(process.duration_ns for process in session.processes) or 1
    spans = sum(_num_spans(process.tree) for process in session.processes) * _span_ns()
    sampling = sum(process.own_ns for process in session.processes)
    return f"recording overhead: {spans / whole:.2%} for spans, {sampling / whole:.2%} for sampling"


def _num_spans(tree: Node) -> int:
    return sum(node.count for _, node in tree.walk())


def _span_ns() -> float:
    return timing.overhead()


def selected_processes(session: Session) -> list[ProfiledProcess]:
    """Return the processes to show: main, helpers, and the first, last and slowest worker."""
    workers = session.workers
    selected = [process for process in session.processes if process.role == "main"]
    selected += [p for p in session.processes if p.role == "helper" and p.tree.children]
    if workers:
        slowest = max(workers, key=busy_ns)
        chosen = {workers[0].pid, workers[-1].pid, slowest.pid}
        selected += [worker for worker in workers if worker.pid in chosen]
    return selected


def busy_ns(process: ProfiledProcess) -> int:
    """Return the time in spans of kind "work", without waits inside of them."""
    return sum(node.self_ns for _, node in process.tree.walk() if node.kind == "work")


def times_by_path(process: ProfiledProcess) -> dict[tuple[str, ...], TimeSum]:
    """Return the sampled times by path of open spans, including inner spans."""
    times: dict[tuple[str, ...], TimeSum] = {}
    for sample in process.samples:
        if sample.thread == process.pid:
            for depth in range(len(sample.path) + 1):
                times.setdefault(sample.path[:depth], TimeSum()).add(TimeSum.of(sample))
    return times


def tree_rows(process: ProfiledProcess, min_share: float = MIN_SHARE) -> list[Row]:
    """Return the rows of a component's tree, most expensive first."""
    tree, times = process.tree, times_by_path(process)
    whole = process.duration_ns or 1

    def below(node: Node, path: tuple[str, ...]) -> list[Row]:
        items: list[tuple[int, list[Row]]] = []
        for child in node.children.values():
            if child.total_ns / whole < min_share:
                continue
            inner = (*path, child.name)
            note = " (still open)" if child.open else ""
            row = (*_cells(child, len(inner), whole, note), *cpu_cells(times.get(inner)))
            items.append((child.total_ns, [row, *below(child, inner)]))
        items.sort(key=lambda item: -item[0])
        return [row for _, rows in items for row in rows]

    killed = " (killed)" if process.state == "killed" else ""
    root = (f"{process.name}{killed}", "100.0%", "", "", "", duration(whole))
    return [(*root, *cpu_cells(times.get(()))), *below(tree, ())]


def cpu_cells(times: TimeSum | None) -> tuple[str, str, str]:
    """Return the shares on the CPU, queued and blocked as text, empty below 10 samples."""
    if times is None or times.samples < 10 or not times.elapsed_ns:
        return "", "", ""
    return (
        f"{times.on_core_ns / times.elapsed_ns:.0%}",
        f"{times.queued_ns / times.elapsed_ns:.0%}",
        f"{times.blocked_ns / times.elapsed_ns:.0%}",
    )


def merged_rows(workers: Sequence[ProfiledProcess], min_share: float = MIN_SHARE) -> list[Row]:
    """Return the merged tree of all workers, with the spread of each node's share."""
    merged = timing.merge((worker.tree for worker in workers), f"all {len(workers)} workers")
    whole = sum(worker.duration_ns for worker in workers) or 1
    rows: list[Row] = [(merged.name, "100.0%", "", "", "", duration(whole), "min", "median", "max")]
    for path, node in merged.walk():
        if node.total_ns / whole < min_share:
            continue
        shares = sorted(span_share(worker, path) for worker in workers)
        spread = shares[0], statistics.median(shares), shares[-1]
        rows.append((*_cells(node, len(path), whole), *(f"{share:.1%}" for share in spread)))
    return rows


def _cells(node: Node, level: int, whole: int, note: str = "") -> Row:
    """Return the name, share, calls, p50, p99 and total of a node."""
    kind = "" if node.kind == "work" else f" [{node.kind}]"
    return (
        "  " * level + node.name + kind + note,
        f"{node.total_ns / whole:.1%}",
        f"{node.count:,}",
        duration(node.percentile(50)),
        duration(node.percentile(99)),
        duration(node.total_ns),
    )


def span_share(process: ProfiledProcess, path: tuple[str, ...]) -> float:
    """Return the share of a path of spans in a process's time."""
    try:
        return process.tree.find(*path).total_ns / (process.duration_ns or 1)
    except KeyError:
        return 0.0


def stage_rows(stages: StageTimes) -> list[Row]:
    """Return the rows of a main thread's time by stage, from its samples."""
    rows: list[Row] = []
    for stage, times in sorted(stages.by_stage.items(), key=lambda item: -item[1].elapsed_ns):
        share = times.elapsed_ns / (stages.total.elapsed_ns or 1)
        if share >= MIN_SHARE:
            rows.append((STAGES[stage], f"{share:.1%}", *cpu_cells(times)))
    return rows


def line_rows(costs: ThreadCosts, sources: SourceFiles, max_lines: int) -> list[Row]:
    """Return the rows of the user's most expensive lines, each with its source."""
    return [
        (
            phrases.place_text(CodeLine(line.function, line.file, line.line)),
            f"{line.share:.1%}",
            *cpu_cells(line.times)[:2],
            f"{cpu_cells(line.times)[2]} {line.blocked_on}".strip(),
            phrases.one_line(sources.text(line.file, line.line), _MAX_SOURCE),
        )
        for line in costs.lines[:max_lines]
    ]


def problem_notes(session: Session) -> list[str]:
    """Return sentences on missing data."""
    lines = [
        f"not recorded: process {process.pid}, {process.cpu_ns / 1e9:.1f} s of CPU time: "
        f"{phrases.one_line(process.command) or '?'}"
        for process in session.unrecorded
        if process.cpu_ns > 0
    ]
    return [*lines, *session.problems]


def diagnosis_lines(source: Session | Findings) -> list[str]:
    """Return the causes that slow the program down, most expensive first, with advice."""
    findings = Findings.from_source(source)
    lines = [phrases.banner_text(diagnosis) for diagnosis in findings.banners]
    if findings.has_no_removable_cost:
        lines.append(findings.bound)
    if not findings.diagnoses:
        return lines
    is_redesign = findings.has_no_removable_cost
    lines.append("possible redesigns:" if is_redesign else "why this program is slow:")
    for rank, diagnosis in enumerate(findings.diagnoses, 1):
        lines.append(f"{rank}. {_headline(diagnosis)}")
        places = phrases.place_texts(diagnosis.places)
        if rank > _MAX_FULL:
            lines += [f"   at {places[0]}"] if places else []
            continue
        if places:
            _, file, line = diagnosis.places[0]
            code = phrases.one_line(findings.sources.text(file, line))
            lines.append(f"   at {places[0]}" + (f": {code}" if code else ""))
        if places[1:]:
            more = ", …" if len(places) > _MAX_PLACES else ""
            lines.append(f"   and {', '.join(places[1:_MAX_PLACES])}{more}")
        lines += [f"     {sentence}" for sentence in diagnosis.evidence]
        lines += [f"   → {diagnosis.advice}", f"   $ {diagnosis.verify}"]
    return lines


def _headline(diagnosis: Diagnosis) -> str:
    """Return a headline: "a sleep: up to 3.4× as fast; blocked: sleep, once; confidence 90%"."""
    gain, rule = phrases.gain_text(diagnosis), phrases.rule_name(diagnosis)
    title = diagnosis.title + (f": {gain}" if gain else "")
    return (
        f"{title}; {', '.join(phrases.wait_and_pace(diagnosis))}; confidence "
        f"{diagnosis.confidence:.0%}" + (f" [{rule}]" if rule else "")
    )


# --- the report -----------------------------------------------------------------------------------


class _Table(NamedTuple):
    """A table whose first row holds the headings. A text column at the end has flexible width."""

    rows: Sequence[Row]
    last_is_text: bool = False


class _Lines(NamedTuple):
    """Lines of text with a rich style."""

    lines: Sequence[str]
    style: str = ""


def _parts(findings: Findings) -> list[_Table | _Lines]:
    """Return the parts of the report, the most important last."""
    session, workers = findings.session, findings.session.workers
    rows = [row for process in selected_processes(session) for row in tree_rows(process)]
    is_sampled = any(cell for row in rows for cell in row[-len(_CPU_HEADINGS) :])
    width = len(_HEADINGS) if is_sampled else -len(_CPU_HEADINGS)
    parts: list[_Table | _Lines] = [_Table([row[:width] for row in (_HEADINGS, *rows)])]
    if len(workers) > 1:
        parts.append(_Table(merged_rows(workers)))
    if findings.lockstep is not None:
        parts.append(_Lines(phrases.lockstep_sentences(findings.lockstep)))
    if shares := policy_shares.share_rows(session.main.tree):
        parts.append(_Table([policy_shares.HEADINGS, *shares]))
    stages = stage_rows(findings.stages(session.main))
    if stages:
        heading = (f"stages ({session.main.name} process)", "share", *_CPU_HEADINGS)
        parts.append(_Table([heading, *stages]))
    if findings.gpu is not None:
        heading = ("GPU: " + gpu.title(findings.gpu), *gpu.HEADINGS)
        parts.append(_Table([heading, *gpu.rows(findings.gpu)], last_is_text=True))
        parts.append(_Lines([gpu.clock_note(findings.gpu)], "dim"))
    elif note := gpu.missing_windows_note(session):
        parts.append(_Lines([note], "yellow"))
    parts.append(_Lines([recording_overhead(session)], "dim"))
    if problems := problem_notes(session):
        parts.append(_Lines(problems, "yellow"))
    parts += [_Lines([overview(findings)], "bold"), _Lines(diagnosis_lines(findings))]
    parts += _line_parts(findings)
    if findings.what_if is not None:
        rows = what_if.rows(findings.what_if)
        parts += [_Table([what_if.HEADINGS, *rows])] if rows else []
        parts.append(_Lines(what_if.sentences(findings.what_if)))
    return parts


def _line_parts(findings: Findings) -> list[_Table | _Lines]:
    parts: list[_Table | _Lines] = []
    files: list[str] = []
    for number, costs in enumerate(findings.costs):
        max_lines = _MAX_OTHER_LINES if number else _MAX_LINES
        rows = line_rows(costs, findings.sources, max_lines)
        if rows:
            heading = f"most expensive lines ({phrases.costs_title(costs)})"
            parts.append(_Table([(heading, "share", *_CPU_HEADINGS, ""), *rows], last_is_text=True))
            files += [line.file for line in costs.lines[:max_lines]]
    problems = [
        f"{phrases.one_line(file)} {problem}"
        for file in dict.fromkeys(files)
        if (problem := findings.sources.problem(file))
    ]
    return [*parts, _Lines(problems, "yellow")] if problems else parts


def render(source: Session | Findings, *, max_width: int | None = None) -> str:
    """Return the report as plain text, with tables for a terminal of this width."""
    return "\n\n".join(
        _table_text(part, max_width) if isinstance(part, _Table) else "\n".join(part.lines)
        for part in _parts(Findings.from_source(source))
    )


def _table_text(table: _Table, max_width: int | None) -> str:
    rows = table.rows
    if max_width is not None and table.last_is_text:  # cut source lines to the width
        other_widths = [max(map(len, column)) + 2 for column in list(zip(*rows, strict=True))[:-1]]
        width = max(_MIN_SOURCE, max_width - sum(other_widths))
        rows = [
            (*row[:-1], row[-1] if len(row[-1]) <= width else f"{row[-1][: width - 1]}…")
            for row in rows
        ]
    return aligned(rows, num_texts=table.last_is_text, max_width=max_width)


def print_findings(findings: Findings, *, file: TextIO) -> None:
    """Print the report, in the terminal's colors and width, or to a pipe with one row per line."""
    from rich.text import Text

    console = make_console(file)
    if not console.is_terminal:
        print(render(findings), file=file)
        return
    for number, part in enumerate(_parts(findings)):
        if number:
            console.print()
        if isinstance(part, _Table):
            console.print(Text(_table_text(part, console.width)), soft_wrap=True)
        else:
            for line in part.lines:
                console.print(Text(line, style=part.style))
