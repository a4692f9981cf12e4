"""Several policies in the games of the same workers: the rows of one process, and after a fault."""

import contextlib
import dataclasses

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from hotloop.envs import EnvSpec
from hotloop.envs.game_factory import assign_by_index, make_views
from hotloop.errors import ConfigError
from hotloop.rollouts.joint import JointGames
from hotloop.rollouts.joint_workers import JointWorkers
from hotloop.rollouts.processes.pool import WorkerPool
from tests.rollouts.conftest import marked_children
from tests.rollouts.processes.pools import (
    assert_adds_up,
    assert_same_fragments,
    assert_same_states,
    begin,
    snapshot_of,
)

AGENTS = {"red": [0, 1], "blue": [2]}
NUM_WORKERS, NUM_ENVS = 2, 6  # two games in each worker
WORKERS = [
    "processes",
    pytest.param("ray", marks=(pytest.mark.outside, pytest.mark.xdist_group("ray"))),
]


@pytest.fixture(params=WORKERS)
def transport(request, monkeypatch):
    if request.param == "ray":
        request.getfixturevalue("cluster")
        with threadpool_limits(1, user_api="blas"):
            yield request.param
    else:
        with marked_children(monkeypatch, request.getfixturevalue("warm_start")):
            yield request.param


def make_inline(spec):
    groups = [
        make_views(
            dataclasses.replace(spec, first_env=worker * NUM_ENVS),
            NUM_ENVS,
            assign_by_index(AGENTS),
        )
        for worker in range(NUM_WORKERS)
    ]
    return JointGames(groups)


@contextlib.contextmanager
def open_workers(transport, spec, checkpoints=None):
    """Open the games of workers, and close them at the end in any case."""
    sizes = {"num_workers": NUM_WORKERS, "envs_per_worker": NUM_ENVS, "agents": AGENTS}
    if transport == "ray":
        from hotloop.rollouts.ray.environments import RayEnvironments, RayOptions

        workers = RayEnvironments(spec, RayOptions(), **sizes)
    else:
        workers = WorkerPool(spec, **sizes)
    views = make_views(spec, None, assign_by_index(AGENTS))
    num_games = NUM_WORKERS * NUM_ENVS // 3
    num_envs = {name: num_games * len(members) for name, members in AGENTS.items()}
    try:
        yield JointWorkers(workers, num_envs, views, checkpoints or {})
    finally:
        workers.close()


def begin_all(games, **plan):
    return {name: begin(games.environments(name), **plan) for name in AGENTS}


def publish(rollouts, version):
    for number, rollout in enumerate(rollouts.values()):
        network = rollout.policy.network
        snapshot = snapshot_of(network, version + 10 * number)
        rollout.publish(dataclasses.replace(snapshot, version=version))


def collect(rollouts):
    return {name: rollout.collect() for name, rollout in rollouts.items()}


def join(fragments):
    """Return the rows of consecutive fragments by field, whose lost episodes are truncated."""
    fields = ("obs", "next_obs", "truncated")
    rows = {name: np.concatenate([getattr(x, name) for x in fragments]) for name in fields}
    for number, fragment in enumerate(fragments):
        for i in fragment.restarted_envs:  # a worker on Ray loses whole fragments
            rows["truncated"][number * fragment.num_steps - 1, i] = True
    return rows


@pytest.mark.parametrize("overlap", [False, True])
def test_workers_return_the_fragments_of_one_process(transport, overlap):
    spec = EnvSpec("tests.toy_games:Teams", seed=5)
    inline = begin_all(make_inline(spec))
    with open_workers(transport, spec) as games:
        rollouts = begin_all(games, overlap=overlap)
        for version in range(4):
            for name, fragments in collect(rollouts).items():
                assert_same_fragments(fragments, inline[name].collect())
                episodes, expected = rollouts[name].pop_episodes(), inline[name].pop_episodes()
                assert sorted(episodes, key=str) == sorted(expected, key=str)
                assert rollouts[name].num_transitions == inline[name].num_transitions
            # Fragments that are collected ahead have the policy before the last one.
            newest = max(0, version - overlap + 1)
            publish(rollouts, version + 1)
            publish(inline, newest) if newest else None
        states = {name: rollout.state() for name, rollout in rollouts.items()}
        for name, state in states.items():
            assert_same_states(state, inline[name].state())
            assert_adds_up(rollouts[name].accounting())
    if overlap:
        return
    checkpoints = {name: (x.to_arrays(), x.position()) for name, x in states.items()}
    with open_workers(transport, spec, checkpoints) as games:
        rollouts = begin_all(games)
        publish(rollouts, 4)
        for name, rollout in rollouts.items():
            assert rollout.restore(*checkpoints[name]) == []
        for name, fragments in collect(rollouts).items():
            assert_same_fragments(fragments, inline[name].collect())


@pytest.mark.filterwarnings("ignore:.*similar failures are only counted:RuntimeWarning")
def test_a_killed_worker_is_replaced_for_all_policies(tmp_path, transport):
    spec = EnvSpec("tests.toy_games:FatalTeams", {"directory": str(tmp_path)}, seed=5)
    with open_workers(transport, spec) as games:
        rollouts = begin_all(games)
        rows = {name: [] for name in AGENTS}
        for version in range(1, 5):
            for name, fragments in collect(rollouts).items():
                rows[name].append(fragments[1])
            publish(rollouts, version)
        for rollout in rollouts.values():
            account = rollout.accounting()
            assert_adds_up(account)
            assert account.dropped["worker died"] > 0
            assert [worker.restarts for worker in account.workers] == [0, 1]
    red, blue = (join(rows[name]) for name in AGENTS)
    # red_0 and blue_0 are in the same step of the same game.
    np.testing.assert_array_equal(red["obs"][:, ::2, 1:], blue["obs"])
    num_cuts = 0
    for t in range(len(blue["obs"]) - 1):
        for i in range(2):
            if blue["truncated"][t, i]:
                num_cuts += blue["next_obs"][t, i, 0] < 6
                assert blue["obs"][t + 1, i, 0] == 0
                assert red["truncated"][t, 2 * i]
            else:
                np.testing.assert_array_equal(blue["obs"][t + 1, i], blue["next_obs"][t, i])
    assert num_cuts == 2  # both games of the worker


def test_workers_need_equal_steps_of_all_policies(warm_start):
    with (
        open_workers("processes", EnvSpec("tests.toy_games:Teams")) as games,
        pytest.raises(ConfigError, match="take the same steps, got `schedule` 'async'"),
    ):
        begin(games.environments("red"), schedule="async")
