"""Bottlenecks of runs, with the options that would help."""

from types import SimpleNamespace

import pytest

from hotloop import timing
from hotloop.algorithms import find
from hotloop.base.crowding import Crowding
from hotloop.cli import main
from hotloop.reports.bottleneck import _overlap_options, describe_bottleneck, last_processes
from hotloop.runs import RunDirectory
from hotloop.training.options import to_json
from tests.rollouts.planning.test_bottleneck import learner, tree


@pytest.mark.parametrize(
    ("algorithm", "changes", "on_core_s", "options"),
    [
        ("ppo", {}, 5.0, ["--overlap"]),
        ("ppo", {}, None, ["--overlap"]),
        ("ppo", {}, 19.0, []),  # both cores are busy
        ("ppo", {"overlap": True}, 5.0, []),
        ("ppo", {"schedule": "variable"}, 5.0, ["--overlap"]),
        (
            "appo",
            {"schedule": "barrier"},
            5.0,
            ["--overlap", "--schedule lag:1", "--schedule async"],
        ),
        ("appo", {"schedule": "async"}, 5.0, []),
        ("sac", {"env_id": "Pendulum-v1"}, 5.0, ["--schedule async"]),  # on a CPU
        ("dqn", {"schedule": "async"}, 5.0, []),
        ("dqn", {"memory": "lstm:8", "env_id": "CartPole-v1"}, 5.0, ["--schedule async"]),
    ],
)
def test_options_that_overlap_are_valid_and_not_set(
    algorithm, changes, on_core_s, options, tmp_path
):
    config = find(algorithm).config(workers=2, num_envs=2, **changes)
    run = RunDirectory.create(
        tmp_path / "run",
        runs_dir=tmp_path,
        env_id=config.env_id,
        algorithm=algorithm,
        reference=algorithm,
        seed=1,
        config=to_json(config),
    )
    if on_core_s is not None:
        crowding = Crowding(cores=2, seconds=10.0, on_core_s=on_core_s, queued_s=0.0, longest_s=0.0)
        run.write_json("cores.json", vars(crowding))
    assert _overlap_options(tmp_path / "run") == options
    trees = [learner(5.0, 4.0), tree("worker-0", 10.0, wait=5.0, env_step=4.0)]
    sentence = describe_bottleneck(trees[0], trees[1:], options)
    assert sentence.endswith("in parallel" if options else "of their time")
    for option in options:
        assert f"`{option}`" in sentence


def test_a_run_that_was_resumed_after_a_reboot_has_the_processes_since(tmp_path, monkeypatch):
    """The times of recordings begin anew with each boot, and these have later dates."""
    places = [("before", 900, 0), ("now", 10, 10_000), ("now", 500, 10_000)]
    recordings = [
        SimpleNamespace(component=component, boot_id=boot, start_ns=start_ns, wall_offset_ns=offset)
        for boot, start_ns, offset in places
        for component in ("learner", "worker-0")
    ]
    monkeypatch.setattr(timing, "read_directory", lambda _: (recordings, []))
    assert last_processes(tmp_path) == (recordings[4], [recordings[5]])


def test_a_run_and_its_report_name_the_bottleneck(tmp_path, capsys):
    command = ["train", "ppo", "--env-id", "CartPole-v1", "--workers", "2", "--num-steps", "32"]
    command += ["--num-envs", "2", "--update-epochs", "20", "--num-minibatches", "16"]
    command += ["--execution", "eager", "--total-timesteps", "128"]
    assert main([*command, "--run-dir", str(tmp_path / "run")]) == 0
    # Learning takes fifty times as long as collecting.
    printed = [x for x in capsys.readouterr().out.splitlines() if x.startswith("bottleneck: ")]
    assert main(["report", str(tmp_path / "run")]) == 0
    reported = [x for x in capsys.readouterr().out.splitlines() if x.startswith("bottleneck: ")]
    assert printed == reported
    assert printed[0].startswith("bottleneck: learner. Workers wait for ")
