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
    }
    assert path.stat().st_size > 1000
    assert main(["eval", str(run), "--episodes", "3", "--video", str(tmp_path / "video.avi")]) == 2
    assert "must end in .mp4 or .gif" in capsys.readouterr().err
