"""Catalogues of causes, stages and libraries: every row has an example, and one that differs."""

from __future__ import annotations

import re
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from hotloop.profiler.diagnose import (
    STRUCTURES,
    Cause,
    Explanation,
    Find,
    FramePattern,
    causes,
    diagnose,
    source,
)
from hotloop.profiler.render.text import diagnosis_lines
from hotloop.profiler.session import Frame, catalogues
from hotloop.profiler.session.catalogues import frame_patterns, read_catalogue
from tests.profiler.sessions import process, sample, session

SESSION = Path(catalogues.__file__).parent
ROWS = read_catalogue(Path(causes.__file__).with_name("causes.json"))
STAGES = read_catalogue(SESSION / "stages.json")
LIBRARIES = read_catalogue(SESSION / "libraries.json")


def frame(text):
    function, file = re.fullmatch(r"(.+) \((.+)\)", text).groups()
    return Frame(function, file, 1)


CALLED = [row for row in ROWS if "calls" in row]
OF_FRAMES = [row for row in ROWS if "frames" in row]
PATTERNS = [
    *(row for rows in LIBRARIES.values() for row in rows),
    *STAGES["frames"],
    *STAGES["names"],
    *(pattern for row in OF_FRAMES for pattern in row["frames"]),
]


def name_of(row):
    return row.get("name") or row["matches"].partition(" ")[0]


@pytest.mark.parametrize("row", PATTERNS, ids=name_of)
def test_pattern_of_functions(row):
    (pattern,) = frame_patterns([row])
    assert pattern.matches(frame(row["matches"]))
    assert not pattern.matches(frame(row["but_not"]))


@pytest.mark.parametrize(
    "row", [row for row in ROWS if "calls" in row], ids=lambda row: row["name"]
)
def test_names_of_calls(row, tmp_path):
    calls, file = row["calls"], tmp_path / "script.py"
    file.write_text(f"{calls['matches']}\n{calls['but_not']}\n")
    first, second = (
        causes.for_calls(source.names_called(str(file), source.CodeBlock(line, line)))
        for line in (1, 2)
    )
    assert first is causes.named(row["name"])
    assert second is not first


@pytest.mark.parametrize(
    "row", [row for row in ROWS if "frames" in row], ids=lambda row: row["name"]
)
def test_a_function_has_one_cause(row):
    """The order of the causes does not matter."""
    for pattern in row["frames"]:
        example = frame(pattern["matches"])
        found = [c.name for c in causes.BUILT_IN if any(p.matches(example) for p in c.find.frames)]
        assert found == [row["name"]]


def test_every_cause_can_be_found():
    names = {cause.name for cause in causes.BUILT_IN}
    assert len(names) == len(causes.BUILT_IN)
    assert set(STRUCTURES) <= names
    for cause in causes.BUILT_IN:
        find, is_classified = cause.find, cause in vars(causes).values()
        by_pattern = find.frames or find.calls or find.waits or find.stages
        assert by_pattern or is_classified or cause.name in STRUCTURES, cause.name


RELOADS = Cause(
    "simlib-scene",
    "the scene is loaded again in each episode",
    "Load it once, then reset it.",
    Find(frames=(FramePattern(r"/simlib/scene\.py$", r"^load"),)),
    gain=0.5,
)


@pytest.fixture
def entry_points(monkeypatch):
    """Return a function that installs entry points of other packages."""

    def install(*values):
        entries = [EntryPoint(f"entry{i}", x, causes.ENTRY_POINTS) for i, x in enumerate(values)]
        monkeypatch.setattr(causes.metadata, "entry_points", lambda group: entries)
        for cached in (causes.all_causes, causes.for_frame, causes.for_calls):
            cached.cache_clear()

    yield install
    monkeypatch.undo()
    for cached in (causes.all_causes, causes.for_frame, causes.for_calls):
        cached.cache_clear()


def test_causes_of_other_packages(entry_points):
    entry_points(f"{__name__}:RELOADS")
    load = "load_scene (/usr/lib/python3.11/site-packages/simlib/scene.py:9)"
    forward = "Linear.forward (/usr/lib/python3.11/site-packages/torch/nn/modules/linear.py:9)"
    main = process(
        samples=[
            sample("<module> (a.py:3)", load, elapsed_s=4, on_core_s=4),
            sample("<module> (a.py:4)", forward, elapsed_s=6, on_core_s=6),
        ]
    )
    first = diagnose(session(main))[0]
    assert (first.rule, first.title, first.advice) == (RELOADS.name, RELOADS.title, RELOADS.advice)
    assert first.gain == pytest.approx(10 / 8)  # the change removes half of its time
    assert [place.line for place in first.places] == [3]


NO_EVIDENCE = Explanation(None, ())
SPARSE = [
    Cause("always", "it is slow", "Wait.", Find(structure=lambda _: NO_EVIDENCE), is_banner=True),
    Cause("slow-call", "slow() is called", "Stop.", Find(calls={"slow"})),
]


def test_causes_of_other_packages_may_have_sets_and_no_evidence(entry_points, tmp_path):
    entry_points(f"{__name__}:SPARSE")
    file = tmp_path / "a.py"
    file.write_text("def main():\n    x = slow()\n    y = 3\nmain()\n")
    lines = (f"main ({file}:{line})" for line in (2, 3))
    top = f"<module> ({file}:4)"
    main = process(samples=[sample(top, x, elapsed_s=5, on_core_s=5) for x in lines])
    text = diagnosis_lines(session(main))
    assert "It is slow. Wait." in text
    assert any(line.startswith("1. slow() is called: up to 2.0") for line in text)


@pytest.mark.parametrize(
    ("file", "group", "is_known"),
    [
        ("/me/gym_trading/.venv/lib/python3.11/site-packages/numpy/x.py", "environments", False),
        ("/me/gym_trading/.venv/lib/python3.11/site-packages/mujoco/x.py", "environments", True),
        ("/home/ray/lib/python3.11/json/decoder.py", "waits", False),
        ("/home/ray/lib/python3.11/queue.py", "waits", True),
    ],
)
def test_directories_above_a_library_do_not_count(file, group, is_known):
    assert catalogues.is_in(group, Frame("step", file, 1)) is is_known


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("nowhere.to.find:causes", "ModuleNotFoundError: No module named 'nowhere'"),
        (f"{__name__}:SESSION", "TypeError"),
        (f"{__name__}:LIBRARIES", "TypeError: expected a Cause or a list of them"),
    ],
)
def test_broken_causes_of_other_packages(entry_points, value, problem):
    entry_points(value, f"{__name__}:RELOADS")
    with pytest.warns(UserWarning, match=re.escape(problem)) as caught:
        assert [causes.all_causes()[0] for _ in range(2)] == [RELOADS, RELOADS]
    assert len(caught) == 1
