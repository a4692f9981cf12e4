"""The parts of the page that are text: whole without JavaScript, and all of it escaped."""

from __future__ import annotations

import html
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hotloop import timing
from hotloop.profiler.diagnose.diagnosis import Diagnosis
from hotloop.profiler.diagnose.evidence import short
from hotloop.profiler.render import text, words
from hotloop.profiler.render.lines import Costs, Line, Listing, Sources
from hotloop.profiler.session import Process, Session
from hotloop.profiler.session.lockstep import LockstepWaste
from hotloop.profiler.session.stages import STAGES, Leaf, Stages
from hotloop.timing import Node
from hotloop.timing.table import REST, duration

# A node with less of its component's time is left out.
MIN_SHARE = 0.001
# What of the time must be a function's own for it to be shown, or pass through one of the user's,
# and how many are.
_FUNCTION_SHARE, _INCLUSIVE_SHARE, _MAX_FUNCTIONS = 0.01, 0.05, 20
_KERNEL = ("on core", "queued", "blocked")


def escaped(words: object) -> str:
    """As text, wherever it stands."""
    return html.escape(str(words), quote=True)


def prose(words: str) -> str:
    """A sentence; what stands in backquotes is code."""
    parts = escaped(words).split("`")
    if len(parts) % 2 == 0:
        return escaped(words)
    return "".join(f"<code>{one}</code>" if i % 2 else one for i, one in enumerate(parts))


def table(
    headings: Sequence[str], rows: Iterable[Sequence[str]], caption: str, *, kind: str = ""
) -> str:
    """A table; the first cell of a row is its heading. Cells are HTML, headings are text.

    Args:
        caption: what it shows, for who can't see where it stands.
        kind: the class that its style is of; empty: none.
    """
    style = f' class="{kind}"' if kind else ""
    head = "".join(f'<th scope="col">{escaped(heading)}</th>' for heading in headings)
    body = "\n".join(
        f'<tr><th scope="row">{cells[0]}</th>{"".join(f"<td>{one}</td>" for one in cells[1:])}</tr>'
        for cells in rows
    )
    return (
        f'<div class="scroll"><table{style}><caption><span>{escaped(caption)}</span></caption>\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>"
    )


def percent(part: float) -> str:
    """A share with a bar behind it."""
    width = min(100.0, max(0.0, 100 * part))
    return f'<span class="bar" style="--share:{width:.2f}%">{part:.1%}</span>'


# --- trees ----------------------------------------------------------------------------------------


def component(process: Process) -> str:
    """A component's tree, with what the kernel said of its main thread."""
    times = text.kernel_times(process)
    has_samples = any(text.of_kernel(share)[0] for share in times.values())
    whole = process.duration_ns or 1

    def more(path: tuple[str, ...]) -> Sequence[str]:
        if not has_samples:
            return ()
        return text.of_kernel(times.get(path))

    headings = _KERNEL if has_samples else ()
    return _tree(process.tree, whole, process.name, headings, more)


def merged(workers: Sequence[Process]) -> str:
    """All workers as one tree, with the spread of each node's share over them."""
    tree = timing.merge((worker.tree for worker in workers), f"all {len(workers)} workers")
    whole = sum(worker.duration_ns for worker in workers) or 1

    def spread(path: tuple[str, ...]) -> Sequence[str]:
        if not path:
            return "", "", ""
        shares = [text.share_at(worker, path) for worker in workers]
        return tuple(f"{f(shares):.1%}" for f in (min, statistics.median, max))

    return _tree(tree, whole, tree.name, ("min", "median", "max"), spread)


