import dataclasses

import numpy as np
import pytest

from hotloop.training.streams import HeldBack, Stream, ages
from hotloop.types import Fragment


def fragment(num_steps, group=0, version=0, versions=None):
    made = Fragment.allocate(
        *(num_steps, 1), obs_shape=(1,), obs_dtype=np.float32, action_shape=(), action_dtype="i8"
    )
    made.first_env, made.policy_version, made.versions = group, version, versions
    return made


@pytest.mark.parametrize("rates", [(1.0, 1.0), (1.0, 0.05), (1.0, 0.3, 0.3, 0.05)])
def test_every_group_has_the_same_share_of_many_batches(rates):
    """Whole fragments of T = 8, as many as groups in each batch; slow groups are seldom there."""
    rng, weights, num_groups = np.random.default_rng(0), Stream(), len(rates)
    shares, rows = np.zeros(num_groups), np.zeros(num_groups)
    for batch in range(1200):
        taken = rng.choice(num_groups, num_groups, p=np.array(rates) / sum(rates)).tolist()
        fragments = [
            fragment(8 * taken.count(group), group) for group in range(num_groups) if group in taken
        ]
        told = weights.weights(fragments)
        if batch < 200:
            continue
        for one, weight in zip(fragments, told, strict=True):
            shares[one.first_env] += weight * one.num_steps
            rows[one.first_env] += one.num_steps
    # The slow ones really are, and it makes no difference; a row weighs 1 on average.
    assert rows.min() / rows.max() == pytest.approx(min(rates), rel=0.35)
    np.testing.assert_allclose(shares / shares.mean(), 1.0, atol=0.03)
    assert shares.sum() / rows.sum() == pytest.approx(1.0, abs=0.03)


def test_all_that_are_there_weigh_the_same_at_first():
    assert Stream().weights([fragment(8, 0), fragment(8, 3)]) == [1.0, 1.0]


def test_ages_are_of_each_row():
    old = fragment(3, version=4, versions=np.array([4, 4, 6]))
    assert ages([old, fragment(2, version=7)], 7).tolist() == [3, 3, 1, 0, 0]


def test_what_is_held_back_comes_as_it_was_so_many_batches_later():
    one = fragment(2)
    collected = []

    def collect():
        """The same memory, overwritten."""
        one.reward[:] = len(collected)
        collected.append(len(collected))
        return [dataclasses.replace(one)]

    held = HeldBack(3)
    given = [held.exchanged(collect)[0] for _ in range(4)]
    assert [x.reward[0, 0] for x in given] == [0, 1, 2, 3]
    assert len(collected) == 3 + 4
    assert HeldBack(0).exchanged(collect)[0].reward[0, 0] == 7


def test_values_are_scaled_by_many_batches_and_not_by_their_own():
    """One of ten batches holds what a slow group did, nine times as heavy and of another spread."""
    rng, stream = np.random.default_rng(0), Stream()
    fast, slow = [], []
    for batch in range(400):
        is_slow = batch % 10 == 9
        values = rng.normal(4.0 if is_slow else 2.0, 3.0 if is_slow else 1.0, 256)
        weight = np.full(256, 9.0 if is_slow else 1.0, np.float32)
        told = stream.normalized(values.astype(np.float32), weight)
        assert told.dtype == np.float32
        if batch >= 200:
            (slow if is_slow else fast).append(told)
    # Both weigh the same in all: mean 3, variance (9 + 1) / 2 + 1.
    deviation = np.sqrt(6.0)
    assert np.mean(fast) == pytest.approx((2.0 - 3.0) / deviation, abs=0.06)
    assert np.mean(slow) == pytest.approx((4.0 - 3.0) / deviation, abs=0.06)
    assert np.std(slow) / np.std(fast) == pytest.approx(3.0, rel=0.05)


def test_the_first_batch_is_scaled_by_itself():
    told = Stream().normalized(np.float32([[1.0, 5.0]]), np.float32([[3.0, 1.0]]))
    np.testing.assert_allclose(told, [[-1.0 / np.sqrt(3.0), 3.0 / np.sqrt(3.0)]], rtol=1e-6)
