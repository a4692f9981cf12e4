import json

import pytest

from hotloop.cli import main
from tests.runs.run_factory import make_run


@pytest.fixture
def sides(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, base in (("a", 10.0), ("b", 20.0)):
        for seed in (1, 2, 3):
            make_run(
                tmp_path / name / f"seed_{seed}",
                seed=seed,
                returns=[[0.0]] * 9 + [[base + seed]],
                learning_rate=base,
            )
    return tmp_path


def test_configuration_comes_first(capsys, sides):
    assert main(["compare", "a", "b"]) == 0
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert lines[0] == "A  a: ppo CartPole-v1, 3 runs, seeds 1, 2, 3"
    assert lines[3].split() == ["option", "A", "B"]
    assert lines[4].split() == ["learning_rate", "10.0", "20.0"]
    assert lines[6].endswith("training episodes, at 10,000 steps")
    assert lines[8].startswith("A      3  12.0 (11.0 to 13.0)")
    assert "+10.0 (" in lines[9]
    assert "100% (100% to 100%)" in lines[9]
    assert lines[9].endswith("higher")
    assert "with 3 seeds" in captured.err


def test_json(capsys, sides):
    assert main(["compare", "a", "b", "a/../b/seed_1", "--json"]) == 2
    capsys.readouterr()
    assert main(["compare", "a", "b", "--json", "--metric", "length"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["options"] == {"learning_rate": {"A": "10.0", "B": "20.0"}}
    assert [side["seeds"] for side in content["sides"]] == [[1, 2, 3], [1, 2, 3]]
    (table,) = content["learning"]
    assert table["metric"] == "length"
    assert [row["middle"] for row in table["rows"]] == [10.0, 10.0]
    assert table["rows"][1]["verdict"] == "within noise"
    assert content["speed"] is None


def test_missing_speed_is_reported(capsys, sides):
    """Hand-made runs have no timing."""
    assert main(["compare", "a/seed_1", "b/seed_1"]) == 0
    assert "speed is not compared: expected recordings" in capsys.readouterr().err


def test_a_damaged_recording_is_reported(capsys, copy_trained_run):
    a, b = copy_trained_run("ppo", "a"), copy_trained_run("ppo", "b")
    (b / "timing" / "worker-0-1.hlt").write_bytes(b"hltiming" + bytes(100))
    assert main(["compare", str(a), str(b)]) == 0
    assert f"{b}/timing/worker-0-1.hlt, got one that can't be read" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["a"], 2, "expected two or more runs, or two profiles, got only a"),
        (["a", "a"], 2, "each run must be on one side, got a/seed_1 in A (a) and B (a)"),
        (["a", "b", "--metric", "entrpy"], 2, "(evaluation, length, policy_loss, return)"),
        (["a", "empty", "--metric", "return"], 2, "`--metric` needs run directories, got empty"),
        (["a", "b", "empty"], 2, "a comparison of more than two needs run directories, got empty"),
        (["a", "nowhere"], 1, "got nowhere, which does not exist"),
    ],
)
def test_mistakes(capsys, sides, args, code, message):
    (sides / "empty").mkdir()
    assert main(["compare", *args]) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
