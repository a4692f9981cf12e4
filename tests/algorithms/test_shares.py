"""What is learned does not depend on how fast the environments are."""

import numpy as np
import pytest

from hotloop.algorithms import dqn, ppo
from hotloop.algorithms.shares import Shares
from tests.uneven_envs import FastAndSlow

OBS = np.zeros(1, np.float32)


def test_shares_know_whose_entries_are_kept():
    rng = np.random.default_rng(0)
    shares, written = Shares(50, 3), []
    for k in range(200):
        worker = int(rng.choice(3, p=[0.7, 0.25, 0.05]))
        count = 70 if k == 100 else int(rng.integers(0, 9))  # once more than there is room for
        shares.add(worker, len(written), count)
        written += [worker] * count
        kept = written[-50:]
        index = np.arange(len(written))[-50:]
        weights = shares.weights(index)
        assert weights.dtype == np.float32
        present = sorted(set(kept))
        for one in present:
            own = weights[np.array(kept) == one]
            # Each worker's share is the same, and its entries are alike.
            np.testing.assert_allclose(own.sum(), len(kept) / len(present), rtol=1e-5)
            assert len(set(own.tolist())) == 1
    copy = Shares(50, 3)
    copy.load(shares.to_arrays()["shares.workers"])
    np.testing.assert_array_equal(copy.weights(index), shares.weights(index))


def test_entries_of_nobody_known_weigh_one():
    shares = Shares(10, 2)
    shares.add(0, 4, 3)
    assert shares.weights(np.array([1, 2])).tolist() == [1.0, 1.0]


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
            compile="off",
            schedule="variable",
            runs_dir=str(tmp_path),
            **options,
        ),
        env=FastAndSlow,
    )


@pytest.mark.slow
def test_variable_shares_find_the_action_that_is_best_everywhere(tmp_path, monkeypatch):
    assert train_ppo(tmp_path / "weighted").policy.act(OBS) == 1
    # Without the weights it is the other one: the task is one that shows the bias.
    monkeypatch.setattr(
        ppo,
        "equal_shares",
        lambda fragments: np.ones(sum(one.reward.size for one in fragments), np.float32),
    )
    assert train_ppo(tmp_path / "plain").policy.act(OBS) == 0


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
            compile="off",
            schedule="async",
            runs_dir=str(tmp_path),
            **options,
        ),
        env=FastAndSlow,
    )


@pytest.mark.slow
def test_async_shares_find_the_action_that_is_best_everywhere(tmp_path, monkeypatch):
    assert train_dqn(tmp_path / "weighted").policy.act(OBS) == 1
    monkeypatch.setattr(Shares, "weights", lambda self, index: np.ones(len(index), np.float32))
    assert train_dqn(tmp_path / "plain").policy.act(OBS) == 0
