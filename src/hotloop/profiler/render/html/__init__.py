"""HTML report of a session: one self-contained file.

    html.write(session, "report.html")

Python renders the text and tables (`tables`) with the kit of `hotloop.base.html_page`. The page's
script (`script/`) draws charts from JSON in the page (`chart_data`).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from hotloop.base.html_page import Page, Section, escaped, prose, table
from hotloop.base.rounding import format_rate
from hotloop.errors import ProfileError
from hotloop.profiler.render import flame, gpu, phrases, text, what_if
from hotloop.profiler.render.findings import Findings
from hotloop.profiler.render.html import chart_data, tables
from hotloop.profiler.render.lines import LineCost
from hotloop.profiler.session import ProfiledProcess, Session
from hotloop.profiler.session.lockstep import LockstepWaste
from hotloop.profiler.session.memory import memory_growth
from hotloop.profiler.session.stages import STAGES, StageTimes, TimeSum
from hotloop.profiler.session.throughput import Throughput
from hotloop.timing import policy_shares

__all__ = ["profile_page", "render", "write"]

# For each group of threads: number of lines shown with source code, and number of all lines.
_TOP_LINES, _MAX_LINES = 5, 20
# Number of processes whose growth gets a sentence. The table lists all processes.
_MAX_GROWING = 5


def write(source: Session | Findings, path: str | os.PathLike[str]) -> None:
    """Write the page of a session to a file.

    Raises:
        OutputError: The file can't be written.
    """
    profile_page(source).write(path)


def render(source: Session | Findings) -> str:
    """Return the page of a session."""
    return profile_page(source).render()


def profile_page(source: Session | Findings) -> Page:
    """Return the page of a session, which may become a part of another page."""
    findings = Findings.from_source(source)
    session, steps, waste = findings.session, findings.throughput, findings.lockstep
    # The listings come first, since findings and the flame graph link to their lines.
    anchors = tables.Anchors()
    lines = _lines(findings, anchors)
    stacks = _stacks(session)
    return Page(
        kind="profile",
        title=phrases.one_line(" ".join(session.command)) or session.main.name,
        overview=text.overview(findings),
        figures=_figures(findings),
        sections=[
            Section("diagnosis", "Diagnosis", _diagnoses(findings, anchors)),
            Section("what-if", "What if a place were faster", _what_if(findings)),
            Section("lines", "Most expensive lines", lines),
            Section("flame", "Flame graph", _flame(session) if stacks else ""),
            Section("functions", "Functions", _functions(findings)),
            Section("stages", "Stages", _stages(session.main, findings.stages(session.main))),
            Section("policies", "Policies", _policies(session.main)),
            Section("gpu", "GPU", _gpu(findings)),
            Section("timeline", "Timeline", _timeline(findings)),
            Section("memory", "Memory", _memory(session)),
            Section("throughput", "Throughput", _throughput(steps)),
            Section("lockstep", "Waiting for the slowest worker", _lockstep(waste)),
            Section("trees", "Time by span", _trees(session)),
            Section("notes", "Missing data", _notes(session)),
        ],
        footer=f"{text.recording_overhead(session)}.",
        script=page_script("kit", "timeline", "over_time", "flame", "sorting", "trees", "start"),
        chart_data={
            "timeline": chart_data.timeline(
                session, [diagnosis.places for diagnosis in findings.diagnoses]
            ),
            "flame": chart_data.flame_graph(stacks, anchors.by_function) if stacks else None,
            "memory": chart_data.memory_lines(session),
            "throughput": chart_data.throughput_line(session, steps) if steps else None,
            "lockstep": chart_data.lockstep_line(session, waste) if waste else None,
        },
    )


def page_script(*names: str) -> str:
    """Return a page's JavaScript, made of files of `script/`."""
    folder = Path(__file__).with_name("script")
    parts = [(folder / f"{name}.js").read_text(encoding="utf-8") for name in names]
    return "\n".join(['"use strict";', "(() => {", *parts, "})();"])


def _stacks(session: Session) -> flame.Folded:
    """Return the stacks of all processes, with those of several workers merged; empty if none."""
    try:
        return flame.folded(session, merge_workers=len(session.workers) > 1)
    except ProfileError:
        return {}


# --- sections: HTML, or empty if there is nothing to show -----------------------------------------


