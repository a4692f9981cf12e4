import json

import pytest

from hotloop.cli import main
from tests.runs.run_factory import make_run


@pytest.fixture
def runs(tmp_path):
    directory = tmp_path / "runs"
    for seed in (1, 2, 3):
        make_run(directory / f"run{seed}", seed=seed, returns=[[0.0], [float(seed)]])
    return directory


def test_directories_and_runs(capsys, runs, tmp_path):
    output = tmp_path / "out.svg"
    assert main(["plot", str(runs), str(runs / "run1"), "--output", str(output)]) == 0
    out = capsys.readouterr().out
    heading, row, _, location = out.splitlines()
    assert heading.split("  ")[0] == "group"
    assert row.split("  ")[0] == "ppo"
    assert row.endswith("2.0 (1.0 to 3.0)")
    assert location == f"learning curves: {output}"
    assert output.stat().st_size > 1000


def test_json(capsys, runs, tmp_path):
    make_run(runs / "empty", seed=4, returns=[[], []])
    output = tmp_path / "out.png"
    assert main(["plot", str(runs), "--output", str(output), "--json"]) == 0
    captured = capsys.readouterr()
    content = json.loads(captured.out)
    assert content["output"] == str(output)
    (group,) = content["groups"]
    assert group["seeds"] == [1, 2, 3]
    assert group["interquartile_mean"] == 2.0
    assert group["interval"] == [1.0, 3.0]
    assert group["end"] == 2000
    assert content["left_out"][0]["path"] == str(runs / "empty")
    assert "left out" in captured.err


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["{runs}", "--output", "curves.jpg"], 2, "`--output` must end in .png, .svg or .pdf"),
        (["{runs}", "--output", "curves"], 2, "got 'curves'"),
        (["{runs}", "--metric", "entropy"], 2, "(evaluation, length, policy_loss, return), got"),
        (["{runs}", "--metric", "evaluation"], 1, "pass runs that have this metric"),
        (["nowhere"], 1, "got nowhere, which does not exist"),
        (["{tmp}/empty"], 1, "there is nothing to plot in"),
        (
            ["{runs}", "--output", "{runs}/run1/config.json/x.png"],
            1,
            "can't be written",
        ),
    ],
)
def test_mistakes(capsys, runs, tmp_path, monkeypatch, args, code, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    assert main(["plot", *(arg.format(runs=runs, tmp=tmp_path) for arg in args)]) == code
    err = capsys.readouterr().err
    assert message in err
    assert len(err.splitlines()) == (4 if "evaluation" in args else 1)  # with skipped runs
