"""The page shows the content of a session, parsed as HTML and drawn in a browser."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import re
import subprocess
import sys
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hotloop import cli, profiler
from hotloop.errors import OutputError
from hotloop.profiler import diagnose
from hotloop.profiler.diagnose import Diagnosis
from hotloop.profiler.diagnose.comparison import compare
from hotloop.profiler.render import html, text
from hotloop.profiler.render.html import chart_data
from hotloop.profiler.render.html import comparison as comparison_page
from hotloop.profiler.session import Frame, ProfiledProcess, Session, UnrecordedProcess
from hotloop.profiler.session.stages import STAGES, CodeLine
from hotloop.timing.reader import EVENT, SpanPath
from tests import browser
from tests.profiler.sessions import (
    START_NS,
    period,
    process,
    sample,
    session,
    span,
)

HOSTILE = "<script>alert('x')</script>"
BREAKOUT = "</script><img src=x onerror=alert(1)><!--"
# After this text, the end tag of a script would not end it.
COMMENT = "<!--<script "


def steps(name: str | tuple[str, ...], *times: tuple[float, float]) -> list[Any]:
    return [span(name, start, end) for start, end in times]


def example_session(hostile: str = HOSTILE) -> Session:
    """Return a session of a learner and three workers in lock-step over 10 s. One is killed at 6 s.

    Each second, main steps for 0.5 s, in which the workers are busy for 0.1, 0.2 and 0.4 s. Then it
    learns for 0.3 s.
    """
    collect, learn = ("collect", "vector_step"), (hostile, "update")
    main = process(
        spans=[
            *steps("collect", *((t, t + 0.5) for t in range(10))),
            *steps(collect, *((t, t + 0.5) for t in range(10))),
            *steps((hostile,), *((t + 0.6, t + 0.95) for t in range(10))),
            *steps(learn, *((t + 0.6, t + 0.9) for t in range(10))),
        ],
        samples=[
            sample("main (train.py:9)", "step (env.py:3)", path=collect, elapsed_s=5, on_core_s=1),
            sample(
                "main (train.py:12)", "learn (train.py:40)",
                path=learn, elapsed_s=3.0, on_core_s=2.4, queued_s=0.6,
            ),
            sample("main (train.py:14)", elapsed_s=2.0, on_core_s=2.0),
        ],
        periods=[
            period(
                t,
                cpu_s=0.6 * t,
                resident=300_000_000,
                spans={collect: (t, 0.5 * t), learn: (t, 0.3 * t)},
                by_path={collect: 50, learn: 30, "": 20},
            )
            for t in range(1, 11)
        ],
        facts={"num_envs": 3.0},
        cores=4,
        command=["python", "train.py", "--name", hostile],
    )  # fmt: skip
    workers = [
        process(
            f"worker-{number}",
            role="worker",
            pid=200 + number,
            parent_pid=100,
            state=state,
            end_s=end_s,
            spans=[
                *steps("env_step", *((t + 0.05, t + 0.05 + took) for t in range(int(end_s)))),
                *([] if end_s == 10.0 else [span("env_step", 6.0)]),
            ],
            periods=[period(t, by_path={"env_step": 50, "": 50}) for t in range(1, int(end_s) + 1)],
        )
        for number, (took, end_s, state) in enumerate(
            ((0.1, 10.0, "complete"), (0.2, 6.5, "killed"), (0.4, 10.0, "complete"))
        )
    ]
    return session(
        main,
        *workers,
        metadata={"command": ["python", "train.py", hostile], "exit_code": 0},
        unrecorded=[UnrecordedProcess(999, 100, f"simulator {hostile}", 2_000_000_000)],
        problems=["one.hlt ends in its header"],
    )


DIAGNOSES = [
    Diagnosis(
        "stragglers",
        "every step waits for its slowest environment",
        0.9,
        1.84,
        ("4 workers, one of them slow", f"named {HOSTILE}"),
        "Let them `go on` by themselves.",
        "hotloop profile train.py & echo <done>",
        (CodeLine("step", "env.py", 3), CodeLine("main", "train.py", 9)),
        "sleep",
        "growing",
        2.2,
    ),
    Diagnosis("odd", "something odd", 0.5, None, (), "Look at it.", "hotloop report"),
]


@pytest.fixture(autouse=True)
def diagnoses(monkeypatch: pytest.MonkeyPatch) -> list[Diagnosis]:
    """Replace the diagnoses of all sessions by a list."""
    diagnoses = list(DIAGNOSES)
    monkeypatch.setattr(diagnose, "diagnose", lambda session: diagnoses)
    monkeypatch.setattr(diagnose, "bound", lambda session: "61% of the time is <fine>.")
    return diagnoses


# --- as HTML --------------------------------------------------------------------------------------


@dataclass
class ParsedPage(HTMLParser):
    """A parsed page: its scripts, tables by name or caption, tags and text."""

    scripts: list[tuple[dict[str, str | None], str]] = field(default_factory=list)
    tables: dict[str, list[list[str]]] = field(default_factory=dict)
    tags: list[tuple[str, dict[str, str | None]]] = field(default_factory=list)
    words: str = ""

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._table: list[list[str]] | None = None
        self._inside: list[str] = []
        self._caption = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        self.tags.append((tag, attributes))
        self._inside.append(tag)
        if tag == "script":
            self.scripts.append((attributes, ""))
        elif tag == "table":
            self._table, self._caption = [], attributes.get("aria-label") or ""
        elif tag == "tr" and self._table is not None:
            self._table.append([])
        elif tag in ("th", "td") and self._table is not None:
            self._table[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        while self._inside and self._inside.pop() != tag:
            pass
        if tag == "table" and self._table is not None:
            assert self._caption not in self.tables
            self.tables[self._caption] = self._table
            self._table = None

    def handle_data(self, data: str) -> None:
        if "script" in self._inside:
            attributes, words = self.scripts[-1]
            self.scripts[-1] = attributes, words + data
            return
        self.words += data
        if "caption" in self._inside:
            self._caption += data
        elif self._table and {"th", "td"}.intersection(self._inside):
            self._table[-1][-1] += data

    def row(self, table: str, heading: str) -> list[str]:
        """Return the only row of a table that starts with a heading."""
        rows = [row[1:] for row in self.tables[table] if row[0] == heading]
        assert len(rows) == 1, (heading, self.tables[table])
        return rows[0]

    @property
    def chart_values(self) -> dict[str, Any]:
        """The data of the charts."""
        return json.loads(self.scripts[0][1])


def parse_page(profile: Session) -> ParsedPage:
    page = ParsedPage()
    page.feed(html.render(profile))
    return page


def test_trees_show_the_session() -> None:
    page = parse_page(example_session())
    head = ["span", "share", "calls", "p50", "p99", "total", "on CPU", "queued", "blocked"]
    assert page.tables["main"][0] == head
    # In 10 s: 10 steps of 0.5 s. By 5 s of samples: 1 s on a core, 4 s blocked.
    assert page.row("main", "vector_step") == [
        "50.0%", "10", "500 ms", "500 ms", "5.00 s", "20%", "0%", "80%",
    ]  # fmt: skip
    assert page.row("main", "update")[:2] == ["30.0%", "10"]
    assert page.row("main", "update")[-3:] == ["80%", "20%", "0%"]
    # Uncovered time: 3.5 s less 3 s inside a span, and 10 s less 5 s and 3.5 s.
    uncovered = [row[1] for row in page.tables["main"] if row[0] == "(rest)"]
    assert uncovered == ["5.0%", "15.0%"]
    # In 10, 6.5 and 10 s: 10 × 0.1 s, 6 × 0.2 s with an open span of 0.5 s, and 10 × 0.4 s.
    merged = page.row("all 3 workers", "env_step still open")
    assert merged[0] == f"{(1.0 + 1.7 + 4.0) / 26.5:.1%}"
    assert merged[1] == "26"
    assert merged[-3:] == ["10.0%", f"{1.7 / 6.5:.1%}", "40.0%"]
    assert page.row("worker-0", "env_step")[:2] == ["10.0%", "10"]
    assert "on CPU" not in page.tables["worker-0"][0], "there are no samples of it"
    for title in ("worker-0 (first)", "worker-2 (last, slowest)"):
        assert title in page.words


def test_tree_rows_have_levels() -> None:
    page = parse_page(example_session())
    rows = [attrs for tag, attrs in page.tags if tag == "tr" and "aria-level" in attrs]
    main = [(attrs["aria-level"], attrs.get("aria-expanded")) for attrs in rows[:7]]
    # main, collect, vector_step, the hostile span, update, and the two "(rest)" rows.
    assert main == [
        ("1", "true"), ("2", "true"), ("3", None), ("2", "true"), ("3", None), ("3", None),
        ("2", None),
    ]  # fmt: skip


def test_stages_lines_and_processes() -> None:
    page = parse_page(example_session())
    stages = "Stages (main process, 1,000 main thread samples)"
    assert page.row(stages, "stepping and resetting environments")[:2] == ["50.0%", "5.00 s"]
    # Learning includes the span and, by its name, the function around it.
    assert page.row(stages, "learning") == ["50.0%", "5.00 s", "88%", "12%", "0%"]
    lines = "Most expensive lines (main process)"
    assert page.row(lines, "train.py:40 in learn") == [
        "30.0%", "80%", "20%", "0%", "learning", "",
    ]  # fmt: skip
    processes = "All processes, with the stages of their main threads"
    head = page.tables[processes][0]
    killed = dict(zip(head[1:], page.row(processes, "worker-1"), strict=True))
    assert (killed["pid"], killed["duration"], killed["state"]) == ("201", "6.5 s", "killed")
    main = dict(zip(head[1:], page.row(processes, "main"), strict=True))
    assert (main["cores"], main["memory"], main[STAGES["env"]]) == (
        "0.60", "300 MB", "50%",
    )  # fmt: skip


def test_diagnoses_overview_notes_and_cost(diagnoses: list[Diagnosis]) -> None:
    example = example_session()
    page = parse_page(example)
    for words in (
        text.overview(example),
        "every step waits for its slowest environment",
        "up to 1.8× as fast (loop alone: 2.2×)",
        "confidence 90%",
        "blocked: sleep",
        "growing over time",
        "at env.py:3 in step",
        "and train.py:9 in main",
        "Let them go on by themselves.",
        f"named {HOSTILE}",
        "hotloop profile train.py & echo <done>",
        f"not recorded: process 999, 2.0 s of CPU time: simulator {HOSTILE}",
        "one.hlt ends in its header",
        text.recording_overhead(example),
    ):
        assert words in page.words
    assert page.words.count("up to ") == 1, "an unknown gain is not printed"
    diagnoses.clear()
    words = parse_page(example).words
    assert "61% of the time is <fine>." in words
    assert "Nothing found" not in words


def test_throughput_and_lockstep_in_text_and_charts() -> None:
    page = parse_page(example_session())
    # 10 vector steps of 3 environments in 10 s.
    assert "30 environment steps, 3 per second over the whole run." in page.words
    assert page.chart_values["throughput"] == {
        "at": [int((t + 0.5) * 1e9) for t in range(10)],
        "values": [3.0] * 10,
    }
    # With three workers: 0.1, 0.2 and 0.4 s, so 0.3 + 0.2 wasted. Later 0.1 and 0.4 s: 0.3.
    assert "3 workers step together" in page.words
    assert "In 10 steps of main they waited 4.2 s, 40%" in " ".join(page.words.split())
    first, last = 0.5 / (0.5 + 0.7), 0.3 / (0.3 + 0.5)
    waste = page.chart_values["lockstep"]["values"]
    assert waste == pytest.approx([100 * first] * 6 + [100 * last] * 4, abs=0.05)
    assert (
        "worker-2 is the slowest in 100% of the steps: its typical step takes 400 ms, that of the "
        "others 150 ms, 2.7×."
    ) in page.words
    slowest = "Steps in which each worker was the slowest"
    assert page.row(slowest, "worker-2") == ["10", "100.0%"]


def test_key_figures_separate_start_up_and_loop() -> None:
    importing = "_find_and_load (<frozen importlib._bootstrap>:1)"
    page = parse_page(
        session(
            process(
                samples=[
                    sample("main (train.py:1)", importing, elapsed_s=4.0),
                    sample("main (train.py:2)", "run (train.py:9)", elapsed_s=6.0),
                ]
            )
        )
    )
    figures = page.words.partition("Skip to the report")[2]
    for words in (
        "wall time10.0 s", "importing and starting4.0 s", "loop6.0 s", "largest stage: everything "
        "else60%",
    ):  # fmt: skip
        assert words in figures
    # Start-up is not listed among the lines of the loop.
    assert [row[0] for row in page.tables["Most expensive lines (main process)"][1:]] == [
        "train.py:9 in run"
    ]


def test_the_most_expensive_lines_are_listed_open(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text("".join(f"line_{n} = '<b>{n}'\n" for n in range(1, 41)))
    example = session(
        process(
            samples=[
                sample(f"main ({file}:20)", elapsed_s=5.0, on_core_s=5.0),
                sample(f"main ({file}:22)", "work (/x/site-packages/lib/a.py:7)", elapsed_s=2.0),
                sample(f"main ({file}:35)", f"_inner ({file}:2)", elapsed_s=1.0),
            ]
        ),
        metadata={"started": "2100-01-01T00:00:00+0000"},
    )
    page = parse_page(example)
    titles = [attrs["id"] for tag, attrs in page.tags if tag == "section"]
    assert titles[:4] == ["diagnosis", "lines", "flame", "functions"]
    # Adjacent lines are listed once with three lines around them, like the start of the file.
    listing = f"{file}, lines 17 to 25"
    assert [row[0] for row in page.tables[listing]] == [str(n) for n in range(17, 26)]
    assert page.row(listing, "20") == ["62.5%", "line_20 = '<b>20'"]
    assert page.row(listing, "21") == ["", "line_21 = '<b>21'"]
    assert page.row(listing, "22") == ["25.0%", "line_22 = '<b>22'"]
    assert [row[0] for row in page.tables[f"{file}, lines 1 to 5"]] == list("12345")
    columns = "62.5%", "62.5%", "your code", f"{tmp_path.name}/train.py:20"
    assert page.tables["Functions (main process)"][1] == ["main", *columns]
    assert page.row("Functions (main process)", "work")[:3] == ["25.0%", "25.0%", "library"]
    inside = [tag for tag, _ in page.tags].index("details")
    sections = [attrs.get("id") for _, attrs in page.tags[:inside]]
    assert "lines" in sections
    assert "timeline" in sections, "nothing above the timeline is collapsed"
    file.unlink()
    assert "no longer exists." in parse_page(example).words


def test_the_timeline_has_periods_and_events() -> None:
    page = parse_page(example_session())
    timeline = page.chart_values["timeline"]
    assert timeline["length"] == 10_000_000_000
    names = [stage for stage, _ in timeline["stages"]]
    main, killed = timeline["processes"][0], timeline["processes"][2]
    assert main["ends"] == [t * 1_000_000_000 for t in range(1, 11)]
    percents = dict(zip(names, main["percents"][3], strict=True))
    assert {name: part for name, part in percents.items() if part} == {
        "env": 50, "update": 50,
    }  # fmt: skip
    assert (killed["name"], killed["killed"], killed["to"]) == ("worker-1", True, 6_500_000_000)
    [lane] = main["lanes"]
    starts = np.cumsum(lane["starts"]) / 1e9
    paths = [main["spans"][number][0] for number in lane["spans"]]
    events = list(zip(starts.tolist(), paths, np.array(lane["durations"]) / 1e9, strict=True))
    assert events[:4] == [
        (0.0, ["collect"], 0.5),
        (0.0, ["collect", "vector_step"], 0.5),
        (0.6, [HOSTILE], 0.35),
        (0.6, [HOSTILE, "update"], 0.3),
    ]
    assert [[HOSTILE, "update"], "update"] in main["spans"]
    # The span in which it was killed is drawn until that time.
    [lane] = killed["lanes"]
    assert len(lane["starts"]) == 7
    assert sum(lane["starts"]) + lane["durations"][-1] == 6_500_000_000


def test_stages_of_a_period_follow_from_its_stacks() -> None:
    main = process(
        samples=[
            sample(
                "main (a.py:1)", "Module.forward (/x/torch/nn/modules/module.py:1)", elapsed_s=1.0
            ),
            sample("main (a.py:2)", "Env.step (/x/gymnasium/core.py:1)", elapsed_s=3.0),
        ],
        periods=[
            period(1.0, by_path={"": 100})._replace(by_stack={0: 25, 1: 75}),
            period(2.0, by_path={"": 100})._replace(by_stack={1: 100}),
            period(3.0, by_path={"": 100}),
        ],
    )
    ends, percents = chart_data.period_stages(main, 10)
    names = list(chart_data.STAGES)
    assert ends.tolist() == [START_NS + t * 1_000_000_000 for t in (1, 2, 3)]
    assert percents[:, names.index("env")].tolist() == [75, 100, 75]
    assert percents[:, names.index("act")].tolist() == [25, 0, 25]
    # Two periods are merged: 175 of 200. The third stays separate.
    ends, percents = chart_data.period_stages(main, 2)
    assert ends.tolist() == [START_NS + t * 1_000_000_000 for t in (2, 3)]
    assert percents[:, names.index("env")].tolist() == [88, 75]


def test_an_empty_session() -> None:
    page = parse_page(session(process(end_s=0.0)))
    assert page.tables["main"][1][:2] == ["main", "100.0%"]
    assert page.chart_values["throughput"] is None
    assert page.chart_values["timeline"]["processes"][0]["lanes"] == []
    assert "environment steps" not in page.words


# --- flame graph, links and memory ----------------------------------------------------------------


def flame_rows(page: ParsedPage) -> list[tuple[int, str, str, int]]:
    """Return depth, function, kind and milliseconds of the flame graph's nodes."""
    flame = page.chart_values["flame"]
    nodes = flame["nodes"]
    return [
        (depth, flame["frames"][frame]["function"], flame["frames"][frame]["kind"], ns // 10**6)
        for frame, depth, ns in zip(nodes["frame"], nodes["depth"], nodes["ns"], strict=True)
    ]


def test_the_flame_graph_has_processes_spans_and_kinds() -> None:
    library = "forward (/x/site-packages/torch/nn.py:7)"
    page = parse_page(
        session(
            process(
                samples=[
                    sample("main (/t.py:3)", library, path="learn", elapsed_s=3.0),
                    sample("main (/t.py:3)", elapsed_s=1.0),
                ]
            )
        )
    )
    assert flame_rows(page) == [
        (1, "main", "process", 4000),
        (2, "[learn]", "span", 3000),
        (3, "main", "user", 3000),
        (4, "forward", "library", 3000),
        (2, "main", "user", 1000),
    ]


def test_a_large_flame_graph_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chart_data, "MAX_FRAMES", 10)
    stacks = {(Frame("main", "", 0), Frame(f"f{n}", "/t.py", n)): 2**n for n in range(20)}
    graph = chart_data.flame_graph(stacks, {})
    assert graph["nodes"]["ns"] == [2**20 - 1, *(2**n for n in range(19, 11, -1))]


