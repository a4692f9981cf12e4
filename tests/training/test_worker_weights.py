"""Training results do not depend on the speed of the environments."""

import numpy as np
import pytest

from hotloop.algorithms import dqn, ppo
from hotloop.errors import ConfigError
from hotloop.training import on_policy
from hotloop.training.worker_weights import WorkerWeights
from tests.attempts import attempts
from tests.uneven_envs import FastAndSlow

OBS = np.zeros(1, np.float32)


def test_weights_give_workers_equal_shares():
    rng = np.random.default_rng(0)
    worker_weights, written = WorkerWeights(50, 3), []
    for k in range(200):
        worker = int(rng.choice(3, p=[0.7, 0.25, 0.05]))
        count = 70 if k == 100 else int(rng.integers(0, 9))  # once more than the capacity
        worker_weights.add(worker, len(written), count)
        written += [worker] * count
        recent = written[-50:]
        index = np.arange(len(written))[-50:]
        weights = worker_weights.weights(index)
        assert weights.dtype == np.float32
        present = sorted(set(recent))
        for member in present:
            member_weights = weights[np.array(recent) == member]
            # All workers have the same share, and a worker's entries weigh the same.
            np.testing.assert_allclose(member_weights.sum(), len(recent) / len(present), rtol=1e-5)
            assert len(set(member_weights.tolist())) == 1
    copy = WorkerWeights(50, 3)
    copy.load(worker_weights.to_array())
    np.testing.assert_array_equal(copy.weights(index), worker_weights.weights(index))


def test_entries_of_unknown_workers_weigh_one():
    worker_weights = WorkerWeights(10, 2)
    worker_weights.add(0, 4, 3)
    assert worker_weights.weights(np.array([1, 2])).tolist() == [1.0, 1.0]


def train_ppo(tmp_path, **options):
    return ppo.train(
        ppo.Config(
            env_id="uneven",
            total_timesteps=256 * 40,
            num_steps=128,
            workers=2,
            envs_per_worker=1,
            learning_rate=5e-3,
            hidden_sizes=(8,),
            execution="eager",
            schedule="variable",
            runs_dir=str(tmp_path),
            **options,
        ),
        env=FastAndSlow,
    )


@pytest.mark.slow
def test_variable_weights_find_the_action_that_is_best_everywhere(tmp_path, monkeypatch):
    assert train_ppo(tmp_path / "weighted").policy.act(OBS) == 1
    # Without the weights the other action wins, so the task does show the bias.
    monkeypatch.setattr(
        on_policy,
        "environment_weights",
        lambda fragments: np.ones(sum(fragment.reward.size for fragment in fragments), np.float32),
    )
    for result, attempt in attempts(lambda number: train_ppo(tmp_path / f"plain-{number}")):
        with attempt:
            assert result.policy.act(OBS) == 0


def train_dqn(tmp_path, **options):
    return dqn.train(
        dqn.Config(
            env_id="uneven",
            total_timesteps=6_000,
            learning_starts=500,
            buffer_size=6_000,
            batch_size=64,
            update_to_data=0.2,
            learning_rate=1e-2,
            epsilon_start=1.0,
            epsilon_end=1.0,
            workers=2,
            envs_per_worker=1,
            hidden_sizes=(8,),
            execution="eager",
            schedule="async",
            runs_dir=str(tmp_path),
            **options,
        ),
        env=FastAndSlow,
    )


@pytest.mark.slow
def test_async_weights_find_the_action_that_is_best_everywhere(tmp_path, monkeypatch):
    assert train_dqn(tmp_path / "weighted").policy.act(OBS) == 1
    monkeypatch.setattr(
        WorkerWeights, "weights", lambda self, index: np.ones(len(index), np.float32)
    )
    for result, attempt in attempts(lambda number: train_dqn(tmp_path / f"plain-{number}")):
        with attempt:
            assert result.policy.act(OBS) == 0


def test_fragments_are_short_enough_for_the_age_bound():
    def num_steps(config):
        return dqn.algorithm.collection_options(config).num_steps

    options = {"workers": 4, "envs_per_worker": 2, "schedule": "async"}
    few = dqn.Config(**options, update_to_data=1.0, max_policy_age=1_000)
    # Two slots of all environments hold 2 × 62 × 8 = 992 steps, so ages stay below 1,000.
    assert num_steps(few) == 62
    assert num_steps(dqn.Config(**options, update_to_data=0.1)) == few.fragment_steps
    with pytest.raises(ConfigError, match="`max_policy_age` = 15 is too low for 8 environments"):
        dqn.Config(**options, update_to_data=1.0, max_policy_age=15)


def test_async_makes_all_updates(tmp_path):
    result = dqn.train(
        dqn.Config(
            total_timesteps=1_200,
            learning_starts=200,
            batch_size=16,
            update_to_data=0.5,
            max_policy_age=40,
            workers=2,
            envs_per_worker=2,
            hidden_sizes=(8,),
            execution="eager",
            schedule="async",
            runs_dir=str(tmp_path),
        )
    )
    assert result.accounting["policy_age_max"] <= 40
    # Learning begins a few rows after 200 transitions.
    assert result.policy.version == pytest.approx(0.5 * (result.timesteps - 200), abs=60)