def _figures(findings: Findings) -> list[tuple[str, str]]:
    """Return the names and values of the most important numbers."""
    session, steps, start_up_ns = findings.session, findings.throughput, findings.start_up_ns
    wall = max(1e-9, (session.end_ns - session.start_ns) / 1e9)
    figures = [("wall time", f"{wall:,.1f} s")]
    if start_up_ns is not None:
        figures.append((STAGES["import"], f"{start_up_ns / 1e9:,.1f} s"))
        figures.append(("loop", f"{max(0.0, wall - start_up_ns / 1e9):,.1f} s"))
    figures.append(("processes", str(len(session.processes))))
    if cpu_ns := sum(process.cpu_ns for process in session.processes):
        cpu = cpu_ns / 1e9 / wall
        total = f" of {session.main.cores}" if session.main.cores else ""
        figures.append(("cores in use", f"{cpu:.1f}{total}"))
    if steps is not None:
        figures.append(("environment steps", f"{steps.total:,.0f}"))
        figures.append(("steps per second", format_rate(steps.mean)))
    stages = findings.stages(session.main)
    if stages.by_stage:
        largest = max(stages.by_stage, key=stages.share)
        figures.append((f"largest stage: {STAGES[largest]}", f"{stages.share(largest):.0%}"))
    return figures


def _diagnoses(findings: Findings, anchors: tables.Anchors) -> str:
    timed = any(period.by_stack for x in findings.session.processes for period in x.periods)
    summary = [phrases.banner_text(diagnosis) for diagnosis in findings.banners]
    if findings.has_no_removable_cost:
        summary.append(findings.bound)
    return "\n".join(
        [
            *(f'<p class="card">{prose(sentence)}</p>' for sentence in summary),
            *(
                tables.diagnosis_card(diagnosis, number, findings.sources, anchors, timed)
                for number, diagnosis in enumerate(findings.diagnoses, 1)
            ),
        ]
    )


def _what_if(findings: Findings) -> str:
    result = findings.what_if
    if result is None:
        return ""
    rows = [[escaped(cell) for cell in row] for row in what_if.rows(result)]
    content = table(what_if.HEADINGS, rows, "Measured elasticities") if rows else ""
    return content + "".join(f"<p>{prose(line)}</p>\n" for line in what_if.sentences(result))


def _lines(findings: Findings, anchors: tables.Anchors) -> str:
    """Return the most expensive lines, with the code around them and that of the findings."""
    parts: list[str] = []
    for costs in findings.costs:
        if not costs.lines:
            continue
        top, more = costs.lines[:_TOP_LINES], costs.lines[_TOP_LINES:_MAX_LINES]
        parts.append(f"<h3>{escaped(phrases.costs_title(costs))}</h3>")
        parts.append(
            tables.line_table(top, findings.sources, f"Most expensive lines ({costs.name})")
        )
        parts += [
            tables.listing(listing, findings.sources, anchors)
            for listing in findings.sources.listings(costs.lines, _TOP_LINES)
        ]
        parts += [
            f'<p class="dim"><code>{escaped(file)}</code> {escaped(problem)}.</p>'
            for file in dict.fromkeys(line.file for line in top)
            if (problem := findings.sources.problem(file))
        ]
        if more:
            line_table = tables.line_table(more, findings.sources, f"More lines ({costs.name})")
            parts.append(f"<details><summary>More lines</summary>{line_table}</details>")
    if not parts:
        return ""
    parts += _listings_of_findings(findings, anchors)
    return (
        "<p>Time of your lines, including all that they call, as a share of each thread's time. "
        "Importing and starting are excluded, and so is the time in which workers wait.</p>\n"
        + "\n".join(parts)
    )


def _listings_of_findings(findings: Findings, anchors: tables.Anchors) -> list[str]:
    """Return the code around the places of findings that no listing has yet."""
    costs = {(x.file, x.line): x for item in reversed(findings.costs) for x in item.lines}
    missing = [
        costs.get((file, line)) or LineCost(file, line, function, "other", TimeSum(), 0.0)
        for function, file, line in (x.places[0] for x in findings.diagnoses if x.places)
        if not anchors.find(file, line)
    ]
    listings = findings.sources.listings(missing, len(missing))
    parts = [tables.listing(listing, findings.sources, anchors) for listing in listings]
    return ["<h3>Other places of the findings</h3>", *parts] if parts else []


