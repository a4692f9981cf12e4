"""The report in a terminal: what stands in it, and in which order."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from hotloop.profiler import diagnose
from hotloop.profiler.diagnose import Diagnosis
from hotloop.profiler.render import html, text, words
from hotloop.profiler.render.findings import Findings
from hotloop.profiler.session import Session, Uncovered
from hotloop.profiler.session.stages import Leaf
from tests.profiler.sessions import process, seen, session, span

IMPORTING = "_find_and_load (<frozen importlib._bootstrap>:1)"


def one_process(file: str = "train.py") -> Session:
    """4 s of importing, 6 s of six lines."""
    return session(
        process(
            samples=[
                seen(f"main ({file}:1)", IMPORTING, elapsed_s=4.0, on_core_s=4.0),
                *(
                    seen(f"main ({file}:{n})", elapsed_s=n / 6, on_core_s=n / 6)
                    for n in range(2, 9)
                ),
            ],
            cores=2,
        ),
        about={"command": ["python", file], "exit_code": 0},
    )


def diagnosed(number: int, **more: object) -> Diagnosis:
    fields: dict[str, object] = {
        "rule": f"rule-{number}", "title": f"cause {number}", "confidence": 0.9, "gain": 3.4,
        "evidence": (f"evidence {number}",), "advice": f"advice {number}", "verify": "check",
    } | more  # fmt: skip
    return Diagnosis(**fields)  # pyright: ignore[reportArgumentType]


@pytest.fixture(autouse=True)
def found(monkeypatch: pytest.MonkeyPatch) -> list[Diagnosis]:
    """The diagnoses of any session."""
    diagnoses: list[Diagnosis] = []
    monkeypatch.setattr(diagnose, "diagnose", lambda session: diagnoses)
    monkeypatch.setattr(diagnose, "bound", lambda session: "All of it is the environment.")
    return diagnoses


def test_start_up_and_loop_are_told_apart() -> None:
    one = one_process()
    assert text.overview(one) == (
        "python train.py: 10.0 s (4.0 s importing and starting, 6.0 s loop), exit code 0, "
        "1 process, 2 cores"
    )
    one.main.samples.clear()
    assert text.overview(one) == "python train.py: 10.0 s, exit code 0, 1 process, 2 cores"


def test_the_dearest_lines_stand_last_with_their_source(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text("".join(f"  {'very ' * n}long\n" for n in range(1, 30)))
    lines = text.render(one_process(str(file))).splitlines()
    heading = next(i for i, line in enumerate(lines) if line.startswith("lines of yours: main"))
    assert lines[heading].split("  ")[-1] == "blocked"
    place = f"{tmp_path.name}/train.py"
    assert [line.split()[:4] for line in lines[heading + 1 :]] == [
        [f"{place}:{n}", "in", "main", f"{100 * n / 6 / (4 + 35 / 6):.1f}%"]
        for n in (8, 7, 6, 5, 4)
    ]
    assert lines[-1].endswith("0%  very very very very long")
    file.unlink()
    assert text.render(one_process(str(file))).splitlines()[-1] == f"{file} is gone"


def test_where_nothing_is_found_the_bound_speaks_alone(found: list[Diagnosis]) -> None:
    assert text.diagnosis_lines(one_process()) == ["All of it is the environment."]
    assert "othing found" not in text.render(one_process())


def test_a_diagnosis_says_where_what_and_how_often(found: list[Diagnosis], tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text("first()\nsleep(1)\n")
    found.append(
        diagnosed(
            1,
            places=(Leaf("main", str(file), 2), Leaf("loop", "b.py", 7)),
            wait="sleep",
            pace="growing",
            loop_gain=3.9,
        )
    )
    assert text.diagnosis_lines(one_process()) == [
        "why it is not faster:",
        "1. cause 1: up to 3.4× (of the loop alone 3.9×); blocked: sleep, grows; 90% sure [rule-1]",
        f"   at {tmp_path.name}/train.py:2 in main: sleep(1)",
        "   and b.py:7 in loop",
        "     evidence 1",
        "   → advice 1",
        "   $ check",
    ]


def test_places_of_one_line_are_told_once(found: list[Diagnosis]) -> None:
    names = ("f.<locals>.<listcomp>", "f", "g", "h", "i", "j")
    leaves = tuple(Leaf(name, "a.py", 3) for name in names)
    found.append(diagnosed(1, places=leaves))
    lines = text.diagnosis_lines(one_process())
    assert lines[2:4] == [
        "   at a.py:3 in f",
        "   and a.py:3 in g, a.py:3 in h, a.py:3 in i, …",
    ]


def test_only_the_first_diagnoses_are_told_whole(found: list[Diagnosis]) -> None:
    place = (Leaf("f", "a.py", 3),)
    found += [diagnosed(n, places=place, rule="line", gain=None) for n in range(1, 6)]
    lines = text.diagnosis_lines(one_process())
    assert [line for line in lines if "advice" in line] == [f"   → advice {n}" for n in (1, 2, 3)]
    assert lines[-2:] == ["5. cause 5; computing, again and again; 90% sure", "   at a.py:3 in f"]


def test_a_gain_that_is_the_same_of_the_loop_is_told_once() -> None:
    assert words.gain(diagnosed(1, loop_gain=3.42)) == "up to 3.4×"
    assert words.gain(diagnosed(1, gain=None, loop_gain=2.0)) == ""


def test_the_terminal_and_the_page_diagnose_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Session] = []
    monkeypatch.setattr(diagnose, "diagnose", lambda session: asked.append(session) or [])
    found = Findings(one_process())
    text.render(found)
    html.render(found)
    assert len(asked) == 1


def test_commands_are_told_in_one_line() -> None:
    one = one_process()
    command = "python -c import os\nfor i in range(3):\n\tos.system('\x1b[2J')" + " and on" * 40
    one.uncovered = [Uncovered(7, 1, command, 10**9)]
    (note,) = text.notes(one)
    assert note.startswith(
        "not covered: process 7, 1.0 s of CPU: python -c import os for i in range(3): os.system(' "
        "[2J') and on"
    )
    assert note.endswith("…")
    assert len(note) < 150
    one.about["command"] = ["python", "-c", "a\nb"]
    assert text.overview(one).startswith("python -c a b: ")


def lockstep() -> Session:
    """Three workers of which the last is always the slowest."""
    workers = [
        process(
            f"worker-{i}",
            role="worker",
            pid=200 + i,
            parent_pid=100,
            spans=[span("env_step", t + 0.05, t + 0.05 + own) for t in range(10)],
        )
        for i, own in enumerate((0.1, 0.2, 0.45))
    ]
    main = process(spans=[span("vector_step", t, t + 0.6) for t in range(10)])
    return session(main, *workers)


def test_lockstep_waste_and_the_slowest_worker_are_told() -> None:
    told = text.render(lockstep())
    assert (
        "3 workers step together, and each waits for the slowest. In 10 steps of main they waited "
        "6.0 s, 44% of their time in them. If none waited, the same workers would step 1.8× as "
        "fast.\n"
        "worker-2 is the slowest in 100% of the steps: it takes 450 ms for a typical one, the "
        "others 150 ms, 3.0×.\n"
    ) in told
    assert "step together" not in text.render(one_process())


@pytest.mark.parametrize("width", [40, 80, 200])
def test_in_colours_it_is_the_same(width: int, found: list[Diagnosis]) -> None:
    from rich.console import Console

    found.append(diagnosed(1))
    one = lockstep()
    one.main.samples = one_process().main.samples
    one.main.stacks = one_process().main.stacks
    file = io.StringIO()
    Console(file=file, width=width, force_terminal=False).print(text.renderable(one))
    shown, plain = "".join(file.getvalue().split()), "".join(text.render(one).split())
    if width == 200:
        assert shown == plain
    for told in ("worker-2istheslowestin100%", "4.0simportingandstarting", "cause1:upto3.4×"):
        assert told in shown
    assert all(len(line) <= width for line in file.getvalue().splitlines())
