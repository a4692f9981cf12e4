"""The shares of several policies in a tree whose policies act within each other's steps."""

from __future__ import annotations

from hotloop.timing import Node
from hotloop.timing.policy_shares import GAMES, own_path, policy_shares, share_rows


def grow(parent: Node, name: str, total_ns: int) -> Node:
    child = parent.child(name)
    child.total_ns, child.count = total_ns, 1
    return child


def tree() -> Node:
    root = Node("learner", total_ns=1_000)
    red = grow(root, "policy red", 600)
    collect = grow(red, "collect", 400)
    grow(collect, "act", 50)
    step = grow(collect, "env_step", 300)
    inner = grow(step, "policy blue", 290)
    grow(inner, "act", 70)
    grow(inner, "env_step", 200)
    grow(grow(red, "update", 150), "minibatch", 140)
    blue = grow(root, "policy blue", 100)
    grow(grow(blue, "evaluate", 60), "env_step", 40)
    return root


def test_time_inside_another_policys_step_belongs_to_the_inner_policy():
    shares = policy_shares(tree())
    assert list(shares) == ["red", "blue", GAMES]
    red, blue, games = shares.values()
    # Of the 400 in `collect`, 290 are blue's. Of these, the games take 200.
    assert (red.acting_ns, red.learning_ns, red.other_ns) == (110, 150, 50)
    assert (blue.acting_ns, blue.learning_ns, blue.other_ns) == (90, 0, 100)
    assert games.total_ns == 200
    assert sum(share.total_ns for share in shares.values()) == 700
    assert share_rows(tree())[0] == ("red", "31.0%", "11.0%", "15.0%", "5.0%", "310 ns")


def test_a_single_policy_has_no_shares():
    root = Node("learner", total_ns=10)
    grow(grow(root, "collect", 8), "env_step", 5)
    assert policy_shares(root) == {}
    assert share_rows(root) == []


def test_the_path_inside_the_innermost_policy():
    path = ("policy red", "collect", "env_step", "policy blue", "env_step")
    assert own_path(path) == ("env_step",)
    assert own_path(("collect", "env_step")) == ("collect", "env_step")
