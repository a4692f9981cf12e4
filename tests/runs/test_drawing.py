"""Learning curves that a process of their own draws, and those that it can't."""

import sys
from types import SimpleNamespace

import pytest

from hotloop.runs import drawing
from hotloop.runs.plots import CURVE_FILE
from tests.cli.test_cli import report_at
from tests.runs.made import make_run


@pytest.fixture(autouse=True)
def without_matplotlib(monkeypatch):
    """None loaded here yet, as when a training begins."""
    monkeypatch.setattr(drawing, "sys", SimpleNamespace(modules={}, executable=sys.executable))
    monkeypatch.delenv("HOTLOOP_PROFILE", raising=False)


@pytest.fixture
def drawn_here(monkeypatch):
    """Runs whose curve this process has drawn."""
    drawn = []

    def draw(run):
        drawn.append(run.path)
        return run.path / CURVE_FILE

    monkeypatch.setattr("hotloop.runs.plots.learning_curve", draw)
    return drawn


def test_it_is_drawn_by_another_process_that_begins_before_the_end(tmp_path, drawn_here):
    run = make_run(tmp_path / "run")
    one = drawing.Drawing()
    one.prepare(report_at(25_000))  # 15 s are left
    assert one._process is None
    one.prepare(report_at(90_000))
    assert one._process is not None
    assert one.draw(run) == run / CURVE_FILE
    assert (run / CURVE_FILE).read_bytes().startswith(b"\x89PNG")
    assert drawn_here == []


@pytest.mark.parametrize("code", ["raise SystemExit(1)", "import time; time.sleep(100)"])
def test_it_is_drawn_here_where_the_process_fails_or_hangs(tmp_path, monkeypatch, drawn_here, code):
    monkeypatch.setattr(drawing, "_CODE", code)
    monkeypatch.setattr(drawing, "_AT_MOST_S", 0.5)
    run = make_run(tmp_path / "run")
    one = drawing.Drawing()
    one.prepare(report_at(90_000))
    process = one._process
    assert one.draw(run) == run / CURVE_FILE
    assert drawn_here == [run]
    assert process.returncode is not None


def test_it_is_drawn_here_where_no_process_starts(tmp_path, monkeypatch, drawn_here):
    monkeypatch.setattr(drawing.sys, "executable", str(tmp_path / "nothing"))
    run = make_run(tmp_path / "run")
    one = drawing.Drawing()
    one.prepare(report_at(90_000))
    assert one.draw(run) == run / CURVE_FILE
    assert drawn_here == [run]


def test_a_training_that_fails_leaves_no_process(tmp_path):
    one = drawing.Drawing()
    one.prepare(report_at(90_000))
    process = one._process
    assert not one.end()
    assert process.returncode == 0


@pytest.mark.parametrize("why", ["profile", "matplotlib"])
def test_no_process_where_it_gains_nothing_or_is_seen(monkeypatch, why):
    if why == "profile":
        monkeypatch.setenv("HOTLOOP_PROFILE", "{}")
    else:
        drawing.sys.modules["matplotlib"] = None
    one = drawing.Drawing()
    one.prepare(report_at(90_000))
    assert one._process is None
