"""A session as one HTML file that needs nothing else: no network, no other file.

    html.write(session, "report.html")

What is text in it is made here (`tables`); pictures are drawn by the page's own script (`page.js`)
from JSON that it carries (`pictures`). What a session holds may come from anywhere: it is escaped,
and a policy in the page lets no other script run.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from hotloop.profiler.render import gpu, text, words
from hotloop.profiler.render.findings import Findings
from hotloop.profiler.render.html import pictures, tables
from hotloop.profiler.render.html.tables import escaped
from hotloop.profiler.session import Process, Session
from hotloop.profiler.session.lockstep import LockstepWaste
from hotloop.profiler.session.stages import STAGES, Stages
from hotloop.profiler.session.throughput import Throughput
from hotloop.system.files import written_whole

__all__ = ["Before", "Section", "render", "write"]

# Of each kind of threads: lines that are shown with what stands around them, and all together.
_TOP_LINES, _MOST_LINES = 5, 20
_NO_SCRIPT = (
    "<noscript><p>Pictures need JavaScript; the tables are complete without it.</p></noscript>"
)


class Section(NamedTuple):
    """A section of the page.

    Attributes:
        name: its anchor's.
        title: a text.
        inside: HTML; empty: there is nothing to show.
    """

    name: str
    title: str
    inside: str


class Before(NamedTuple):
    """What stands before the profile: of a run, what it has learned.

    Attributes:
        overview: a sentence.
        figures: the few numbers that one looks for first, by their names.
        sections: before those of the profile.
        kind: what the page is of.
    """

    overview: str
    figures: Sequence[tuple[str, str]]
    sections: Sequence[Section]
    kind: str = "run"


def write(
    source: Session | Findings | None,
    path: str | os.PathLike[str],
    before: Before | None = None,
) -> None:
    """Write the page.

    Args:
        source: what is reported of; None: nothing was recorded, and the page has `before` alone.
        path: the file.
        before: what stands before it.

    Raises:
        OutputError: it can't be written.
    """
    page = render(source, before)
    with written_whole(Path(path)) as aside:
        # File names of a program may hold what no encoding has.
        aside.write_text(page, encoding="utf-8", errors="replace")


def render(source: Session | Findings | None, before: Before | None = None) -> str:
    """The page; see `write`."""
    found = None if source is None else Findings.of(source)
    sections = [*(before.sections if before else ()), *(_profile(found, before) if found else ())]
    shown = [section for section in sections if section.inside]
    links = "".join(f'<li><a href="#{name}">{title}</a></li>' for name, title, _ in shown)
    body = "\n".join(
        f'<section id="{name}" aria-labelledby="{name}-title"><h2 id="{name}-title">{title}</h2>\n'
        f"{inside}</section>"
        for name, title, inside in shown
    )
    script = _part("page.js") if found else ""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    if before is not None:
        kind, title, overview = before.kind, before.overview, before.overview
        figures = _figure_list(before.figures)
    else:
        assert found is not None
        command = words.one_line(" ".join(found.session.command)) or found.session.main.name
        kind, title, overview = "profile", command, text.overview(found)
        figures = _figure_list(_figures(found))
    media = "; img-src data:; media-src data:" if before else ""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; \
style-src 'unsafe-inline'; script-src 'sha256-{digest}'{media}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escaped(title)} – hotloop {kind}</title>
<style>{_part("page.css")}</style>
</head>
<body>
<header>
<a class="skip" href="#report">Skip to the report</a>
<h1>hotloop {kind}</h1>
<p class="overview">{escaped(overview)}</p>
{figures}
<nav aria-label="Sections"><ul>{links}</ul></nav>
<p id="failure" role="alert" hidden></p>
{_NO_SCRIPT if found else ""}
</header>
<main id="report">
{body}
</main>
{_end(found, script) if found else ""}
</body>
</html>
"""


def _end(found: Findings, script: str) -> str:
    """What recording took, and what pictures are drawn from."""
    session, steps, waste = found.session, found.throughput, found.lockstep
    carried = {
        "timeline": pictures.timeline(session),
        "throughput": pictures.throughput_line(session, steps) if steps else None,
        "lockstep": pictures.lockstep_line(session, waste) if waste else None,
    }
    return f"""<footer><p>{escaped(text.cost(session))}.</p></footer>
<script type="application/json" id="session">{_json(carried)}</script>
<script>{script}</script>"""


