"""Progress, curve, timing and notebook form of a training that was started from Python."""

import base64
import io
import re

import pytest

from hotloop.algorithms import ppo
from hotloop.errors import OutputError
from hotloop.runs import RunDirectory
from hotloop.timing import RecordingError

PNG = b"\x89PNG"


@pytest.fixture(scope="module")
def finished_training(tmp_path_factory):
    """Train as a script does; return the result, the printed text and the reported steps."""
    import contextlib

    printed, timesteps = io.StringIO(), []
    config = ppo.Config(
        env_id="CartPole-v1",
        total_timesteps=3_000,
        num_envs=2,
        num_steps=100,
        execution="eager",
        torch_threads=1,
        run_dir=str(tmp_path_factory.mktemp("progress") / "run"),
    )
    with contextlib.redirect_stdout(printed):
        result = ppo.train(
            config, on_report=lambda report: timesteps.append(report.timesteps), progress=True
        )
    return result, printed.getvalue(), timesteps


def test_training_from_python_prints_its_progress(finished_training):
    result, printed, timesteps = finished_training
    lines = printed.splitlines()
    assert lines[0].startswith("update: ")
    assert re.match(r"3,000/3,000 steps · [\d,]+/s .* mean return [\d.]+ · 0:00 left", lines[-2])
    assert lines[-1] == f"learning curve: {result.run_dir / 'learning_curve.png'}"
    assert (result.run_dir / "learning_curve.png").read_bytes().startswith(PNG)
    assert timesteps == [0, *range(200, 3_001, 200)]  # `on_report` is called too


def test_training_without_progress_prints_and_draws_nothing(finished_training, tmp_path, capsys):
    result, _, _ = finished_training
    config = RunDirectory.open(result.run_dir).config["config"]
    again = ppo.Config(
        env_id="CartPole-v1",
        total_timesteps=400,
        **{name: config[name] for name in ("num_envs", "num_steps", "execution", "torch_threads")},
        run_dir=str(tmp_path / "quiet"),
    )
    quiet = ppo.train(again, progress=False)
    assert capsys.readouterr() == ("", "")
    assert not (quiet.run_dir / "learning_curve.png").exists()
    steps = f"{quiet.timesteps:,} steps"
    assert str(quiet).startswith(f"{quiet.run_dir}: finished after {steps}, mean return ")
    assert repr(quiet.policy).startswith("TrainedPolicy(observation: float32, shape (4,); action: ")
    page = quiet._repr_html_()  # drawn on demand
    picture = re.search(r"base64,([^']+)'", page)
    assert picture is not None
    assert base64.b64decode(picture[1]).startswith(PNG)


def test_failed_training_prints_no_learning_curve(tmp_path, capsys):
    def fail(report):
        raise RuntimeError("enough")

    config = ppo.Config(env_id="CartPole-v1", total_timesteps=400, run_dir=str(tmp_path / "run"))
    with pytest.raises(RuntimeError, match="enough"):
        ppo.train(config, on_report=fail, progress=True)
    assert "learning curve" not in capsys.readouterr().out


def test_a_curve_that_cannot_be_drawn_leaves_the_result(tmp_path, capsys, monkeypatch):
    def fail(self, run_dir):
        raise OutputError("no room")

    monkeypatch.setattr("hotloop.training.background_plot.BackgroundPlot.draw", fail)
    config = ppo.Config(
        env_id="CartPole-v1",
        total_timesteps=256,
        num_envs=1,
        num_steps=64,
        execution="eager",
        run_dir=str(tmp_path / "run"),
    )
    assert ppo.train(config, progress=True).timesteps == 256
    assert "no learning curve was drawn: no room" in capsys.readouterr().out


def test_result_has_the_timing(finished_training):
    result, _, _ = finished_training
    tree = result.timing
    assert tree.name == "learner"
    assert tree.find("collect").count == 15
    assert "collect" in str(tree)
    for path in (result.run_dir / "timing").iterdir():
        path.rename(path.with_suffix(".away"))
    try:
        with pytest.raises(RecordingError, match="expected a recording in"):
            _ = result.timing
        assert "<img" in result._repr_html_()
    finally:
        for path in (result.run_dir / "timing").iterdir():
            path.rename(path.with_suffix(".hlt"))


def test_a_notebook_shows_a_result_and_a_run(finished_training):
    result, _, _ = finished_training
    page = result._repr_html_()
    for text in ("CartPole-v1", "3,000 of 3,000", "finished", "<img", "time by part"):
        assert text in page
    run = RunDirectory.open(result.run_dir)._repr_html_()
    assert "<img" in run
    assert run in page or "3,000 of 3,000" in run
    (result.run_dir / "config.json").rename(result.run_dir / "away.json")
    try:
        assert "has no config.json" in RunDirectory(result.run_dir)._repr_html_()
    finally:
        (result.run_dir / "away.json").rename(result.run_dir / "config.json")
