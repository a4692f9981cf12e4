"""Text parts of the page: escaped, and complete without JavaScript."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from hotloop import timing
from hotloop.base.html_page import escaped, prose, table
from hotloop.profiler.diagnose.diagnosis import Diagnosis
from hotloop.profiler.diagnose.evidence import short_path
from hotloop.profiler.render import phrases, text
from hotloop.profiler.render.lines import LineCost, Listing, SourceFiles, ThreadCosts
from hotloop.profiler.session import ProfiledProcess, Session
from hotloop.profiler.session.lockstep import LockstepWaste
from hotloop.profiler.session.memory import memory_growth, memory_series
from hotloop.profiler.session.stages import STAGES, CodeLine, StageTimes
from hotloop.timing import Node
from hotloop.timing.table import REST, duration

# Minimum share of a shown node in its component's time.
MIN_SHARE = 0.001
# Minimum own share of a shown function, minimum inclusive share of a user's function, and maximum
# number of functions. Longer tables scroll in a box.
_OWN_SHARE, _INCLUSIVE_SHARE, _MAX_FUNCTIONS, _TALL_ROWS = 0.002, 0.01, 100, 20
_CPU_HEADINGS = ("on CPU", "queued", "blocked")


def percent_bar(share: float) -> str:
    """Return a share as a percentage with a bar behind it."""
    width = min(100.0, max(0.0, 100 * share))
    return f'<span class="bar" style="--share:{width:.2f}%">{share:.1%}</span>'


# --- trees ----------------------------------------------------------------------------------------


def component_tree(process: ProfiledProcess) -> str:
    """Return a component's tree, with the CPU use of its main thread."""
    times = text.times_by_path(process)
    has_samples = any(text.cpu_cells(share)[0] for share in times.values())
    whole = process.duration_ns or 1

    def cpu_use(path: tuple[str, ...]) -> Sequence[str]:
        if not has_samples:
            return ()
        return text.cpu_cells(times.get(path))

    headings = _CPU_HEADINGS if has_samples else ()
    return _tree(process.tree, whole, process.name, headings, cpu_use)


def merged_tree(workers: Sequence[ProfiledProcess]) -> str:
    """Return the merged tree of all workers, with the spread of each node's share."""
    tree = timing.merge((worker.tree for worker in workers), f"all {len(workers)} workers")
    whole = sum(worker.duration_ns for worker in workers) or 1

    def spread(path: tuple[str, ...]) -> Sequence[str]:
        if not path:
            return "", "", ""
        shares = [text.span_share(worker, path) for worker in workers]
        return tuple(f"{statistic(shares):.1%}" for statistic in (min, statistics.median, max))

    return _tree(tree, whole, tree.name, ("min", "median", "max"), spread)


def _tree(tree: Node, whole: int, name: str, headings: Sequence[str], extra: Any) -> str:
    """Return a tree of rows. `whole` ns are 100 %, and `extra` returns a path's further cells."""

    def row(
        label: str,
        level: int,
        total_ns: int,
        middle: Sequence[str],
        last: Sequence[str],
        is_open: bool,
    ) -> str:
        expanded = ' aria-expanded="true"' if is_open else ""
        cells = [percent_bar(total_ns / whole), *middle, duration(total_ns), *last]
        return (
            f'<tr aria-level="{level}"{expanded}><th scope="row" style="--level:{level - 1}">'
            f'<span class="twist" aria-hidden="true"></span>{label}</th>'
            + "".join(f"<td>{cell}</td>" for cell in cells)
            + "</tr>"
        )

    def below(node: Node, path: tuple[str, ...], node_ns: int) -> list[str]:
        items: list[tuple[int, list[str]]] = []
        for child in node.children.values():
            if child.total_ns / whole < MIN_SHARE:
                continue
            inner = (*path, child.name)
            inside = below(child, inner, child.total_ns)
            numbers = (
                f"{child.count:,}",
                duration(child.percentile(50)),
                duration(child.percentile(99)),
            )
            first = row(
                _label(child), len(inner) + 1, child.total_ns, numbers, extra(inner), bool(inside)
            )
            items.append((child.total_ns, [first, *inside]))
        rest_ns = node_ns - sum(child.total_ns for child in node.children.values())
        if items and rest_ns / whole >= MIN_SHARE:
            label = f'<span class="rest">{escaped(REST)}</span>'
            cells = row(label, len(path) + 2, rest_ns, ("", "", ""), [""] * len(headings), False)
            items.append((rest_ns, [cells]))
        items.sort(key=lambda item: -item[0])
        return [line for _, rows in items for line in rows]

    # Render the root row, the headings and the rows below.
    inside = below(tree, (), whole)
    label = f'<span class="name">{escaped(name)}</span>'
    first = row(label, 1, whole, ("", "", ""), extra(()), bool(inside))
    head = "".join(
        f'<th scope="col">{escaped(heading)}</th>'
        for heading in ("span", "share", "calls", "p50", "p99", "total", *headings)
    )
    body = "\n".join((first, *inside))
    return (
        f'<div class="scroll"><table class="tree" role="treegrid" aria-label="{escaped(name)}">\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>"
    )


