"""`hotloop report RUN` shows learning before timing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hotloop import cli, timing
from tests.runs.run_factory import make_run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return a run with a recording."""
    run_dir = make_run(
        tmp_path / "run", returns=((1.0, 2.0), (3.0, 400.0)), evaluations=(5.0, 250.0)
    )
    timing.start(run_dir / "timing", component="learner")
    with timing.span("update"):
        pass
    timing.stop()
    return run_dir


def test_the_terminal_and_the_page_show_learning_and_timing(run, tmp_path, capsys):
    page = tmp_path / "page.html"
    assert cli.main(["report", str(run), "--html", str(page)]) == 0
    output = capsys.readouterr().out
    assert output.startswith("ppo on CartPole-v1, seed 1: finished, 2,000 of 2,000 steps")
    assert output.index("mean return") < output.index("learner")
    text = page.read_text()
    names = ["returns", "metrics", "configuration", "speed", "trees"]
    places = [text.index(f'<section id="{name}"') for name in names]
    assert places == sorted(places)
    assert "media-src data:" in text


def test_json(run, tmp_path, capsys):
    assert cli.main(["report", str(run), "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["run"]["env_id"] == "CartPole-v1"
    assert content["profile"]["num_processes"] == 1
    assert content["problems"] == []


def test_json_names_a_damaged_line(copy_trained_run, capsys):
    run = copy_trained_run("ppo", "run")
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    lines[1] = lines[1].replace('"timesteps": ', '"timesteps": 1', 1)
    (run / "metrics.jsonl").write_text("".join(lines))
    assert cli.main(["report", str(run), "--json"]) == 0
    assert "is damaged in line 2" in json.loads(capsys.readouterr().out)["problems"][0]


def test_a_run_without_a_recording(run, tmp_path, capsys):
    for path in (run / "timing").iterdir():
        path.unlink()
    page = tmp_path / "page.html"
    assert cli.main(["report", str(run), "--html", str(page)]) == 0
    assert "timing is unknown" in capsys.readouterr().out
    text = page.read_text()
    assert "timing is unknown" in text
    assert '<section id="returns"' in text
    assert 'id="speed"' not in text
    assert cli.main(["report", str(run), "--flame", str(tmp_path / "f.svg")]) != 0


def test_a_damaged_run_with_a_recording(run, tmp_path, capsys):
    (run / "config.json").write_text("{")
    page = tmp_path / "page.html"
    assert cli.main(["report", str(run), "--html", str(page)]) == 0
    assert "config.json is damaged" in capsys.readouterr().out
    assert "config.json is damaged" in page.read_text()
    for path in (run / "timing").iterdir():
        path.unlink()
    assert cli.main(["report", str(run)]) != 0
    assert "config.json is damaged" in capsys.readouterr().err


def test_a_profile_is_reported_as_before(run, tmp_path, capsys):
    page = tmp_path / "page.html"
    assert cli.main(["report", str(run / "timing"), "--html", str(page)]) == 0
    assert "mean return" not in capsys.readouterr().out
    text = page.read_text()
    assert "hotloop profile" in text
    assert "media-src" not in text
    assert 'id="returns"' not in text


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("has_recording", [False, True])
def test_in_a_browser(chromium, run, tmp_path, dark, has_recording):
    if not has_recording:
        for path in (run / "timing").iterdir():
            path.unlink()
    line = {"iteration": 9, "timesteps": 3000, "elapsed_s": 3, "episode_returns": []}
    with open(run / "metrics.jsonl", "a") as file:
        file.write(json.dumps(line) + "\n")
    page = tmp_path / "page.html"
    cli.main(["report", str(run), "--html", str(page)])
    chromium.open(page, dark=dark)
    assert chromium.problems == []
    assert chromium.evaluate(MISPLACED) == []
    # The legend and the picture have one each.
    assert chromium.evaluate("document.querySelectorAll('#returns .diamonds').length") == 2


# Texts that leave their chart or overlap.
MISPLACED = """[...document.querySelectorAll('main svg.chart')].flatMap((svg) => {
  const own = svg.getBoundingClientRect();
  const boxes = [...svg.querySelectorAll('text')].map((one) => [one, one.getBoundingClientRect()]);
  const bad = boxes.filter(([, box]) => box.left < own.left - 1 || box.right > own.right + 1
    || box.top < own.top - 1 || box.bottom > own.bottom + 1);
  for (const [a, x] of boxes) for (const [b, y] of boxes) {
    if (a !== b && x.left < y.right - 1 && y.left < x.right - 1 && x.top < y.bottom - 4
      && y.top < x.bottom - 4) bad.push([a, x]);
  }
  return bad.map(([one]) => svg.getAttribute('aria-label') + ': ' + one.textContent);
})"""
