"""Bottlenecks of hand-made trees and of a run."""

import pytest

from hotloop.algorithms import find
from hotloop.base.crowding import Crowding
from hotloop.cli import main
from hotloop.cli.bottleneck import _overlap_options, describe_bottleneck
from hotloop.runs import RunDirectory
from hotloop.timing import Node
from hotloop.training.options import to_json


def tree(name, total, **children):
    """Return a component's tree; names with `wait` are waits, and `a__b` is b within a."""
    root = Node(name, total_ns=int(total * 1e9))
    for path, seconds in children.items():
        node = root
        for part in path.split("__"):
            node = node.child(part, "wait" if part.startswith("wait") else "work")
            node.total_ns += int(seconds * 1e9)
            node.count += 1
    return root


def learner(update, waiting):
    # The start does not count.
    return tree(
        "learner", 100.0, start=50.0, update=update, collect=1.0, collect__wait_for_workers=waiting
    )


@pytest.mark.parametrize(
    ("trees", "expected"),
    [
        (
            [
                learner(9.0, 0.0),
                tree("worker-0", 12.0, make_envs=2.0, wait=7.0, env_step=2.0),
                tree("worker-1", 12.0, make_envs=2.0, wait=6.0, env_step=3.0),
            ],
            "learner. Workers wait for 65% of their time, while `update` takes 90% of the "
            "learner's loop",
        ),
        (
            [
                learner(1.0, 8.0),
                tree("worker-0", 10.0, wait=0.5, env_step=9.0),
                tree("worker-1", 10.0, wait=1.0, env_step=8.0),
            ],
            "workers. The learner waits for 80% of its loop; `env_step` is 90% of the time of "
            "worker 0, which waits least",
        ),
        (
            [
                learner(1.0, 8.0),
                tree("worker-0", 10.0, wait=6.0, env_step=3.0),
                tree("worker-1", 10.0, wait=5.0, env_step=3.0),
                tree("worker-2", 10.0, wait=0.2, env_step=9.0),
            ],
            "worker 2. The learner waits for 80% of its loop, workers for 50% of their time, "
            "worker 2 for 2%; `env_step` is 90% of the time "
            "of worker 2, which waits least",
        ),
        (
            [
                learner(5.0, 4.0),
                tree("worker-0", 10.0, wait=5.0, env_step=4.0),
                tree("worker-1", 10.0, wait=5.0, env_step=4.0),
            ],
            "none, learner and workers take turns. The learner waits for 40% of its loop, workers "
            "for 50% of their time",
        ),
        (
            [
                learner(1.0, 8.0),
                tree("worker-0", 10.0, wait_for_inference=7.0, env_step=2.0),
                tree("worker-1", 10.0, wait_for_inference=7.0, env_step=2.0),
                tree("inference-0", 10.0, wait=0.5, act=9.0),
            ],
            "inference. The learner waits for 80% of its loop, worker 0 waits for actions for 70% "
            "of its time; inference is busy for 95%",
        ),
        (
            [learner(9.0, 0.0), tree("worker-0", 10.0, wait=0.5, env_step=9.0)],
            "none. The learner waits for 0% of its loop, workers for 5% of their time",
        ),
        ([learner(9.0, 0.0)], ""),
    ],
)
def test_the_stage_that_others_wait_for_is_named(trees, expected):
    assert describe_bottleneck(trees[0], trees[1:]) == expected


_LAGGING = ["--schedule lag:1", "--schedule async"]


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
