"""Learning curves that are drawn in a separate process, and the fallback."""

import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from hotloop.runs.learning_curve import CURVE_FILE
from hotloop.training import background_plot
from tests.cli.test_cli import report_at
from tests.runs.run_factory import make_run


@pytest.fixture(autouse=True)
def without_matplotlib(monkeypatch):
    """Hide a loaded matplotlib, as at the start of a training, on a machine that may be busy."""
    monkeypatch.setattr(background_plot, "_TIMEOUT_S", 200.0)
    monkeypatch.setattr(background_plot, "sys", SimpleNamespace(modules={}))
    monkeypatch.delenv("HOTLOOP_PROFILE", raising=False)


@pytest.fixture
def runs_drawn_here(monkeypatch):
    """Return the list of runs whose curve this process has drawn."""
    paths = []

    def draw(run):
        paths.append(run.path)
        return run.path / CURVE_FILE

    monkeypatch.setattr("hotloop.runs.learning_curve.learning_curve", draw)
    return paths


def test_a_process_started_before_the_end_draws_the_curve(tmp_path, runs_drawn_here):
    run = make_run(tmp_path / "run")
    plot = background_plot.BackgroundPlot()
    plot.prepare(report_at(25_000))  # 15 s are left
    assert plot._process is None
    plot.prepare(report_at(90_000))
    assert plot._process is not None
    assert plot.draw(run) == run / CURVE_FILE
    assert (run / CURVE_FILE).read_bytes().startswith(b"\x89PNG")
    assert runs_drawn_here == []


def test_the_process_imports_nothing_from_the_current_directory(
    tmp_path, monkeypatch, runs_drawn_here
):
    run = make_run(tmp_path / "run")
    (run / "numpy.py").write_text("open('imported', 'w').close()")
    monkeypatch.chdir(run)
    plot = background_plot.BackgroundPlot()
    plot.prepare(report_at(90_000))
    assert plot.draw(run) == run / CURVE_FILE
    assert not (run / "imported").exists()
    assert runs_drawn_here == []


@pytest.mark.parametrize("code", ["raise SystemExit(1)", "import time; time.sleep(100)"])
def test_this_process_draws_the_curve_if_the_other_fails_or_hangs(
    tmp_path, monkeypatch, runs_drawn_here, code
):
    command = [sys.executable, "-c", code]
    monkeypatch.setattr(background_plot, "python_command", lambda _: command)
    monkeypatch.setattr(background_plot, "_TIMEOUT_S", 0.5)
    run = make_run(tmp_path / "run")
    plot = background_plot.BackgroundPlot()
    plot.prepare(report_at(90_000))
    process = plot._process
    assert plot.draw(run) == run / CURVE_FILE
    assert runs_drawn_here == [run]
    assert process.returncode is not None


def test_this_process_draws_the_curve_if_no_other_starts(tmp_path, monkeypatch, runs_drawn_here):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "nothing"))
    run = make_run(tmp_path / "run")
    plot = background_plot.BackgroundPlot()
    plot.prepare(report_at(90_000))
    assert plot.draw(run) == run / CURVE_FILE
    assert runs_drawn_here == [run]


def test_a_training_that_fails_leaves_no_process(tmp_path):
    plot = background_plot.BackgroundPlot()
    plot.prepare(report_at(90_000))
    process = plot._process
    plot.finish()
    assert process.returncode == 0


def test_the_curve_is_drawn_from_the_last_report_on(tmp_path, runs_drawn_here):
    run = make_run(tmp_path / "run")
    plot = background_plot.BackgroundPlot()
    plot.prepare(replace(report_at(90_000), run_dir=run))
    plot.prepare(replace(report_at(100_000), run_dir=run))
    assert plot._process.wait(200) == 0  # before `draw`
    assert (run / CURVE_FILE).exists()
    assert plot.draw(run) == run / CURVE_FILE
    assert runs_drawn_here == []


@pytest.mark.parametrize("reason", ["profile", "matplotlib"])
def test_no_process_starts_under_a_profiler_or_with_matplotlib_loaded(monkeypatch, reason):
    if reason == "profile":
        monkeypatch.setenv("HOTLOOP_PROFILE", "{}")
    else:
        background_plot.sys.modules["matplotlib"] = None
    plot = background_plot.BackgroundPlot()
    plot.prepare(report_at(90_000))
    assert plot._process is None