def _flame(session: Session) -> str:
    workers = len(session.workers)
    merged = f" The {workers} workers are merged." if workers > 1 else ""
    return f"""<p>Wider frames took more time. Processes are on top, then open spans in brackets,
then functions.{merged} Click a frame to see only what it contains. The arrow keys, Enter and Escape
also work.</p>
{flame_controls()}
<div class="picture tall"><canvas id="flame-graph" role="img" tabindex="0"
aria-label="Flame graph. The table of functions has the numbers"></canvas></div>
<p class="flame-line"><output id="flame-details" aria-live="polite"></output>
<a id="flame-source" href="#lines" hidden>source</a></p>
"""


def flame_controls(*, has_kinds: bool = True) -> str:
    """Return the search field and the switch for libraries of a flame graph.

    Args:
        has_kinds: whether the color shows the kind of a frame, which a legend then explains.
    """
    kinds = (
        ("user", "your code"),
        ("library", "libraries"),
        ("python", "Python itself"),
        ("span", "[span]"),
        ("process", "process or thread"),
    )
    legend = "".join(
        f'<li><i class="swatch" style="background:var(--frame-{kind})"></i>{name}</li>'
        for kind, name in kinds
    )
    return f"""{f'<ul class="legend">{legend}</ul>' if has_kinds else ""}
<div class="buttons" role="group" aria-label="Flame graph">
<input type="search" id="flame-search" placeholder="search functions and files"
aria-label="Search functions and files: a regular expression">
<label><input type="checkbox" id="flame-libraries"> libraries</label>
<button type="button" id="flame-reset">reset</button>
<output id="flame-matched" aria-live="polite"></output></div>"""


def _memory(session: Session) -> str:
    lines = chart_data.memory_lines(session)
    if not lines:
        return ""
    growing = [
        f"<p>The memory of {escaped(process.name)} keeps growing: "
        f"{growth.first_bytes / 1e6:,.0f} MB after the start, {growth.last_bytes / 1e6:,.0f} MB at "
        f"the end, {60 * growth.bytes_per_s / 1e6:,.0f} MB per minute.</p>"
        for process in session.processes
        if (growth := memory_growth(process)) is not None
    ]
    sentences = "\n".join(growing[:_MAX_GROWING]) or "<p>No process keeps growing.</p>"
    legend = "".join(
        f"<li>{tables.swatch(line['color'])}{escaped(line['name'])}</li>" for line in lines
    )
    number = len(session.processes)
    largest = f" The {len(lines)} largest of {number} processes:" if len(lines) < number else ""
    return f"""{sentences}
<p>Resident memory, which includes memory that processes share.{largest}</p>
<ul class="legend">{legend}</ul>
<div class="picture"><canvas id="memory-lines" role="img"
aria-label="Memory over time. The table below has the numbers"></canvas></div>
<details><summary>Memory of all processes</summary>{tables.memory_table(session)}</details>
"""


def _functions(findings: Findings) -> str:
    parts = [part for costs in findings.costs if (part := tables.function_table(costs))]
    if not parts:
        return ""
    return (
        "<p>Your functions, and public functions of libraries. <i>Own</i>: time in their own lines "
        "and in unlisted functions. <i>Inclusive</i>: time with all that they call.</p>\n"
        + "\n".join(parts)
    )


def _stages(process: ProfiledProcess, stages: StageTimes) -> str:
    return tables.stage_table(process, stages) if stages.total.samples else ""


def _policies(process: ProfiledProcess) -> str:
    rows = [[escaped(cell) for cell in row] for row in policy_shares.share_rows(process.tree)]
    caption = "Time of each policy, without that of others inside its steps"
    return table(policy_shares.HEADINGS, rows, caption) if rows else ""


def _gpu(findings: Findings) -> str:
    use = findings.gpu
    if use is None:
        note = gpu.missing_windows_note(findings.session)
        return f"<p>{prose(note)}.</p>" if note else ""
    rows = [[escaped(cell) for cell in row] for row in gpu.rows(use)]
    content = table(["", *gpu.HEADINGS], rows, gpu.title(use))
    return f"<p>{escaped(gpu.clock_note(use))}</p>\n{content}"