def test_findings_link_to_source_flame_graph_and_timeline(
    tmp_path: Path, diagnoses: list[Diagnosis]
) -> None:
    file = tmp_path / "train.py"
    file.write_text("".join(f"line_{n} = {n}\n" for n in range(1, 61)))
    diagnoses[:] = [
        dataclasses.replace(DIAGNOSES[0], places=(CodeLine("work", str(file), line),))
        for line in (20, 50)
    ]
    example = session(
        process(
            samples=[
                sample(f"main ({file}:20)", elapsed_s=9.0),
                sample(f"main ({file}:50)", elapsed_s=0.05),
            ],
            periods=[
                period(t)._replace(by_stack={0: 75, 1: 25 * (t == 2)} if t > 1 else {0: 100})
                for t in range(1, 4)
            ],
        )
    )
    page = parse_page(example)
    links = [attrs for tag, attrs in page.tags if tag == "a" and "href" in attrs]
    targets = {attrs.get("id") for _, attrs in page.tags}
    sources = [x["href"] for x in links if str(x["href"]).startswith("#source")]
    assert sources == ["#source-0-20", "#source-0-50"]
    assert {str(x["href"])[1:] for x in links} - {"report"} <= targets
    flames = [(x["data-function"], x["data-file"]) for x in links if "data-function" in x]
    assert flames == [("work", str(file))] * 2
    assert [x["data-place"] for x in links if "data-place" in x] == ["0", "1"]
    places = page.chart_values["timeline"]["places"]
    assert [x["percents"] for x in places] == [[[100, 75, 100]], [[0, 25, 0]]]


