import json

import pytest

from hotloop.base import streams
from hotloop.cli import main
from tests.runs.run_factory import make_run


@pytest.fixture
def runs(tmp_path):
    directory = tmp_path / "runs"
    make_run(directory / "late", started_at="2026-02-01T12:00:00+0000", evaluations=[12.5])
    make_run(directory / "sweep" / "early", seed=2, total_timesteps=9_000)
    make_run(directory / "broken")
    (directory / "broken" / "config.json").write_text("{")
    return directory


def show(capsys, *args):
    assert main(["runs", *map(str, args)]) == 0
    return capsys.readouterr()


def test_one_line_a_run_the_oldest_first(capsys, runs):
    captured = show(capsys, runs)
    heading, *lines = captured.out.splitlines()
    assert heading.split("  ")[0] == "started"
    assert [line.split()[-1] for line in lines] == ["sweep/early", "late", "broken"]
    early, late, broken = lines
    for cell in ("CartPole-v1", "ppo", "2", "unknown", "2,000 / 9,000", "20.0", "2,000"):
        assert f" {cell} " in early
    for cell in ("finished", "2,000 / 2,000", "12.5"):
        assert f" {cell} " in late
    assert " damaged " in broken
    assert "broken" in captured.err
    assert len(captured.err.splitlines()) == 1


def test_json_has_everything(capsys, runs):
    captured = show(capsys, runs, "--json")
    early, late, broken = json.loads(captured.out)
    assert (early["seed"], early["status"]) == (2, "unknown")
    assert late["path"] == str(runs / "late")
    assert late["best_evaluation"] == 12.5
    assert broken["status"] == "damaged"
    assert "config.json" in broken["error"]


@pytest.mark.parametrize("width", [150, 100, 80, 60, 40])
def test_a_narrow_terminal_shows_less(runs, width, monkeypatch, capsys):
    """Every line fits and has the run's name, status and steps."""
    long_name = "a" * 90
    make_run(runs / long_name)
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr(streams, "_is_terminal", lambda stream: True)
    out = show(capsys, runs).out
    lines = [_without_escapes(line) for line in out.splitlines()]
    assert max(map(len, lines)) <= width
    assert sum(line.count("a" * 10) > 0 for line in lines) >= 90 // width
    assert "finished" in out
    assert "2,000 / 9,000" in out
    assert ("too narrow for: algorithm" in out) == (width < 150)


def _without_escapes(line):
    import re

    return re.sub(r"\x1b\[[0-9;]*m", "", line)


def test_no_runs(capsys, tmp_path):
    assert show(capsys, tmp_path).out == f"no runs below {tmp_path}\n"
    assert json.loads(show(capsys, tmp_path, "--json").out) == []
    assert main(["runs", str(tmp_path / "nowhere")]) == 1
    assert "which does not exist" in capsys.readouterr().err


def test_a_tab_or_a_line_feed_in_a_name_does_not_break_the_row(capsys, runs):
    num_lines = len(show(capsys, runs).out.splitlines())
    next(runs.glob("**/config.json")).parent.rename(runs / "one\ttwo\nthree")
    out = show(capsys, runs).out
    assert "one\N{REPLACEMENT CHARACTER}two\N{REPLACEMENT CHARACTER}three" in out
    assert len(out.splitlines()) == num_lines