def _tree(tree: Node, whole: int, name: str, headings: Sequence[str], more: Any) -> str:
    """A tree of rows that can be opened and closed.

    Args:
        whole: what shares are of.
        more: of a path, the cells under `headings`.
    """

    def row(
        label: str,
        level: int,
        total_ns: int,
        middle: Sequence[str],
        last: Sequence[str],
        is_open: bool,
    ) -> str:
        expanded = ' aria-expanded="true"' if is_open else ""
        cells = [percent(total_ns / whole), *middle, duration(total_ns), *last]
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
                _label(child), len(inner) + 1, child.total_ns, numbers, more(inner), bool(inside)
            )
            items.append((child.total_ns, [first, *inside]))
        rest = node_ns - sum(child.total_ns for child in node.children.values())
        if items and rest / whole >= MIN_SHARE:
            label = f'<span class="rest">{escaped(REST)}</span>'
            cells = row(label, len(path) + 2, rest, ("", "", ""), [""] * len(headings), False)
            items.append((rest, [cells]))
        items.sort(key=lambda item: -item[0])
        return [one for _, rows in items for one in rows]

    inside = below(tree, (), whole)
    label = f'<span class="name">{escaped(name)}</span>'
    first = row(label, 1, whole, ("", "", ""), more(()), bool(inside))
    head = "".join(
        f'<th scope="col">{escaped(one)}</th>'
        for one in ("span", "share", "calls", "p50", "p99", "total", *headings)
    )
    body = "\n".join((first, *inside))
    return (
        f'<div class="scroll"><table class="tree" role="treegrid" aria-label="{escaped(name)}">\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>"
    )


def _label(node: Node) -> str:
    kind = "" if node.kind == "work" else f' <span class="kind">{escaped(node.kind)}</span>'
    still = ' <span class="kind">still open</span>' if node.open else ""
    return f'<span class="name">{escaped(node.name)}</span>{kind}{still}'


# --- stages, processes, lines ---------------------------------------------------------------------


def swatch(stage: str) -> str:
    """The colour of a stage."""
    return f'<i class="swatch" style="background:var(--stage-{escaped(stage)})"></i>'


def stage_table(process: Process, found: Stages) -> str:
    """The main thread's time by stage: a bar of all of it, and a table."""
    whole = found.total.elapsed_ns or 1
    ordered = sorted(found.by_stage.items(), key=lambda item: -item[1].elapsed_ns)
    bar = "".join(
        f'<i style="width:{100 * share.elapsed_ns / whole:.2f}%;'
        f'background:var(--stage-{escaped(stage)})"></i>'
        for stage, share in ordered
    )
    rows = [
        (
            swatch(stage) + escaped(STAGES[stage]),
            percent(share.elapsed_ns / whole),
            duration(share.elapsed_ns),
            *text.of_kernel(share),
        )
        for stage, share in ordered
        if share.elapsed_ns / whole >= MIN_SHARE
    ]
    headings = ("stage", "share", "total", *_KERNEL)
    caption = f"Stages of {process.name}, by {found.total.samples:,} samples of its main thread"
    return f'<div class="stack" aria-hidden="true">{bar}</div>{table(headings, rows, caption)}'


def line_table(lines: Sequence[Line], sources: Sources, caption: str) -> str:
    """Lines of the user's, and what stands there."""
    rows = [
        (
            f'<code title="{escaped(one.file)}">'
            f"{escaped(words.place(Leaf(one.function, one.file, one.line)))}</code>",
            percent(one.part),
            *_kernel_cells(one),
            swatch(one.stage) + escaped(STAGES[one.stage]),
            f"<code>{escaped(words.one_line(sources.text(one.file, one.line)))}</code>",
        )
        for one in lines
    ]
    headings = ("line", "share", *_KERNEL, "stage", "source")
    return table(headings, rows, caption, kind="lines")


def _kernel_cells(one: Line) -> tuple[str, str, str]:
    on_core, queued, blocked = text.of_kernel(one.share)
    return on_core, queued, f"{blocked} {escaped(one.blocked_on)}".strip()


def listing(one: Listing, sources: Sources) -> str:
    """Some lines of a file, with the shares of the dearest among them."""
    rows: list[str] = []
    for number, line in enumerate(one.text, one.first):
        hot = one.hot.get(number)
        share = "" if hot is None else percent(hot.part)
        mark = "" if hot is None else ' class="hot"'
        # Tabs and spaces are as they are in the file.
        code = escaped(line.rstrip()) or " "
        rows.append(
            f'<tr{mark}><th scope="row">{number}</th><td>{share}</td><td><code>{code}</code></td>'
            "</tr>"
        )
    problem = sources.problem(one.file)
    about = f"{one.file}, lines {one.first} to {one.first + len(one.text) - 1}"
    about += f"; the file {problem}" if problem else ""
    body = "\n".join(rows)
    return (
        f'<div class="scroll"><table class="listing"><caption><span>{escaped(about)}</span>'
        f"</caption>\n<tbody>\n{body}\n</tbody></table></div>"
    )


