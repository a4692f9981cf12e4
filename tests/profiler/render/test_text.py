"""The content and the order of the report in a terminal."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from hotloop.profiler import diagnose
from hotloop.profiler.diagnose import Diagnosis
from hotloop.profiler.render import html, phrases, text
from hotloop.profiler.render.findings import Findings
from hotloop.profiler.session import Session, UnrecordedProcess
from hotloop.profiler.session.stages import CodeLine
from tests.profiler.sessions import process, sample, session, span

IMPORTING = "_find_and_load (<frozen importlib._bootstrap>:1)"


def example_session(file: str = "train.py") -> Session:
    """Return a session with 4 s of importing and about 6 s in seven lines."""
    return session(
        process(
            samples=[
                sample(f"main ({file}:1)", IMPORTING, elapsed_s=4.0, on_core_s=4.0),
                *(
                    sample(f"main ({file}:{n})", elapsed_s=n / 6, on_core_s=n / 6)
                    for n in range(2, 9)
                ),
            ],
            cores=2,
        ),
        metadata={"command": ["python", file], "exit_code": 0},
    )


def make_diagnosis(number: int, **overrides: object) -> Diagnosis:
    fields: dict[str, object] = {
        "rule": f"rule-{number}", "title": f"cause {number}", "confidence": 0.9, "gain": 3.4,
        "evidence": (f"evidence {number}",), "advice": f"advice {number}", "verify": "check",
    } | overrides  # fmt: skip
    return Diagnosis(**fields)  # pyright: ignore[reportArgumentType]


@pytest.fixture(autouse=True)
def diagnoses(monkeypatch: pytest.MonkeyPatch) -> list[Diagnosis]:
    """Replace the diagnoses of all sessions by a list."""
    diagnoses: list[Diagnosis] = []
    monkeypatch.setattr(diagnose, "diagnose", lambda session: diagnoses)
    monkeypatch.setattr(diagnose, "bound", lambda session: "All of it is the environment.")
    return diagnoses


def test_the_overview_separates_start_up_and_loop() -> None:
    example = example_session()
    assert text.overview(example) == (
        "python train.py: 10.0 s (4.0 s importing and starting, 6.0 s loop), exit code 0, "
        "1 process, 2 cores"
    )
    example.main.samples.clear()
    assert text.overview(example) == "python train.py: 10.0 s, exit code 0, 1 process, 2 cores"


def test_the_most_expensive_lines_come_last(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text("".join(f"  {'very ' * n}long\n" for n in range(1, 30)))
    lines = text.render(example_session(str(file))).splitlines()
    heading = next(
        i for i, line in enumerate(lines) if line.startswith("most expensive lines (main process)")
    )
    assert lines[heading].split("  ")[-1] == "blocked"
    place = f"{tmp_path.name}/train.py"
    assert [line.split()[:4] for line in lines[heading + 1 :]] == [
        [f"{place}:{n}", "in", "main", f"{100 * n / 6 / (4 + 35 / 6):.1f}%"]
        for n in (8, 7, 6, 5, 4)
    ]
    assert lines[-1].endswith("0%  very very very very long")
    file.unlink()
    assert text.render(example_session(str(file))).splitlines()[-1] == f"{file} no longer exists"


def test_only_the_bound_is_printed_without_diagnoses(diagnoses: list[Diagnosis]) -> None:
    assert text.diagnosis_lines(example_session()) == ["All of it is the environment."]
    assert "othing found" not in text.render(example_session())


def test_a_diagnosis_is_printed_with_its_places(diagnoses: list[Diagnosis], tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text("first()\nsleep(1)\n")
    diagnoses.append(
        make_diagnosis(
            1,
            places=(CodeLine("main", str(file), 2), CodeLine("loop", "b.py", 7)),
            wait="sleep",
            pace="growing",
            loop_gain=3.9,
        )
    )
    assert text.diagnosis_lines(example_session()) == [
        "why this program is slow:",
        "1. cause 1: up to 3.4× as fast (loop alone: 3.9×); blocked: sleep, growing over time; "
        "confidence 90% [rule-1]",
        f"   at {tmp_path.name}/train.py:2 in main: sleep(1)",
        "   and b.py:7 in loop",
        "     evidence 1",
        "   → advice 1",
        "   $ check",
    ]


def test_equal_places_are_printed_once(diagnoses: list[Diagnosis]) -> None:
    names = ("f.<locals>.<listcomp>", "f", "g", "h", "i", "j")
    leaves = tuple(CodeLine(name, "a.py", 3) for name in names)
    diagnoses.append(make_diagnosis(1, places=leaves))
    lines = text.diagnosis_lines(example_session())
    assert lines[2:4] == [
        "   at a.py:3 in f",
        "   and a.py:3 in g, a.py:3 in h, a.py:3 in i, …",
    ]


def test_only_the_first_diagnoses_have_advice(diagnoses: list[Diagnosis]) -> None:
    place = (CodeLine("f", "a.py", 3),)
    diagnoses += [make_diagnosis(n, places=place, rule="line", gain=None) for n in range(1, 6)]
    lines = text.diagnosis_lines(example_session())
    assert [line for line in lines if "advice" in line] == [f"   → advice {n}" for n in (1, 2, 3)]
    assert lines[-2:] == ["5. cause 5; computing, repeated; confidence 90%", "   at a.py:3 in f"]


def test_an_equal_loop_gain_is_omitted() -> None:
    assert phrases.gain_text(make_diagnosis(1, loop_gain=3.42)) == "up to 3.4× as fast"
    assert phrases.gain_text(make_diagnosis(1, gain=None, loop_gain=2.0)) == ""


def test_the_terminal_and_the_page_diagnose_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sessions: list[Session] = []
    monkeypatch.setattr(diagnose, "diagnose", lambda session: sessions.append(session) or [])
    findings = Findings(example_session())
    text.render(findings)
    html.render(findings)
    assert len(sessions) == 1


def test_commands_are_printed_on_one_line() -> None:
    example = example_session()
    command = "python -c import os\nfor i in range(3):\n\tos.system('\x1b[2J')" + " and on" * 40
    example.unrecorded = [UnrecordedProcess(7, 1, command, 10**9)]
    (note,) = text.problem_notes(example)
    assert note.startswith(
        "not recorded: process 7, 1.0 s of CPU time: python -c import os for i in range(3): "
        "os.system(' [2J') and on"
    )
    assert note.endswith("…")
    assert len(note) < 150
    example.metadata["command"] = ["python", "-c", "a\nb"]
    assert text.overview(example).startswith("python -c a b: ")


def lockstep_session() -> Session:
    """Return a session of three workers, the last of which is always the slowest."""
    workers = [
        process(
            f"worker-{i}",
            role="worker",
            pid=200 + i,
            parent_pid=100,
            spans=[span("env_step", t + 0.05, t + 0.05 + step_s) for t in range(10)],
        )
        for i, step_s in enumerate((0.1, 0.2, 0.45))
    ]
    main = process(spans=[span("vector_step", t, t + 0.6) for t in range(10)])
    return session(main, *workers)


def test_lockstep_waste_and_the_slowest_worker_are_printed() -> None:
    report = text.render(lockstep_session())
    assert (
        "3 workers step together, and each waits for the slowest. In 10 steps of main they waited "
        "6.0 s, 44% of their time in these steps. Without waiting, the same workers would step "
        "1.8× as fast.\n"
        "worker-2 is the slowest in 100% of the steps: its typical step takes 450 ms, that of the "
        "others 150 ms, 3.0×.\n"
    ) in report
    assert "step together" not in text.render(example_session())


@pytest.mark.parametrize("width", [40, 80, 200])
def test_a_terminal_gets_the_same_text(
    width: int, diagnoses: list[Diagnosis], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    diagnoses.append(make_diagnosis(1))
    example = lockstep_session()
    example.main.samples = example_session().main.samples
    example.main.stacks = example_session().main.stacks
    file = io.StringIO()
    monkeypatch.setattr(file, "isatty", lambda: True)
    text.print_findings(Findings(example), file=file)
    printed, plain = "".join(file.getvalue().split()), "".join(text.render(example).split())
    if width == 200:
        assert printed == plain
    for words in (
        "worker-2istheslowestin100%",
        "4.0simportingandstarting",
        "cause1:upto3.4×asfast",
    ):
        assert words in printed
    assert all(len(line) <= width for line in file.getvalue().splitlines())


def test_columns_of_samples_need_samples() -> None:
    sampled, unsampled = text.render(example_session()), text.render(session(process()))
    assert "total  on CPU  queued  blocked\n" in sampled
    assert "queued" not in unsampled
