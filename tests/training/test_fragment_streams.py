import dataclasses

import numpy as np
import pytest

from hotloop.training.fragment_streams import FragmentStream, LaggedFragments
from hotloop.training.policy_reevaluation import ages
from hotloop.types import Fragment


def make_fragment(num_steps, group=0, version=0, versions=None):
    fragment = Fragment.allocate(
        *(num_steps, 1), obs_shape=(1,), obs_dtype=np.float32, action_shape=(), action_dtype="i8"
    )
    fragment.first_env, fragment.policy_version, fragment.versions = group, version, versions
    return fragment


@pytest.mark.parametrize("rates", [(1.0, 1.0), (1.0, 0.05), (1.0, 0.3, 0.3, 0.05)])
def test_every_group_has_the_same_share_of_many_batches(rates):
    """Each batch holds `num_groups` whole fragments (T = 8), few of them from slow groups."""
    rng, stream, num_groups = np.random.default_rng(0), FragmentStream(), len(rates)
    shares, rows = np.zeros(num_groups), np.zeros(num_groups)
    for batch in range(1200):
        groups = rng.choice(num_groups, num_groups, p=np.array(rates) / sum(rates)).tolist()
        fragments = [
            make_fragment(8 * groups.count(group), group)
            for group in range(num_groups)
            if group in groups
        ]
        batch_weights = stream.weights(fragments)
        if batch < 200:
            continue
        for part, weight in zip(fragments, batch_weights, strict=True):
            shares[part.first_env] += weight * part.num_steps
            rows[part.first_env] += part.num_steps
    # Slow groups send fewer rows, but weigh the same in total. A row weighs 1 on average.
    assert rows.min() / rows.max() == pytest.approx(min(rates), rel=0.35)
    np.testing.assert_allclose(shares / shares.mean(), 1.0, atol=0.03)
    assert shares.sum() / rows.sum() == pytest.approx(1.0, abs=0.03)


def test_fragments_weigh_the_same_at_first():
    assert FragmentStream().weights([make_fragment(8, 0), make_fragment(8, 3)]) == [1.0, 1.0]


def test_ages_are_per_row():
    old = make_fragment(3, version=4, versions=np.array([4, 4, 6]))
    assert ages([old, make_fragment(2, version=7)], 7).tolist() == [3, 3, 1, 0, 0]


def test_delayed_fragments_are_copies():
    fragment = make_fragment(2)
    collected = []

    def collect():
        """Overwrite and return the same memory."""
        fragment.reward[:] = len(collected)
        collected.append(len(collected))
        return [dataclasses.replace(fragment)]

    delay = LaggedFragments(delay=3)
    delayed = [delay.collect(collect)[0] for _ in range(4)]
    assert [x.reward[0, 0] for x in delayed] == [0, 1, 2, 3]
    assert len(collected) == 3 + 4
    assert LaggedFragments().collect(collect)[0].reward[0, 0] == 7


def test_values_are_normalized_by_many_batches():
    """One of ten batches is a slow group's, with nine times the weight and another spread."""
    rng, stream = np.random.default_rng(0), FragmentStream()
    fast, slow = [], []
    for batch in range(400):
        is_slow = batch % 10 == 9
        values = rng.normal(4.0 if is_slow else 2.0, 3.0 if is_slow else 1.0, 256)
        weight = np.full(256, 9.0 if is_slow else 1.0, np.float32)
        normalized = stream.normalized(values.astype(np.float32), weight)
        assert normalized.dtype == np.float32
        if batch >= 200:
            (slow if is_slow else fast).append(normalized)
    # Both have the same total weight: mean 3, variance (9 + 1) / 2 + 1.
    deviation = np.sqrt(6.0)
    assert np.mean(fast) == pytest.approx((2.0 - 3.0) / deviation, abs=0.06)
    assert np.mean(slow) == pytest.approx((4.0 - 3.0) / deviation, abs=0.06)
    assert np.std(slow) / np.std(fast) == pytest.approx(3.0, rel=0.05)


def test_first_batch_is_normalized_by_itself():
    normalized = FragmentStream().normalized(np.float32([[1.0, 5.0]]), np.float32([[3.0, 1.0]]))
    np.testing.assert_allclose(normalized, [[-1.0 / np.sqrt(3.0), 3.0 / np.sqrt(3.0)]], rtol=1e-6)