def function_table(costs: Costs) -> str:
    """The functions that most time was spent in, and the user's that most of it went through."""
    shown = [
        one
        for one in costs.functions
        if one.own >= _FUNCTION_SHARE or (one.is_user and one.inclusive >= _INCLUSIVE_SHARE)
    ][:_MAX_FUNCTIONS]
    if not shown:
        return ""
    rows = [
        (
            f'<code title="{escaped(f"{one.file}:{one.first_line}")}">{escaped(one.name)}</code>',
            percent(one.own),
            percent(one.inclusive),
            "your code" if one.is_user else "library",
            f"<code>{escaped(f'{short(one.file)}:{one.first_line}')}</code>",
        )
        for one in shown
    ]
    headings = ("function", "own", "inclusive", "whose", "where")
    return table(headings, rows, f"Functions of {costs.name}", kind="lines")


def process_table(session: Session, found: Mapping[int, Stages]) -> str:
    """All processes: how long they lived, what they took, what they did.

    Args:
        found: stages by pid.
    """
    used = [
        stage for stage in STAGES if any(one.share(stage) >= MIN_SHARE for one in found.values())
    ]
    rows: list[Sequence[str]] = []
    for process in session.processes:
        seconds = max(1e-9, process.duration_ns / 1e9)
        peak = max((period.resident for period in process.periods), default=0)
        one = found.get(process.pid)
        has_samples = one is not None and one.total.samples > 0
        rows.append(
            (
                escaped(process.name),
                str(process.pid),
                f"{(process.start_ns - session.start_ns) / 1e9:,.1f} s",
                f"{seconds:,.1f} s",
                escaped(process.state),
                f"{process.cpu_ns / 1e9 / seconds:.2f}" if process.periods else "",
                f"{peak / 1e6:,.0f} MB" if peak else "",
                *(f"{one.share(stage):.0%}" if one and has_samples else "" for stage in used),
            )
        )
    columns = (STAGES[stage] for stage in used)
    headings = ("process", "pid", "start", "lived", "state", "cores", "memory", *columns)
    return table(headings, rows, "All processes, and the share of each stage in their main threads")


def slowest_table(found: LockstepWaste) -> str:
    """How often each worker was the one that the others waited for."""
    rows = [
        (escaped(name), f"{times:,}", percent(times / found.num_steps))
        for name, times in sorted(found.times_slowest.items(), key=lambda item: -item[1])
    ]
    return table(("worker", "steps", "share"), rows, "In how many steps each was the slowest")


def diagnosis(one: Diagnosis, number: int, sources: Sources) -> str:
    """A card: what it is, where, how sure that is, what it would bring, why, and what to do."""
    gain = words.gain(one)
    badges = [f'<span class="gain">{escaped(gain)} as fast</span>'] if gain else []
    badges += [
        f"<span>{escaped(told)}</span>"
        for told in (f"{one.confidence:.0%} sure", *words.kind(one), words.rule(one))
        if told
    ]
    evidence = "".join(f"<li>{prose(sentence)}</li>" for sentence in one.evidence)
    return f"""<article class="card diagnosis" aria-labelledby="diagnosis-{number}">
<h3 id="diagnosis-{number}">{escaped(one.title)}</h3>
<p class="badges">{"".join(badges)}</p>
{_places(one.places, sources)}<ul>{evidence}</ul>
<p>{prose(one.advice)}</p>
<p class="verify"><span>See whether it helped:</span> <code>{escaped(one.verify)}</code></p>
</article>"""


def _places(places: Sequence[Leaf], sources: Sources) -> str:
    """Where it is: the dearest place with what stands there, then the others."""
    if not places:
        return ""
    titles = {words.place(one): one.file for one in reversed(places)}
    at = [
        f'<code title="{escaped(titles[told])}">{escaped(told)}</code>'
        for told in words.places(places)
    ]
    told = words.one_line(sources.text(places[0].file, places[0].line))
    source = f"<br><code>{escaped(told)}</code>" if told else ""
    others = f"<br>and {', '.join(at[1:])}" if at[1:] else ""
    return f'<p class="places">at {at[0]}{source}{others}</p>\n'