def _profile(found: Findings, before: Before | None) -> list[Section]:
    """Sections of where the time went."""
    session, steps, waste = found.session, found.throughput, found.lockstep
    speed = ""
    if before is not None:  # else it stands above all sections
        speed = f"<p>{escaped(text.overview(found))}</p>{_figure_list(_figures(found))}"
    return [
        Section("speed", "Speed", speed),
        Section("diagnosis", "Diagnosis", _diagnoses(found)),
        Section("lines", "Your lines", _lines(found)),
        Section("functions", "Functions", _functions(found)),
        Section("stages", "Stages", _stages(session.main, found.stages(session.main))),
        Section("gpu", "GPU", _gpu(found)),
        Section("timeline", "Timeline", _timeline(found)),
        Section("throughput", "Throughput", _throughput(steps)),
        Section("lockstep", "Waiting in lock-step", _lockstep(waste)),
        Section("trees", "Where the time went", _trees(session)),
        Section("notes", "What is missing", _notes(session)),
    ]


def _part(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def _json(carried: object) -> str:
    """JSON that can't end the element that it stands in, nor begin another one."""
    plain = json.dumps(carried, separators=(",", ":"), allow_nan=False)
    return plain.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


# --- sections: HTML, or empty where there is nothing to show --------------------------------------


def _figures(found: Findings) -> list[tuple[str, str]]:
    """The few numbers that one looks for first."""
    session, steps, start_up_ns = found.session, found.throughput, found.start_up_ns
    wall = max(1e-9, (session.end_ns - session.start_ns) / 1e9)
    figures = [("wall time", f"{wall:,.1f} s")]
    if start_up_ns is not None:
        figures.append((STAGES["import"], f"{start_up_ns / 1e9:,.1f} s"))
        figures.append(("loop", f"{max(0.0, wall - start_up_ns / 1e9):,.1f} s"))
    figures.append(("processes", str(len(session.processes))))
    if any(process.periods for process in session.processes):
        cpu = sum(process.cpu_ns for process in session.processes) / 1e9 / wall
        of = f" of {session.main.cores}" if session.main.cores else ""
        figures.append(("cores in use", f"{cpu:.1f}{of}"))
    if steps is not None:
        figures.append(("environment steps", f"{steps.total:,.0f}"))
        figures.append(("steps a second", f"{steps.mean:,.0f}"))
    own = found.stages(session.main)
    if own.by_stage:
        largest = max(own.by_stage, key=own.share)
        figures.append((f"most of it: {STAGES[largest]}", f"{own.share(largest):.0%}"))
    return figures


def _figure_list(figures: Sequence[tuple[str, str]]) -> str:
    items = "".join(
        f"<div><dt>{escaped(name)}</dt><dd>{escaped(value)}</dd></div>" for name, value in figures
    )
    return f'<dl class="figures">{items}</dl>'


def _diagnoses(found: Findings) -> str:
    told = [words.banner(one) for one in found.banners]
    if found.is_bounded:
        told.append(found.bound)
    return "\n".join(
        [
            *(f'<p class="card">{tables.prose(one)}</p>' for one in told),
            *(
                tables.diagnosis(one, number, found.sources)
                for number, one in enumerate(found.diagnoses, 1)
            ),
        ]
    )


def _lines(found: Findings) -> str:
    """The dearest lines, and what stands around them."""
    parts: list[str] = []
    for costs in found.costs:
        if not costs.lines:
            continue
        top, more = costs.lines[:_TOP_LINES], costs.lines[_TOP_LINES:_MOST_LINES]
        parts.append(f"<h3>{escaped(words.lines_of(costs))}</h3>")
        parts.append(
            tables.line_table(top, found.sources, f"Lines of {costs.name} with the most time")
        )
        parts += [
            tables.listing(one, found.sources)
            for one in found.sources.listings(costs.lines, _TOP_LINES)
        ]
        parts += [
            f'<p class="dim"><code>{escaped(file)}</code> {escaped(problem)}.</p>'
            for file in dict.fromkeys(line.file for line in top)
            if (problem := found.sources.problem(file))
        ]
        if more:
            shown = tables.line_table(more, found.sources, f"More lines of {costs.name}")
            parts.append(f"<details><summary>More lines</summary>{shown}</details>")
    if not parts:
        return ""
    return (
        "<p>Of each main thread's time, what your own lines took with all that they called. "
        "Importing and starting is left out, and where workers wait for others' work.</p>\n"
        + "\n".join(parts)
    )


def _functions(found: Findings) -> str:
    parts = [shown for costs in found.costs if (shown := tables.function_table(costs))]
    if not parts:
        return ""
    return (
        "<p>Your functions, and public ones of libraries. <i>Own</i>: their own lines, and what "
        "they call that is none of these; <i>inclusive</i>: with all that they call.</p>\n"
        + "\n".join(parts)
    )


def _stages(process: Process, found: Stages) -> str:
    return tables.stage_table(process, found) if found.total.samples else ""


def _gpu(found: Findings) -> str:
    use = found.gpu
    if use is None:
        unseen = gpu.no_windows(found.session)
        return f"<p>{tables.prose(unseen)}.</p>" if unseen else ""
    rows = [[escaped(cell) for cell in row] for row in gpu.rows(use)]
    shown = tables.table(["", *gpu.HEADINGS], rows, gpu.title(use))
    return f"<p>{escaped(gpu.note(use))}</p>\n{shown}"


def _timeline(found: Findings) -> str:
    session = found.session
    by_pid = {process.pid: found.stages(process) for process in session.processes}
    seen = {stage for one in by_pid.values() for stage in one.by_stage}
    for process in session.processes:
        seen.update(pictures.stage_of_path(place.path) for place in process.spans)
    legend = "".join(
        f'<li data-stage="{stage}">{tables.swatch(stage)}{escaped(name)}</li>'
        for stage, name in STAGES.items()
        if stage in seen
    )
    number = len(session.processes)
    processes = f"{number} process{'es' if number > 1 else ''}"
    seconds = f"{(session.end_ns - session.start_ns) / 1e9:,.1f} s"
    return f"""<p>A row a process. In each second, what share its main thread spent in which stage;
palest where it was not sampled. The frame is what the picture below shows.</p>
<ul class="legend">{legend}</ul>
<div class="picture"><canvas id="overview" role="img"
aria-label="Stages over time of {processes} over {seconds}; the table below has the numbers">
</canvas></div>
<h3>The latest spans</h3>
<p>Drag to move; Ctrl and the wheel, or two fingers, to zoom; or the buttons, or the arrow keys,
+, − and 0.</p>
<div class="buttons" role="group" aria-label="Move and zoom">
<button type="button" data-do="left" aria-label="earlier">←</button>
<button type="button" data-do="right" aria-label="later">→</button>
<button type="button" data-do="in" aria-label="zoom in">+</button>
<button type="button" data-do="out" aria-label="zoom out">−</button>
<button type="button" data-do="all">all</button>
<button type="button" data-do="latest">latest</button>
<output id="window"></output></div>
<div class="picture tall"><canvas id="events" role="img" tabindex="0"
aria-label="The latest spans of {processes}"></canvas></div>
<details><summary>All processes as a table</summary>
{tables.process_table(session, by_pid)}</details>
"""


def _throughput(steps: Throughput | None) -> str:
    if steps is None:
        return ""
    said = (
        f"<p>{steps.total:,.0f} environment steps, {steps.mean:,.0f} a second over the whole run."
    )
    if not len(steps.per_s):
        return f"{said} There were no samples to tell them over time.</p>"
    tenth = max(1, len(steps.per_s) // 10)
    first, last = steps.per_s[:tenth].mean(), steps.per_s[-tenth:].mean()
    said += f" In its first tenth {first:,.0f} a second, in its last {last:,.0f}.</p>"
    return (
        f'{said}\n<div class="picture"><canvas id="throughput-line" role="img" '
        f'aria-label="Environment steps a second over time"></canvas></div>'
    )


def _lockstep(waste: LockstepWaste | None) -> str:
    if waste is None:
        return ""
    told = "".join(f"<p>{escaped(line)}</p>\n" for line in words.lockstep(waste))
    return f"""{told}<div class="picture"><canvas id="lockstep-line" role="img"
aria-label="Share of the workers' time that they waited, over time"></canvas></div>
<details><summary>Which worker was the slowest</summary>{tables.slowest_table(waste)}</details>
"""


def _trees(session: Session) -> str:
    """Main, all workers as one, then some of them; the first ones open."""
    shown = text.selected(session)
    workers = session.workers
    blocks: list[tuple[str, str]] = []
    for process in shown:
        if process.role != "worker":
            blocks.append((_title(process), tables.component(process)))
    if len(workers) > 1:
        blocks.append((f"all {len(workers)} workers", tables.merged(workers)))
    for process in shown:
        if process.role == "worker":
            blocks.append((_title(process, _which(process, workers)), tables.component(process)))
    about = (
        "<p>Of each component's whole time; <i>(rest)</i> is what no span covers. On a core, "
        "queued for one, or blocked: what the kernel says of its main thread meanwhile.</p>\n"
    )
    return about + "\n".join(
        f"<details{' open' if number < 2 else ''}><summary>{escaped(title)}</summary>{inside}"
        "</details>"
        for number, (title, inside) in enumerate(blocks)
    )


def _which(process: Process, workers: list[Process]) -> list[str]:
    """What it was chosen for."""
    if len(workers) == 1:
        return []
    slowest = max(workers, key=text.busy_ns)
    of = (("first", workers[0]), ("last", workers[-1]), ("slowest", slowest))
    return [word for word, one in of if one is process]


def _title(process: Process, about: Sequence[str] = ()) -> str:
    about = [*about, *(["killed"] if process.state == "killed" else [])]
    return f"{process.name} ({', '.join(about)})" if about else process.name


def _notes(session: Session) -> str:
    lines = "".join(f"<li>{escaped(line)}</li>" for line in text.notes(session))
    return f'<ul class="notes">{lines}</ul>' if lines else ""