def test_memory_by_process_and_its_growth() -> None:
    periods = [period(t, resident=(300 + 10 * t) * 1_000_000) for t in range(1, 41)]
    steady = [period(t, resident=90_000_000) for t in range(1, 41)]
    page = parse_page(
        session(
            process(end_s=40.0, periods=periods),
            process("worker-0", role="worker", pid=201, end_s=40.0, periods=steady),
        )
    )
    assert "The memory of main keeps growing: 440 MB after the start, 700 MB at the" in page.words
    assert page.row("Resident memory", "main") == [
        "310 MB", "700 MB", "700 MB", "600 MB per minute",
    ]  # fmt: skip
    main, worker = page.chart_values["memory"]
    assert (main["name"], main["values"][0], main["values"][-1]) == ("main", 310, 700)
    assert set(worker["values"]) == {90}


# --- comparisons ----------------------------------------------------------------------------------


def compared_sessions(hostile: str = "") -> tuple[Session, Session]:
    """Return two sessions of which the second spends less time in a function."""
    return tuple(  # pyright: ignore[reportReturnType]
        session(
            process(
                samples=[
                    sample(f"main (/{folder}/t.py:3)", f"slow{hostile} (/{folder}/t.py:{line})",
                           elapsed_s=slow, on_core_s=slow),
                    sample(f"main (/{folder}/t.py:3)", elapsed_s=10.0 - slow),
                ],
                periods=[
                    period(t, resident=memory * 1_000_000)._replace(
                        by_stack={0: round(10 * slow), 1: round(100 - 10 * slow)}
                    )
                    for t in range(1, 11)
                ],
            )
        )
        for folder, line, slow, memory in (("v1/maze", 9, 6.0, 300), ("v2/maze", 12, 2.0, 200))
    )  # fmt: skip