def _label(node: Node) -> str:
    kind = "" if node.kind == "work" else f' <span class="kind">{escaped(node.kind)}</span>'
    note = ' <span class="kind">still open</span>' if node.open else ""
    return f'<span class="name">{escaped(node.name)}</span>{kind}{note}'


# --- stages, processes, lines ---------------------------------------------------------------------


def swatch(stage: str) -> str:
    """Return a swatch with the color of a stage."""
    return f'<i class="swatch" style="background:var(--stage-{escaped(stage)})"></i>'


def stage_table(process: ProfiledProcess, stages: StageTimes) -> str:
    """Return the main thread's time by stage, as a bar and a table."""
    whole = stages.total.elapsed_ns or 1
    ordered = sorted(stages.by_stage.items(), key=lambda item: -item[1].elapsed_ns)
    bar = "".join(
        f'<i style="width:{100 * times.elapsed_ns / whole:.2f}%;'
        f'background:var(--stage-{escaped(stage)})"></i>'
        for stage, times in ordered
    )
    rows = [
        (
            swatch(stage) + escaped(STAGES[stage]),
            percent_bar(times.elapsed_ns / whole),
            duration(times.elapsed_ns),
            *text.cpu_cells(times),
        )
        for stage, times in ordered
        if times.elapsed_ns / whole >= MIN_SHARE
    ]
    headings = ("stage", "share", "total", *_CPU_HEADINGS)
    caption = f"Stages ({process.name} process, {stages.total.samples:,} main thread samples)"
    return f'<div class="stack" aria-hidden="true">{bar}</div>{table(headings, rows, caption)}'


def line_table(lines: Sequence[LineCost], sources: SourceFiles, caption: str) -> str:
    """Return a table of the user's lines with their source."""
    rows = [
        (
            f'<code title="{escaped(line.file)}">'
            f"{escaped(phrases.place_text(CodeLine(line.function, line.file, line.line)))}</code>",
            percent_bar(line.share),
            *_cpu_cells(line),
            swatch(line.stage) + escaped(STAGES[line.stage]),
            f"<code>{escaped(phrases.one_line(sources.text(line.file, line.line)))}</code>",
        )
        for line in lines
    ]
    headings = ("line", "share", *_CPU_HEADINGS, "stage", "source")
    return table(headings, rows, caption, kind="lines sortable")


def _cpu_cells(line: LineCost) -> tuple[str, str, str]:
    on_cpu, queued, blocked = text.cpu_cells(line.times)
    return on_cpu, queued, f"{blocked} {escaped(line.blocked_on)}".strip()


