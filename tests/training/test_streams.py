import dataclasses

import numpy as np
import pytest

from hotloop.training.streams import HeldBack, StreamWeights, ages
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
    rng, weights, num_groups = np.random.default_rng(0), StreamWeights(), len(rates)
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
    assert StreamWeights().weights([fragment(8, 0), fragment(8, 3)]) == [1.0, 1.0]


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