@pytest.mark.parametrize("hostile", ["", HOSTILE, BREAKOUT, "'\"&<>"])
def test_the_page_of_a_comparison(hostile: str) -> None:
    a, b = compared_sessions(hostile)
    page = ParsedPage()
    page.feed(comparison_page.comparison_page(compare(a, b), a, b).render())
    functions = {row[0]: row[1:4] for row in page.tables["Shares of own time"]}
    assert functions[f"slow{hostile}"] == ["60.0%", "20.0%", "-40.0%"]
    flame = page.chart_values["flame"]
    names = [flame["frames"][frame]["function"] for frame in flame["nodes"]["frame"]]
    place = names.index(f"slow{hostile}")
    assert (flame["before"][place], flame["nodes"]["ns"][place]) == (600_000_000, 200_000_000)
    assert page.row("Peak of resident memory", "main") == ["300 MB", "200 MB"]
    assert not [tag for tag, _ in page.tags if tag in ("img", "iframe", "object", "link")]


def test_compare_writes_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [str(tmp_path / name) for name in ("a.npz", "b.npz")]
    for example, path in zip(compared_sessions(), paths, strict=True):
        profiler.save(example, path)
    target = str(tmp_path / "c.html")
    assert cli.main(["compare", *paths, "--html", target]) == 0
    assert "Flame graph of the changes" in Path(target).read_text(encoding="utf-8")
    assert cli.main(["compare", *paths, "--html", "c.txt"]) == 2
    assert "`--html` must end in .html" in capsys.readouterr().err