def _timeline(findings: Findings) -> str:
    session = findings.session
    by_pid = {process.pid: findings.stages(process) for process in session.processes}
    present = {stage for stages in by_pid.values() for stage in stages.by_stage}
    for process in session.processes:
        present.update(chart_data.stage_of_path(place.path) for place in process.spans)
    legend = "".join(
        f'<li data-stage="{stage}">{tables.swatch(stage)}{escaped(name)}</li>'
        for stage, name in STAGES.items()
        if stage in present
    )
    number = len(session.processes)
    processes = f"{number} process{'es' if number > 1 else ''}"
    seconds = f"{(session.end_ns - session.start_ns) / 1e9:,.1f} s"
    return f"""<p>One row per process: the share of each stage in its main thread, by second.
Pale parts were not sampled. The frame marks the time range of the chart below.</p>
<ul class="legend">{legend}</ul>
<p id="marked-place" class="card" hidden><span></span>
<button type="button">show the stages</button></p>
<div class="picture"><canvas id="overview" role="img"
aria-label="Stages of {processes} over {seconds}. The table below has the numbers">
</canvas></div>
<h3>The latest spans</h3>
<p>Drag to move, use Ctrl and the wheel or two fingers to zoom. The buttons, the arrow keys, +, −
and 0 also work.</p>
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
    summary = f"<p>{steps.total:,.0f} environment steps, {format_rate(steps.mean)} per second "
    summary += "over the whole run."
    if not len(steps.per_s):
        return f"{summary} Without samples, their rate over time is unknown.</p>"
    tenth = max(1, len(steps.per_s) // 10)
    first, last = steps.per_s[:tenth].mean(), steps.per_s[-tenth:].mean()
    summary += f" First tenth: {format_rate(first)} per second, "
    summary += f"last tenth: {format_rate(last)}.</p>"
    return (
        f'{summary}\n<div class="picture"><canvas id="throughput-line" role="img" '
        f'aria-label="Environment steps per second over time"></canvas></div>'
    )


def _lockstep(waste: LockstepWaste | None) -> str:
    if waste is None:
        return ""
    sentences = "".join(f"<p>{escaped(line)}</p>\n" for line in phrases.lockstep_sentences(waste))
    return f"""{sentences}<div class="picture"><canvas id="lockstep-line" role="img"
aria-label="Share of time in which the workers wait, over time"></canvas></div>
<details><summary>Slowest workers</summary>{tables.slowest_table(waste)}</details>
"""


def _trees(session: Session) -> str:
    """Return the trees of main, all workers merged, and some workers. The first two are open."""
    selected = text.selected_processes(session)
    workers = session.workers
    blocks: list[tuple[str, str]] = []
    for process in selected:
        if process.role != "worker":
            blocks.append((_title(process), tables.component_tree(process)))
    if len(workers) > 1:
        blocks.append((f"all {len(workers)} workers", tables.merged_tree(workers)))
    for process in selected:
        if process.role == "worker":
            title = _title(process, _selection_reasons(process, workers))
            blocks.append((title, tables.component_tree(process)))
    introduction = (
        "<p>Shares of each component's time. <i>(rest)</i> is outside of any span. The last "
        "columns show how long its main thread was on the CPU, queued for a core, or blocked.</p>\n"
    )
    return introduction + "\n".join(
        f"<details{' open' if number < 2 else ''}><summary>{escaped(title)}</summary>{tree}"
        "</details>"
        for number, (title, tree) in enumerate(blocks)
    )


def _selection_reasons(process: ProfiledProcess, workers: list[ProfiledProcess]) -> list[str]:
    """Return why a worker is shown: "first", "last", "slowest"."""
    if len(workers) == 1:
        return []
    slowest = max(workers, key=text.busy_ns)
    reasons = (("first", workers[0]), ("last", workers[-1]), ("slowest", slowest))
    return [reason for reason, worker in reasons if worker is process]


def _title(process: ProfiledProcess, notes: Sequence[str] = ()) -> str:
    notes = [*notes, *(["killed"] if process.state == "killed" else [])]
    return f"{process.name} ({', '.join(notes)})" if notes else process.name


def _notes(session: Session) -> str:
    lines = "".join(f"<li>{escaped(line)}</li>" for line in text.problem_notes(session))
    return f'<ul class="notes">{lines}</ul>' if lines else ""
