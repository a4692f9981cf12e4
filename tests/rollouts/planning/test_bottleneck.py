"""Bottlenecks of hand-made trees."""

import pytest

from hotloop.rollouts.planning.bottleneck import describe_bottleneck
from hotloop.timing import Node


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
