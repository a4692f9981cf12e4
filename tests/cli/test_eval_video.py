import json

from hotloop.cli import main


def test_eval_films_its_first_episode(capsys, tmp_path, trained_run):
    run, path = trained_run("ppo"), tmp_path / "video.mp4"
    assert main(["eval", str(run), "--episodes", "3", "--video", str(path), "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["video"] == {
        "path": str(path),
        "return": summary["returns"][0],
        "length": summary["lengths"][0],
        "is_cut": False,
    }
    assert path.stat().st_size > 1000
    assert main(["eval", str(run), "--episodes", "3", "--video", str(tmp_path / "video.avi")]) == 2
    assert "must end in .mp4 or .gif" in capsys.readouterr().err


def test_eval_names_what_it_cuts(capsys, tmp_path, monkeypatch, trained_run):
    """A video of a part of an episode does not pass for an episode of the evaluation."""
    run, path = trained_run("ppo"), tmp_path / "video.gif"
    assert main(["eval", str(run), "--episodes", "3", "--max-steps", "4", "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["lengths"], summary["num_cut"]) == ([4, 4, 4], 3)
    monkeypatch.setattr("hotloop.rollouts.video.MAX_STEPS", 3)
    command = ["eval", str(run), "--episodes", "3", "--max-steps", "4", "--video", str(path)]
    assert main(command) == 0
    lines = capsys.readouterr().out.splitlines()
    assert f"video of the first 3 steps of an episode with return 3.0 up to there: {path}" in lines
    assert lines[-1].endswith("over 3 episodes, 3 of them cut at 4 steps")
    assert main(["eval", str(run), "--max-steps", "0"]) == 2
    assert "`--max-steps` must be a positive integer, got 0" in capsys.readouterr().err