# --- escaping and external resources --------------------------------------------------------------


@pytest.mark.parametrize("hostile", [HOSTILE, BREAKOUT, "</script x=", "'\"&<>", "\ud800"])
def test_session_content_is_escaped(hostile: str, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    html.write(example_session(hostile), path)
    page = ParsedPage()
    page.feed(path.read_text(encoding="utf-8"))
    assert [attrs for attrs, _ in page.scripts] == [
        {"type": "application/json", "id": "session"},
        {},
    ]
    assert page.chart_values["timeline"]["processes"][0]["spans"][2][0] == [hostile]
    assert page.scripts[1][1] == html.profile_page(example_session()).script
    assert not [tag for tag, _ in page.tags if tag in ("img", "iframe", "object", "link")]
    visible = hostile.replace("\ud800", "?")
    assert visible.strip() in [row[0].strip() for row in page.tables["main"]]


def test_the_page_is_self_contained() -> None:
    page = html.render(example_session())
    targets = re.findall(r'\b(?:src|href)\s*=\s*"([^"]*)"', page, re.IGNORECASE)
    assert len(targets) > 5
    assert all(target.startswith("#") for target in targets)
    assert not re.search(r"https?:|url\(|@import", page)
    [policy] = re.findall(r'Content-Security-Policy" content="([^"]*)"', page)
    script = page.rpartition("<script>")[2].partition("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy == (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    )


# --- size -----------------------------------------------------------------------------------------


def large() -> Session:
    """Return 24 workers with full rings over 10 minutes. One is killed after a minute."""

    def large_process(number: int, end_s: float = 600.0) -> ProfiledProcess:
        name = f"worker-{number - 1}" if number else "main"
        size = 32768
        events = np.zeros(size, EVENT)
        ends = START_NS + int(end_s * 1e9) - np.arange(size)[::-1] * 1_234_567
        events["start_ns"], events["end_ns"] = ends - 987_654, ends
        events["span"], events["depth"] = np.arange(size) % 2, 1
        return process(
            name,
            role="worker" if number else "main",
            pid=100 + number,
            end_s=end_s,
            state="complete" if end_s == 600.0 else "killed",
            samples=[
                sample(f"f (train.py:{i})", path="env_step", elapsed_s=0.1, on_core_s=0.1)
                for i in range(200)
            ],
            periods=[
                period(t, spans={"env_step": (t, t)})._replace(
                    by_stack=dict.fromkeys(range(t % 150, t % 150 + 50), 2)
                )
                for t in range(1, int(end_s) + 1)
            ],
            events=events,
            spans=[span("env_step", 0.0, 1.0)],
        )

    processes = [large_process(number) for number in range(24)] + [large_process(24, 60.0)]
    for process_ in processes:
        process_.spans = [SpanPath(("env_step",), "work", 0), SpanPath(("act",), "work", 0)]
    return session(*processes)


def test_a_large_session_makes_a_small_page() -> None:
    example = large()
    page = html.render(example)
    assert len(page.encode()) < 6_000_000
    parsed = ParsedPage()
    parsed.feed(page)
    processes = parsed.chart_values["timeline"]["processes"]
    num_events = [sum(len(lane["starts"]) for lane in entry["lanes"]) for entry in processes]
    assert num_events[-1] == chart_data.MIN_EVENTS_EACH, "its latest events"
    assert chart_data.MAX_EVENTS - 24 <= sum(num_events[:-1]) <= chart_data.MAX_EVENTS + 24
    # The other processes share the remaining space equally.
    assert max(num_events[:-1]) - min(num_events[:-1]) <= 1
    last = example.processes[0].events["end_ns"][-1] - example.start_ns
    lane = processes[0]["lanes"][0]
    assert sum(lane["starts"]) + lane["durations"][-1] == last
    assert len(processes[0]["ends"]) == 600


# --- commands -------------------------------------------------------------------------------------


def test_report_writes_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    profiler.save(example_session(), tmp_path / "session.npz")
    out = tmp_path / "pages" / "one.html"
    assert cli.main(["report", str(tmp_path / "session.npz"), "--html", str(out)]) == 0
    assert f"wrote {out}" in capsys.readouterr().err
    page = ParsedPage()
    page.feed(out.read_text(encoding="utf-8"))
    assert page.row("main", "vector_step")[:2] == ["50.0%", "10"]


def test_an_unwritable_page_raises(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match=r"report\.html can't be written"):
        html.write(example_session(), tmp_path / "file" / "report.html")


def test_profile_writes_a_page(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import time\ntime.sleep(0.3)\nprint('done')\nraise SystemExit(3)\n")
    out = tmp_path / "profile"
    command = [sys.executable, "-m", "hotloop", "profile", "--out", str(out), str(script)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert (result.returncode, result.stdout) == (3, "done\n")
    assert f"report: {out / 'report.html'}" in result.stderr
    page = ParsedPage()
    page.feed((out / "report.html").read_text(encoding="utf-8"))
    assert "exit code 3" in page.words


def test_profile_keeps_the_exit_code_without_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "script.py"
    script.write_text("raise SystemExit(3)\n")

    def fail(*_: object) -> None:
        raise ZeroDivisionError("of a rule")

    monkeypatch.setattr(html, "write", fail)
    assert cli.main(["profile", "--out", str(tmp_path / "profile"), str(script)]) == 3
    stderr = capsys.readouterr().err
    assert stderr.splitlines()[-1] == (
        "hotloop profile: no page was written: ZeroDivisionError: of a rule"
    )
    assert not (tmp_path / "profile" / "report.html").exists()


# --- in a browser ---------------------------------------------------------------------------------


def open_page(
    chromium: browser.Browser, tmp_path: Path, profile: Session | None = None, **options: Any
) -> None:
    path = tmp_path / "report.html"
    html.write(example_session() if profile is None else profile, path)
    chromium.open(path, **options)
    assert chromium.problems == []
    assert chromium.evaluate("document.documentElement.dataset.drawn") == "true"
    assert chromium.evaluate("document.getElementById('failure').hidden")


ROWS = """[...document.querySelectorAll('table.tree')[0].tBodies[0].rows]
    .filter((row) => row.getClientRects().length)
    .map((row) => [...row.cells].map((cell) => cell.textContent.trim()))"""
# Count the pixels of a canvas for each color.
COLORS = """((id, names) => {
  const canvas = document.getElementById(id);
  const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
  const style = getComputedStyle(document.documentElement);
  return names.map((name) => {
    const hex = style.getPropertyValue(name).trim();
    const [r, g, b] = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
    let count = 0;
    for (let i = 0; i < data.length; i += 4) {
      const off = [data[i] - r, data[i + 1] - g, data[i + 2] - b].map(Math.abs);
      if (Math.max(...off) <= 3 && data[i + 3] === 255) count++;
    }
    return count;
  });
})"""


def pixels(chromium: browser.Browser, canvas: str, *names: str) -> list[int]:
    return chromium.evaluate(f"{COLORS}({json.dumps(canvas)}, {json.dumps(names)})")


@pytest.mark.parametrize("hostile", [HOSTILE, BREAKOUT, COMMENT])
def test_the_browser_shows_the_session(
    chromium: browser.Browser, tmp_path: Path, hostile: str
) -> None:
    open_page(chromium, tmp_path, example_session(hostile))
    rows = {row[0]: row[1:] for row in chromium.evaluate(ROWS)}
    assert rows["vector_step"][:5] == ["50.0%", "10", "500 ms", "500 ms", "5.00 s"]
    assert rows[hostile.strip()][:2] == ["35.0%", "10"], "it is text, and no script of it has run"
    words = chromium.evaluate("document.getElementById('throughput').innerText")
    assert "30 environment steps, 3 per second" in words
    assert chromium.evaluate("document.scripts.length") == 2
    assert chromium.evaluate("document.querySelectorAll('main img').length") == 0


@pytest.mark.parametrize("dark", [False, True])
def test_charts_use_the_stage_colors(chromium: browser.Browser, tmp_path: Path, dark: bool) -> None:
    open_page(chromium, tmp_path, dark=dark)
    env, update, other, replay = pixels(
        chromium, "overview", "--stage-env", "--stage-update", "--stage-other", "--stage-replay"
    )
    # Main: half of its time env, 30 % update; workers half env.
    assert env > update > 1000
    assert other > 1000
    assert replay == 0
    assert pixels(chromium, "overview", "--alarm")[0] > 20, "a mark where a worker was killed"
    env, update = pixels(chromium, "events", "--stage-env", "--stage-update")
    assert env > update > 200
    for canvas in ("throughput-line", "lockstep-line"):
        assert pixels(chromium, canvas, "--accent")[0] > 200
    background = chromium.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background == ("rgb(16, 20, 26)" if dark else "rgb(246, 247, 249)")


def test_trees_open_and_close_by_mouse_and_keyboard(
    chromium: browser.Browser, tmp_path: Path
) -> None:
    open_page(chromium, tmp_path)
    titles = [row[0] for row in chromium.evaluate(ROWS)]
    assert titles == ["main", "collect", "vector_step", HOSTILE, "update", "(rest)", "(rest)"]
    focused = "document.activeElement.cells[0].textContent"
    chromium.evaluate("document.querySelector('table.tree tbody tr').focus()")
    chromium.press("ArrowDown")
    assert chromium.evaluate(focused) == "collect"
    chromium.press("ArrowLeft")
    assert [row[0] for row in chromium.evaluate(ROWS)] == [
        "main", "collect", HOSTILE, "update", "(rest)", "(rest)",
    ]  # fmt: skip
    chromium.press("ArrowLeft")
    assert chromium.evaluate(focused) == "main"
    chromium.press("Enter")
    assert [row[0] for row in chromium.evaluate(ROWS)] == ["main"]
    chromium.press("ArrowRight")
    # Closed inner rows stay closed.
    assert len(chromium.evaluate(ROWS)) == 6
    chromium.evaluate("document.querySelectorAll('table.tree tbody tr')[1].cells[0].click()")
    assert [row[0] for row in chromium.evaluate(ROWS)] == titles
    tabbed = (
        "[...document.querySelectorAll('table.tree')[0].tBodies[0].rows].map((r) => r.tabIndex)"
    )
    assert chromium.evaluate(tabbed) == [-1, 0, -1, -1, -1, -1, -1]


def test_the_timeline_zooms_and_has_tooltips(chromium: browser.Browser, tmp_path: Path) -> None:
    open_page(chromium, tmp_path)
    caption = "document.getElementById('window').textContent"
    chromium.evaluate("document.querySelector('button[data-do=all]').click()")
    settled = "new Promise((go) => requestAnimationFrame(() => requestAnimationFrame(go)))"
    chromium.evaluate(settled)
    assert chromium.evaluate(caption).startswith("10.00 s from 0")
    chromium.evaluate("document.getElementById('events').focus()")
    chromium.press("+")
    chromium.evaluate(settled)
    assert chromium.evaluate(caption).startswith("5.00 s from 2.5")
    # Main's second row at 5.25 s: half into its sixth vector step.
    box = chromium.evaluate(
        """(() => {
          const canvas = document.getElementById('events');
          canvas.scrollIntoView();
          const { left, top, width } = canvas.getBoundingClientRect();
          return { left, top, width };
        })()"""
    )
    chromium.move_to(
        box["left"] + 120 + (box["width"] - 120) * (5.25 - 2.5) / 5, box["top"] + 2 + 1.5 * 15
    )
    tip = chromium.evaluate("document.querySelector('.tip:not([hidden])')?.textContent ?? ''")
    assert tip.split("\n")[:2] == ["collect › vector_step", "500 ms"]
    assert "main" in tip


def test_narrow_screens_need_no_horizontal_scrolling(
    chromium: browser.Browser, tmp_path: Path
) -> None:
    open_page(chromium, tmp_path, width=360)
    assert chromium.evaluate("document.documentElement.scrollWidth") <= 360


def flame_session(hostile: str = HOSTILE) -> Session:
    """Return a session with 6 s in a library that a hostile function of the user calls, of 10 s."""
    library = "forward (/x/site-packages/torch/nn.py:7)"
    return session(
        process(
            samples=[
                sample("main (/t.py:3)", f"{hostile} (/t.py:9)", library, elapsed_s=6.0),
                sample("main (/t.py:3)", elapsed_s=4.0),
            ],
            periods=[period(t)._replace(by_stack={0: 60, 1: 40}) for t in range(1, 11)],
        )
    )


def test_the_flame_graph_zooms_searches_and_hides_libraries(
    chromium: browser.Browser, tmp_path: Path, diagnoses: list[Diagnosis]
) -> None:
    diagnoses[:] = [dataclasses.replace(DIAGNOSES[0], places=(CodeLine(HOSTILE, "/t.py", 9),))]
    open_page(chromium, tmp_path, flame_session())
    details = "document.getElementById('flame-details').textContent"
    matched = "document.getElementById('flame-matched').textContent"
    assert chromium.evaluate(details) == "all · 10.00 s, 100.0 % of all; own time 0.0 %"
    chromium.evaluate("document.getElementById('flame-graph').focus()")
    # Own code first: the function has the time of the library that it calls.
    for _ in range(3):
        chromium.press("ArrowDown")
    assert chromium.evaluate(details) == (
        f"{HOSTILE} · /t.py:9 · 6.00 s, 60.0 % of all; own time 60.0 %"
    )
    chromium.press("ArrowUp")
    assert chromium.evaluate(details).endswith("100.0 % of all; own time 40.0 %")
    height = "document.getElementById('flame-graph').clientHeight"
    before = chromium.evaluate(height)
    chromium.evaluate("document.getElementById('flame-libraries').click()")
    assert chromium.evaluate(height) > before
    search = """((text) => {
        const field = document.getElementById('flame-search');
        field.value = text;
        field.dispatchEvent(new Event('input'));
    })"""
    chromium.evaluate(f"{search}('FORWARD')")
    assert chromium.evaluate(matched) == "60.0 % matched"
    chromium.evaluate(f"{search}('(')")
    assert chromium.evaluate(matched) == "not a regular expression"
    chromium.evaluate("document.getElementById('flame-reset').click()")
    assert chromium.evaluate(matched) == ""
    # The finding's links.
    chromium.evaluate("document.querySelector('a[data-function]').click()")
    assert chromium.evaluate(matched) == "60.0 % matched"
    assert chromium.evaluate(details).startswith(HOSTILE)
    assert pixels(chromium, "overview", "--alarm")[0] == 0
    chromium.evaluate("document.querySelector('a[data-place]').click()")
    assert pixels(chromium, "overview", "--alarm")[0] > 1000


def test_tables_are_sorted_by_a_click(chromium: browser.Browser, tmp_path: Path) -> None:
    open_page(chromium, tmp_path)
    table = "document.querySelector('#functions table')"
    column = f"[...{table}.tBodies[0].rows].map((row) => row.cells[%d].textContent)"
    names = chromium.evaluate(column % 0)
    own = [float(text.rstrip("%")) for text in chromium.evaluate(column % 1)]
    assert own == sorted(own, reverse=True)
    chromium.evaluate(f"{table}.querySelectorAll('button.sort')[1].click()")
    chromium.evaluate(f"{table}.querySelectorAll('button.sort')[1].click()")
    ascending = [float(text.rstrip("%")) for text in chromium.evaluate(column % 1)]
    assert ascending == sorted(own)
    chromium.evaluate(f"{table}.querySelectorAll('button.sort')[0].click()")
    assert chromium.evaluate(column % 0) == sorted(names)
    assert chromium.evaluate(f"{table}.querySelector('[aria-sort]').ariaSort") == "ascending"


def test_the_comparison_is_drawn(chromium: browser.Browser, tmp_path: Path) -> None:
    a, b = compared_sessions(HOSTILE)
    comparison_page.write(compare(a, b), a, b, tmp_path / "c.html")
    chromium.open(tmp_path / "c.html", width=400, dark=True)
    assert chromium.problems == []
    assert chromium.evaluate("document.documentElement.dataset.drawn") == "true"
    assert chromium.evaluate("document.documentElement.scrollWidth") <= 400
    assert pixels(chromium, "flame-graph", "--good")[0] > 500, "less time in one function"
    assert chromium.evaluate("document.querySelectorAll('main img').length") == 0


def test_a_large_page_is_drawn(chromium: browser.Browser, tmp_path: Path) -> None:
    open_page(chromium, tmp_path, large())
    assert pixels(chromium, "overview", "--stage-env")[0] > 1000
    assert pixels(chromium, "events", "--stage-env")[0] > 1000


def test_a_failing_script_shows_an_error(chromium: browser.Browser, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    html.write(example_session(), path)
    page = path.read_text(encoding="utf-8")
    path.write_text(page.replace('"timeline":', '"another":', 1))
    chromium.open(path)
    failure = "document.getElementById('failure')"
    assert "The tables are complete" in chromium.evaluate(f"{failure}.textContent")
    assert chromium.evaluate(f"{failure}.getClientRects().length") == 1


def test_injected_scripts_are_blocked(chromium: browser.Browser, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    html.write(example_session(), path)
    page = path.read_text(encoding="utf-8")
    # Simulate content that is not escaped.
    broken = "<script>document.title = 'run'</script><img src=x onerror=\"document.title = 'run'\">"
    path.write_text(page.replace("</main>", f"{broken}</main>"))
    chromium.open(path)
    assert chromium.evaluate("document.title") != "run"
    assert any("Content Security Policy" in problem for problem in chromium.problems)