class Anchors:
    """The anchors of listed source lines. The first listing of a line has its anchor."""

    def __init__(self) -> None:
        self._files: dict[str, int] = {}
        self._lines: dict[tuple[str, int], str] = {}
        self.by_function: dict[tuple[str, str], str] = {}

    def add(self, file: str, line: int) -> str:
        """Return the new anchor of a line, empty if another listing has it."""
        if (file, line) in self._lines:
            return ""
        number = self._files.setdefault(file, len(self._files))
        anchor = self._lines[file, line] = f"source-{number}-{line}"
        return anchor

    def find(self, file: str, line: int) -> str:
        """Return the anchor of a line, empty if it is not listed."""
        return self._lines.get((file, line), "")


def listing(snippet: Listing, sources: SourceFiles, anchors: Anchors) -> str:
    """Return some lines of a file, with the shares of the expensive ones."""
    rows: list[str] = []
    for number, line in enumerate(snippet.text, snippet.first_line):
        cost = snippet.hot_lines.get(number)
        share = "" if cost is None else percent_bar(cost.share)
        mark = "" if cost is None else ' class="hot"'
        anchor = anchors.add(snippet.file, number)
        name = f' id="{anchor}"' if anchor else ""
        if cost is not None and anchor:
            anchors.by_function.setdefault((snippet.file, cost.function), anchor)
        # Preserve tabs and spaces.
        code = escaped(line.rstrip()) or " "
        rows.append(
            f'<tr{mark}{name}><th scope="row">{number}</th><td>{share}</td>'
            f"<td><code>{code}</code></td></tr>"
        )
    problem = sources.problem(snippet.file)
    last = snippet.first_line + len(snippet.text) - 1
    caption = f"{snippet.file}, lines {snippet.first_line} to {last}"
    caption += f". The file {problem}" if problem else ""
    body = "\n".join(rows)
    return (
        f'<div class="scroll"><table class="listing"><caption><span>{escaped(caption)}</span>'
        f"</caption>\n<tbody>\n{body}\n</tbody></table></div>"
    )


def function_table(costs: ThreadCosts) -> str:
    """Return a table of the functions with the largest own share or, in user's code, total."""
    functions = [
        x
        for x in costs.functions
        if x.own_share >= _OWN_SHARE or (x.is_user and x.inclusive_share >= _INCLUSIVE_SHARE)
    ][:_MAX_FUNCTIONS]
    if not functions:
        return ""
    rows = [
        (
            f'<code title="{escaped(f"{x.file}:{x.first_line}")}">{escaped(x.name)}</code>',
            percent_bar(x.own_share),
            percent_bar(x.inclusive_share),
            "your code" if x.is_user else "library",
            f"<code>{escaped(f'{short_path(x.file)}:{x.first_line}')}</code>",
        )
        for x in functions
    ]
    headings = ("function", "own", "inclusive", "code", "location")
    content = table(headings, rows, f"Functions ({costs.name})", kind="lines sortable")
    return f'<div class="tall">{content}</div>' if len(rows) > _TALL_ROWS else content


def process_table(session: Session, stages_by_pid: Mapping[int, StageTimes]) -> str:
    """Return a table of all processes: lifetime, state, resources and stages."""
    used = [x for x in STAGES if any(y.share(x) >= MIN_SHARE for y in stages_by_pid.values())]
    rows: list[Sequence[str]] = []
    for process in session.processes:
        seconds = max(1e-9, process.duration_ns / 1e9)
        peak = max((period.resident_bytes for period in process.periods), default=0)
        stages = stages_by_pid.get(process.pid)
        has_samples = stages is not None and stages.total.samples > 0
        rows.append(
            (
                escaped(process.name),
                str(process.pid),
                f"{(process.start_ns - session.start_ns) / 1e9:,.1f} s",
                f"{seconds:,.1f} s",
                escaped(process.state),
                f"{process.cpu_ns / 1e9 / seconds:.2f}" if process.periods else "",
                f"{peak / 1e6:,.0f} MB" if peak else "",
                *(f"{stages.share(stage):.0%}" if stages and has_samples else "" for stage in used),
            )
        )
    columns = (STAGES[stage] for stage in used)
    headings = ("process", "pid", "start", "duration", "state", "cores", "memory", *columns)
    caption = "All processes, with the stages of their main threads"
    return table(headings, rows, caption, kind="sortable")


