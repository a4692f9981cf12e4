"""`hotloop plan`: the curve, the bottleneck and bad input."""

import json

import pytest

from hotloop.cli import main, plan
from hotloop.errors import ConfigError


def plan_output(capsys, *args):
    assert plan.run(["--workers", "64", "--step-ms", "10", *args]) == 0
    return capsys.readouterr().out


def test_plan_prints_the_curve_and_the_bottleneck(capsys, tmp_path):
    out = plan_output(
        capsys, "--learner-steps-per-s", "2000", "--plot", str(tmp_path / "curve.png")
    )
    rows = [line.split() for line in out.splitlines() if line.strip()[:1].isdigit()]
    assert [int(row[0]) for row in rows] == [1, 2, 4, 8, 16, 32, 64]
    assert rows[-1][-1] == "learner"
    assert "what saturates first: the learner: more workers do not help" in out
    assert (tmp_path / "curve.png").stat().st_size > 1_000


@pytest.mark.parametrize(
    ("args", "advice"),
    [
        ((), "more workers make it faster, up to about"),
        (
            ("--schedule", "barrier", "--slow-ms", "200", "--slow-share", "0.1"),
            "wait for the slowest one in each iteration: `--schedule variable` or `--schedule",
        ),
        (("--cores-per-node", "4"), "cores: more cores or machines"),
        (("--obs-bytes", "10000000", "--nodes", "2"), "incoming network traffic"),
        (("--weights-bytes", "10000000000", "--nodes", "4"), "outgoing network traffic (weights)"),
    ],
)
def test_plan_prints_advice(capsys, args, advice):
    assert advice in plan_output(capsys, *args)


def test_as_json(capsys):
    report = json.loads(plan_output(capsys, "--json", "--num-steps", "10", "--obs-bytes", "100"))
    assert report["fragment_bytes"] == 10 * 227
    assert report["curve"][-1]["workers"] == 64
    assert 0 < report["curve"][-1]["share"] <= 1


def test_plan_measures_a_named_environment(capsys):
    assert plan.run(["--workers", "2", "--env-id", "CartPole-v1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["fragment_bytes"] == 128 * (2 * 16 + 27)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--step-ms", "0"), "`--step-ms` must be a positive number up to 1e15, got 0"),
        (("--step-ms", "nan"), "`--step-ms` must be a positive number up to 1e15, got nan"),
        (
            ("--step-ms", "1", "--slow-share", "2"),
            "must be a number from 0 to 1, got 2",
        ),
        (("--step-ms", "inf"), "`--step-ms` must be a positive number up to 1e15, got inf"),
        (("--step-ms", "1", "--slow-share", "0.5"), "go together"),
        ((), "either `--step-ms`, or `--env-id`"),
        (("--step-ms", "1", "--env-id", "CartPole-v1"), "either `--step-ms`, or `--env-id`"),
        (("--step-ms", "1", "--overlap"), "overlaps by itself"),
        (("--step-ms", "1", "--plot", "a.txt"), "`--plot` must end in"),
        (("--step-ms", "1", "--object-store-gb", "0.0001"), "in flight"),
    ],
)
def test_bad_input(args, message):
    with pytest.raises(ConfigError, match=message):
        plan.run(["--workers", "4", *args])


def test_an_unknown_environment_is_rejected(capsys):
    assert main(["plan", "--workers", "4", "--env-id", "Nope-v1"]) != 0
    assert "there is no environment 'Nope-v1'" in capsys.readouterr().err
