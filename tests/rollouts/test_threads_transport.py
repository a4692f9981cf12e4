"""A new transport needs one file: every schedule works on it."""

import numpy as np
import pytest

from hotloop.algorithms import appo, ppo
from hotloop.envs import EnvSpec
from tests.rollouts.processes.pools import (
    Trace,
    assert_adds_up,
    assert_same_fragments,
    assert_same_states,
    begin,
    make_inline,
    snapshot_of,
)
from tests.rollouts.threads_transport import ThreadEnvironments

SCRIPTED = "tests.worker_envs:Scripted"
SMALL = {
    "env_id": "CartPole-v1",
    "workers": 2,
    "num_envs": 4,
    "num_steps": 16,
    "num_minibatches": 2,
    "update_epochs": 2,
    "hidden_sizes": (8,),
    "execution": "eager",
    "total_timesteps": 64 * 5,
}


@pytest.fixture
def threads(monkeypatch):
    """Let trainings use threads instead of worker processes."""
    monkeypatch.setattr("hotloop.rollouts.processes.pool.WorkerPool", ThreadEnvironments)


def train(path, algorithm, **options):
    return algorithm.train(algorithm.Config(**{**SMALL, **options}, run_dir=str(path)))


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize(
    ("algorithm", "options"),
    [
        (ppo, {"schedule": "barrier"}),
        (ppo, {"schedule": "variable"}),
        (ppo, {"overlap": True}),
        (appo, {"schedule": "variable"}),
        (appo, {"schedule": "lag:1"}),
        (appo, {"schedule": "async", "max_policy_age": 2}),
        (appo, {"schedule": "async", "max_policy_age": 2, "too_old": "drop"}),
    ],
)
def test_trainings_collect_with_every_schedule(tmp_path, algorithm, options):
    result = train(tmp_path / "run", algorithm, **options)
    accounting = result.accounting
    assert accounting["trained"] == 64 * 5
    dropped = sum(accounting["dropped"].values())
    assert accounting["collected"] == accounting["trained"] + dropped + accounting["in_flight"]
    assert accounting["policy_age_max"] <= 2


@pytest.mark.usefixtures("threads")
def test_a_training_has_the_weights_of_an_inline_one(tmp_path):
    threads = train(tmp_path / "threads", ppo)
    inline = train(tmp_path / "inline", ppo, backend="inline")
    expected = inline.policy.snapshot.params
    for name, array in threads.policy.snapshot.params.items():
        np.testing.assert_array_equal(array, expected[name], err_msg=name)


@pytest.mark.filterwarnings("ignore:worker 0. it was killed")
@pytest.mark.parametrize("is_killed", [False, True])
def test_a_restored_rollout_continues_where_the_other_stopped(is_killed):
    """A worker that is lost before its first row is restored again."""
    whole = begin(make_inline("CartPole-v1", 2, 2), 16)
    for _ in range(3):
        whole.collect()
    state = whole.state()
    envs = ThreadEnvironments(EnvSpec("CartPole-v1", seed=5), num_workers=2, envs_per_worker=2)
    rollout = begin(envs, 16)
    assert rollout.restore(state.to_arrays(), state.position()) == []
    if is_killed:
        envs.replace(envs.workers[0], "it was killed")
    assert_same_fragments(rollout.collect(), whole.collect())
    assert_same_states(rollout.state(), whole.state())
    rollout.close()
    whole.close()


@pytest.mark.filterwarnings("ignore:worker .*simulator diverged.*replaced")
@pytest.mark.parametrize("schedule", ["barrier", "variable", "async"])
def test_lost_workers_and_failed_environments_leave_whole_episodes(tmp_path, schedule):
    """Rows of an episode that a lost worker has begun end before those of the next one."""
    kwargs = {"directory": str(tmp_path), "length": 10, "faults": {"": {"step 12": "raise"}}}
    envs = ThreadEnvironments(EnvSpec(SCRIPTED, kwargs, seed=5), num_workers=2)
    rollout, trace = begin(envs, 8, schedule=schedule), Trace(2)
    for version in range(1, 9):
        trace.add(rollout.collect())
        assert_adds_up(rollout.accounting())
        if version in (3, 5):
            with pytest.warns(RuntimeWarning, match="worker 0: it was killed"):
                envs.replace(envs.workers[0], f"it was killed {'again' * (version == 5)}")
        rollout.publish(snapshot_of(rollout.policy.network, version))
    rollout.close()
    account = rollout.accounting()
    assert_adds_up(account)
    assert [worker.restarts for worker in account.workers] == [2, 0]
    finished = [(e.env, e.undiscounted_return, e.length) for e in rollout.pop_episodes()]
    assert sorted(finished) == sorted(trace.check(10))