def slowest_table(waste: LockstepWaste) -> str:
    """Return a table of how often each worker was the slowest."""
    rows = [
        (escaped(name), f"{times:,}", percent_bar(times / waste.num_steps))
        for name, times in sorted(waste.times_slowest.items(), key=lambda item: -item[1])
    ]
    caption = "Steps in which each worker was the slowest"
    return table(("worker", "steps", "share"), rows, caption, kind="sortable")


def memory_table(session: Session) -> str:
    """Return a table of the processes' memory and its growth."""
    rows: list[Sequence[str]] = []
    for process in session.processes:
        _, sizes = memory_series(process)
        growth = memory_growth(process)
        if len(sizes):
            rows.append(
                (
                    escaped(process.name),
                    *(f"{size / 1e6:,.0f} MB" for size in (sizes[0], sizes.max(), sizes[-1])),
                    f"{60 * growth.bytes_per_s / 1e6:,.0f} MB per minute" if growth else "",
                )
            )
    headings = ("process", "first", "peak", "last", "keeps growing by")
    return table(headings, rows, "Resident memory", kind="sortable")


def diagnosis_card(
    diagnosis: Diagnosis, number: int, sources: SourceFiles, anchors: Anchors, timed: bool
) -> str:
    """Return a card with a cause, its confidence, gain, places, evidence and advice.

    Args:
        diagnosis: the cause.
        number: its rank, from 1.
        sources: the source files.
        anchors: the listed source lines, which the card links to.
        timed: whether the timeline can mark the place.
    """
    gain, confidence = phrases.gain_text(diagnosis), f"confidence {diagnosis.confidence:.0%}"
    badges = [f'<span class="gain">{escaped(gain)}</span>'] if gain else []
    badges += [
        f"<span>{escaped(badge)}</span>"
        for badge in (confidence, *phrases.wait_and_pace(diagnosis), phrases.rule_name(diagnosis))
        if badge
    ]
    evidence = "".join(f"<li>{prose(sentence)}</li>" for sentence in diagnosis.evidence)
    return f"""<article class="card diagnosis" aria-labelledby="diagnosis-{number}">
<h3 id="diagnosis-{number}">{escaped(diagnosis.title)}</h3>
<p class="badges">{"".join(badges)}</p>
{_places(diagnosis.places, sources)}{_links(diagnosis, number, anchors, timed)}<ul>{evidence}</ul>
<p>{prose(diagnosis.advice)}</p>
<p class="verify"><span>Check the effect:</span> <code>{escaped(diagnosis.verify)}</code></p>
</article>"""


def _links(diagnosis: Diagnosis, number: int, anchors: Anchors, timed: bool) -> str:
    """Return links to the most expensive place in the source, the flame graph and the timeline."""
    if not diagnosis.places:
        return ""
    function, file, line = diagnosis.places[0]
    anchor = anchors.find(file, line)
    links = [f'<a href="#{anchor}">source</a>'] if anchor else []
    name = f'data-function="{escaped(function)}" data-file="{escaped(file)}"'
    links.append(f'<a href="#flame" {name}>flame graph</a>')
    if timed:
        links.append(f'<a href="#timeline" data-place="{number - 1}">timeline</a>')
    return f'<p class="links">Show it in: {" · ".join(links)}</p>\n'


def _places(places: Sequence[CodeLine], sources: SourceFiles) -> str:
    """Return the most expensive place with its source line, then the others."""
    if not places:
        return ""
    files = {phrases.place_text(place): place.file for place in reversed(places)}
    texts = [
        f'<code title="{escaped(files[place])}">{escaped(place)}</code>'
        for place in phrases.place_texts(places)
    ]
    line = phrases.one_line(sources.text(places[0].file, places[0].line))
    source = f"<br><code>{escaped(line)}</code>" if line else ""
    more = f"<br>and {', '.join(texts[1:])}" if texts[1:] else ""
    return f'<p class="places">at {texts[0]}{source}{more}</p>\n'
