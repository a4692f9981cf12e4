"""What is drawn follows the law it is meant to, whichever way it is drawn."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from hotloop.errors import ReplayError
from hotloop.replay import Prioritized, Proportional, RankBased, ReplayBuffer, Uniform

FIELDS = {"x": ((), np.int64)}


def filled(weights, sampler, *, capacity=None, overwritten=0, seed=0):
    """A buffer whose live entries weigh this; before them, `overwritten` others were stored."""
    size = len(weights)
    capacity = size if overwritten else (capacity or size)
    buffer = ReplayBuffer(capacity, FIELDS, sampler=sampler, seed=seed)
    if overwritten:
        rng = np.random.default_rng(1)
        lost = {} if not buffer.sampler.weighted else {"weight": rng.uniform(0, 9, overwritten)}
        buffer.extend(x=np.arange(overwritten), **lost)
    more = {"weight": weights} if buffer.sampler.weighted else {}
    buffer.extend(x=np.arange(overwritten, overwritten + size), **more)
    assert len(buffer) == size
    return buffer


def drawn(buffer, batch_size, times):
    """(times, batch_size), which of the live entries, from 0 for the oldest."""
    found = np.empty((times, batch_size), np.int64)
    for row in found:
        row[:] = buffer.sample(batch_size).index
    return found - (buffer.num_added - len(buffer))


def critical(degrees):
    """What χ² exceeds once in a million (Wilson and Hilferty's approximation)."""
    part = 2 / (9 * degrees)
    return degrees * (1 - part + 4.75342 * math.sqrt(part)) ** 3


def pooled(expected, *counts, least=8.0):
    """Cells with few expected are one; what cannot happen must not."""
    for count in counts:
        assert count[expected == 0].sum() == 0
    rare = (expected < least) & (expected > 0)
    common = expected >= least

    def pool(values):
        return np.append(values[common], values[rare].sum()) if rare.any() else values[common]

    return [pool(values) for values in (expected, *counts)]


def assert_law(counts, probability):
    """χ² of counts against the law that they should follow."""
    counts, probability = np.ravel(counts), np.ravel(probability)
    assert probability.sum() == pytest.approx(1)
    expected, counts = pooled(probability * counts.sum(), counts)
    statistic = ((counts - expected) ** 2 / expected).sum()
    assert len(counts) > 1
    assert statistic < critical(len(counts) - 1)


def assert_same_law(counts, others):
    """χ² of two samples for having one law."""
    counts, others = np.ravel(counts).astype(float), np.ravel(others).astype(float)
    both, counts, others = pooled(counts + others, counts, others, least=16.0)
    ratio = math.sqrt(others.sum() / counts.sum())
    statistic = ((counts * ratio - others / ratio) ** 2 / both).sum()
    assert statistic < critical(len(both) - 1)


def successive(probability, length):
    """P of every ordered tuple under successive sampling, an axis a draw."""
    size = len(probability)
    law = np.zeros((size,) * length)
    for places in itertools.permutations(range(size), length):
        left, chance = 1.0, 1.0
        for place in places:
            chance *= probability[place] / left if left > 0 else 0.0
            # What is left, added up: 1 − p would lose what a heavy entry leaves.
            rest = [p for other, p in enumerate(probability) if other not in places]
            later = [probability[one] for one in places[places.index(place) + 1 :]]
            left = math.fsum([*rest, *later])
        law[places] = chance
    return law


def tuples_counted(found, size):
    """How often each ordered tuple was drawn, an axis a draw."""
    counts = np.zeros((size,) * found.shape[1], np.int64)
    np.add.at(counts, tuple(found.T), 1)
    return counts


def normalized(weights, shift=0.0):
    return (np.asarray(weights) + shift) / math.fsum(np.asarray(weights) + shift)


def spread(size, sigma, seed=3):
    return np.random.default_rng(seed).lognormal(0, sigma, size)


HEAVY = np.array([1.0, 2.0, 89991.0, 3.0, 1.0, 2.0])  # 99.99 % in one entry
VECTORS = {
    "near equal: proposals": (np.linspace(0.8, 1.2, 9), 0.0, "min"),
    "equal: proposals": (np.full(7, 3.0), 0.0, "min"),
    "spread: walks": (np.append(spread(19, 0.5), 40.0), 0.0, "min"),
    "one has 90 %": (np.array([1.0, 0.5, 27.0, 0.5, 0.7, 0.3]), 0.0, "min"),
    "one has 99.99 %: taken out": (HEAVY, 0.0, "min"),
    "two have 99.99 %: taken out": (np.array([1.0, 5e4, 2.0, 3.0, 8e4, 1.0]), 0.0, "min"),
    "negative": (np.array([-5.0, 1.0, -4.9, 2.5, -1.0, 0.0, 3.0]), 5.0, "min"),
    "negative, one heavy": (np.array([-5.0, -4.0, 1e5, -3.0, -4.5, -4.0]), 5.0, "min"),
    "all negative": (np.array([-5.0, -1.0, -2.0, -3.0, -4.0, -1.5]), 5.0, "min"),
    "close to the least": (-1e6 + np.array([0, 1, 2, 3, 4, 5, 6]) * 1e-9, 1e6, "min"),
    "closest to the least": (-1e18 + np.array([0, 1, 2, 3, 4, 0, 6]) * 128, 1e18, "min"),
    "close to the least, one heavy": (
        np.append(-1e6 + np.array([0, 1, 2, 3, 4, 5]) * 1e-9, 1e12),
        1e6,
        "min",
    ),
    "set shift": (np.array([-1.0, 0.5, 2.0, 0.0, 4.0, 1.0]), 2.0, 2.0),
    "set shift, all alike": (np.array([0.0, 0.1, 0.2, 0.0, 0.1, 0.3]), 5.0, 5.0),
    "set negative shift": (np.array([1.5, 3.0, 2.0, 5.0, 4.0, 1.0]), -1.0, -1.0),
    "some zeros": (np.array([0.0, 2.0, 0.0, 1.0, 3.0, 0.0, 0.0, 4.0, 1.0]), 0.0, "min"),
    "zeros, one heavy": (np.array([0.0, 1.0, 0.0, 5e4, 3.0, 2.0, 0.0]), 0.0, "min"),
    "tiny": (np.array([1.0, 2.0, 3.0, 4.0, 5.0]) * 1e-300, 0.0, "min"),
    "vast": (np.array([1.0, 2.0, 3.0, 4.0, 5.0]) * 1e280, 0.0, "min"),
}


@pytest.fixture(params=list(VECTORS), ids=lambda name: name.replace(" ", "-"))
def vector(request):
    return VECTORS[request.param]


def test_ordered_pairs_without_replacement(vector):
    weights, shift, setting = vector
    buffer = filled(weights, Proportional(replacement=False, shift=setting), seed=11)
    law = successive(normalized(weights, shift), 2)
    counts = tuples_counted(drawn(buffer, 2, 10_000), len(weights))
    assert_law(counts, law)


@pytest.mark.parametrize(
    "name",
    [
        "one has 90 %",
        "one has 99.99 %: taken out",
        "two have 99.99 %: taken out",
        "negative, one heavy",
        "all negative",
        "set shift",
    ],
)
def test_whole_batches_without_replacement(name):
    # Four of six: what is drawn after the tree has been changed is in there as well.
    weights, shift, setting = VECTORS[name]
    buffer = filled(weights, Proportional(replacement=False, shift=setting), seed=14)
    law = successive(normalized(weights, shift), 4)
    counts = tuples_counted(drawn(buffer, 4, 60_000), len(weights))
    assert_law(counts, law)


@pytest.mark.parametrize("overwritten", [0, 777])
@pytest.mark.parametrize(
    ("kind", "walks"),
    [("even", False), ("spread", True), ("wide", True), ("negative", True), ("high", False)],
)
def test_pairs_among_a_thousand(kind, walks, overwritten):
    # By groups of neighbours in a tree of four levels, filled partly or gone round.
    rng = np.random.default_rng(21)
    weights = {
        "even": rng.uniform(1, 2, 1000),
        "spread": spread(1000, 1.2),
        "wide": spread(1000, 4.0),
        "negative": np.append(rng.normal(0, 1, 999), 30.0),
        "high": rng.normal(100, 1, 1000),
    }[kind]
    shift = max(-weights.min(), 0.0)
    shifted = weights + shift
    assert (shifted.max() > 3 * shifted.mean()) == walks
    buffer = filled(
        weights, Proportional(replacement=False), capacity=1500, overwritten=overwritten, seed=22
    )
    probability = normalized(weights, shift)
    pairs = probability[:, None] * probability / (1 - probability)[:, None]
    np.fill_diagonal(pairs, 0.0)
    edges = np.arange(0, 1000, 50)
    law = np.add.reduceat(np.add.reduceat(pairs, edges, 0), edges, 1)
    counts = tuples_counted(drawn(buffer, 2, 40_000) // 50, 20)
    assert_law(counts, law / law.sum())
    assert law.sum() == pytest.approx(1, rel=1e-12)


def test_every_position_of_a_large_batch():
    # The law of the position k is not that of one draw; NumPy says what it is.
    weights = spread(40, 1.5)
    buffer = filled(weights, Proportional(replacement=False), seed=31)
    found = drawn(buffer, 30, 20_000)
    assert all(len(set(row)) == 30 for row in found[:1000])
    rng, probability = np.random.default_rng(32), normalized(weights)
    theirs = np.array([rng.choice(40, 30, replace=False, p=probability) for _ in range(10_000)])
    for place in (0, 1, 9, 19, 28, 29):
        ours = np.bincount(found[:, place], minlength=40)
        assert_same_law(ours, np.bincount(theirs[:, place], minlength=40))
    assert_law(np.bincount(found[:, 0], minlength=40), probability)
    # What is left out, ten a batch: χ² of such counts is the smaller for it.
    ours, others = (len(one) - np.bincount(one.ravel(), minlength=40) for one in (found, theirs))
    assert_same_law(ours, others)


def test_single_draws_with_replacement(vector):
    weights, shift, setting = vector
    buffer = filled(weights, Proportional(shift=setting), seed=41)
    probability = normalized(weights, shift)
    found = drawn(buffer, 100, 2000)
    assert_law(np.bincount(found.ravel(), minlength=len(weights)), probability)
    # Draws of one batch are independent.
    assert_law(tuples_counted(found[:, :2], len(weights)), np.outer(probability, probability))
    batch = buffer.sample(50)
    np.testing.assert_allclose(batch.probability, probability[batch.index], rtol=1e-9)
    np.testing.assert_array_equal(batch.weight, np.asarray(weights)[batch.index])


def test_with_replacement_some_entries_have_no_weight():
    weights = np.zeros(100)
    weights[[7, 63, 64, 99]] = [1.0, 2.0, 3.0, 4.0]
    buffer = filled(weights, Proportional(), capacity=130, seed=42)
    counts = np.bincount(drawn(buffer, 200, 500).ravel(), minlength=100)
    assert_law(counts, weights / 10)
    assert buffer.counters["filled_uniformly"] == 0


def drawn_and_restored(weights, sampler, batch_size, times, **options):
    """Draws; after each one the trees must be the same to the last bit."""
    buffer = filled(weights, sampler, **options)
    buffer.sample(batch_size)  # from which shift the sums are made is settled by now
    before = {name: array.tobytes() for name, array in buffer._store.weights.items()}
    found = np.empty((times, batch_size), np.int64)
    for row in found:
        row[:] = buffer.sample(batch_size).index
        assert {name: array.tobytes() for name, array in buffer._store.weights.items()} == before
    return buffer, found - (buffer.num_added - len(buffer))


@pytest.mark.parametrize("overwritten", [0, 333])
@pytest.mark.parametrize("shift", ["min", 0.7])
def test_what_is_taken_out_is_put_back_to_the_last_bit(shift, overwritten):
    rng = np.random.default_rng(51)
    weights = rng.normal(0, 0.1, 300)
    weights[[5, 77, 299]] = 1e6 * rng.uniform(1, 2, 3)
    _, found = drawn_and_restored(
        weights, Proportional(replacement=False, shift=shift), 40, 200, overwritten=overwritten
    )
    assert all(len(set(row)) == 40 for row in found)
    assert all({5, 77, 299} <= set(row[:10]) for row in found)


@pytest.mark.parametrize("shift", [0.0, 2.0])
def test_fewer_weights_than_the_batch(shift):
    # All that have weight, by the law of successive sampling, then others, all alike.
    weights = np.array([0.0, 3.0, 0.0, 0.0, 1.0, 0.0, 0.0, 5.0, 0.0, 0.0]) - shift
    buffer, found = drawn_and_restored(
        weights, Proportional(replacement=False), 5, 20_000, capacity=12, seed=52
    )
    assert all(len(set(row)) == 5 for row in found)
    assert (np.sort(found[:, :3]) == [1, 4, 7]).all()
    law = successive([3 / 9, 1 / 9, 5 / 9], 3)
    assert_law(tuples_counted(np.searchsorted([1, 4, 7], found[:, :3]), 3), law)
    others = [0, 2, 3, 5, 6, 8, 9]
    law = successive(np.full(7, 1 / 7), 2)
    assert_law(tuples_counted(np.searchsorted(others, found[:, 3:]), 7), law)
    assert buffer.counters["filled_uniformly"] == 2 * 20_001
    batch = buffer.sample(5)
    np.testing.assert_allclose(batch.probability[3:], 0.0, atol=0)


def test_a_batch_of_all_entries_when_few_have_weight():
    weights = np.zeros(300)
    weights[123] = 1.0
    buffer, found = drawn_and_restored(weights, Proportional(replacement=False), 300, 20)
    assert (found[:, 0] == 123).all()
    assert (np.sort(found) == np.arange(300)).all()
    assert buffer.counters["filled_uniformly"] == 21 * 299


def test_strict_names_both_numbers():
    weights = np.zeros(50)
    weights[[3, 30, 44]] = 1.0
    buffer = filled(weights, Proportional(replacement=False, strict=True), seed=53)
    before = {name: array.tobytes() for name, array in buffer._store.weights.items()}
    with pytest.raises(ReplayError, match=r"batch of 4 needs .* and 3 of 50 have some"):
        buffer.sample(4)
    assert {name: array.tobytes() for name, array in buffer._store.weights.items()} == before
    assert buffer.counters["filled_uniformly"] == buffer.num_samples == 0
    assert sorted(buffer.sample(3).index) == [3, 30, 44]
    buffer.update_weights([0], [0.001])
    assert sorted(buffer.sample(4).index) == [0, 3, 30, 44]


@pytest.mark.parametrize("value", [0.0, -3.0])
@pytest.mark.parametrize("replacement", [True, False])
def test_no_weight_at_all_is_uniform(replacement, value):
    buffer = filled(np.full(9, value), Proportional(replacement=replacement), seed=54, capacity=11)
    counts = tuples_counted(drawn(buffer, 2, 20_000), 9)
    law = np.full((9, 9), 1 / 81) if replacement else successive(np.full(9, 1 / 9), 2)
    assert_law(counts, law)
    assert buffer.counters["filled_uniformly"] == 2 * 20_000
    np.testing.assert_array_equal(buffer.sample(2).probability, 1 / 9)


# Weights at the ends of what a float64 holds.


def test_weights_from_1e_300_to_1e290():
    # Each has ten orders of magnitude on the next: the order of the draws is certain.
    weights = 10.0 ** np.arange(-300, 291, 10)
    order = np.random.default_rng(61).permutation(len(weights))
    _, found = drawn_and_restored(
        weights[order], Proportional(replacement=False), len(weights), 50, overwritten=100
    )
    np.testing.assert_array_equal(order[found], np.tile(np.arange(59, -1, -1), (50, 1)))


def test_the_least_of_vast_weights_are_drawn_by_their_law():
    # Two that hold all of the weight as far as a sum can tell, and five below the last bit.
    light = np.array([1.0, 2.0, 3.0, 4.0, 2.0]) * 1e-300
    weights = np.concatenate([light[:3], [1e280, 3e280], light[3:]])
    _, found = drawn_and_restored(weights, Proportional(replacement=False), 4, 20_000, seed=62)
    assert (np.sort(found[:, :2]) == [3, 4]).all()
    assert_law(np.bincount(found[:, 0] - 3), [1 / 4, 3 / 4])
    left = np.searchsorted([0, 1, 2, 5, 6], found[:, 2:])
    assert_law(tuples_counted(left, 5), successive(light / light.sum(), 2))


def test_geometric_weights_all_of_them():
    weights = 2.0 ** -np.arange(256)
    order = np.random.default_rng(63).permutation(256)
    _, found = drawn_and_restored(weights[order], Proportional(replacement=False), 256, 3000)
    found = order[found]  # by weight: 0 is the heaviest
    assert (np.sort(found) == np.arange(256)).all()
    # The last ones are drawn from what is left, far below the first one's last bit.
    counts = np.bincount(np.minimum(found[:, 0], 12), minlength=13)
    assert_law(counts, [*2.0 ** -np.arange(1, 13), 2.0**-12])
    law = successive(normalized(weights[:12]), 2)
    pairs = found[(found[:, :2] < 12).all(1), :2]
    assert_law(tuples_counted(pairs, 12), law)
    # Whether entry i + 1 comes before entry i, 1 : 2, everywhere along the scale.
    places = np.argsort(found)
    for first in range(0, 255, 17):
        swapped = (places[:, first + 1] < places[:, first]).sum()
        assert_law([swapped, 3000 - swapped], [1 / 3, 2 / 3])


def test_vast_negative_weights():
    # The others are 1e290 above the least, to the last bit.
    weights = np.array([3.0, -1e290, 5.0, 1e200, -7.0])
    buffer, found = drawn_and_restored(weights, Proportional(replacement=False), 2, 5000, seed=64)
    assert not (found == 1).any()
    law = successive([1 / 4, 0, 1 / 4, 1 / 4, 1 / 4], 2)
    assert_law(tuples_counted(found, 5), law)
    assert 1 in buffer.sample(5).index


# Uniform.


@pytest.mark.parametrize("overwritten", [0, 8])
@pytest.mark.parametrize(("size", "batch_size"), [(9, 2), (9, 4), (9, 5), (9, 8), (9, 9), (30, 3)])
@pytest.mark.parametrize("replacement", [True, False])
def test_uniform(size, batch_size, replacement, overwritten):
    buffer = filled(np.zeros(size), Uniform(replacement=replacement), overwritten=overwritten)
    found = drawn(buffer, batch_size, 15_000)
    one = np.full(size, 1 / size)
    law = np.outer(one, one) if replacement else successive(one, 2)
    for places in {(0, 1), (0, batch_size - 1), (batch_size - 2, batch_size - 1)}:
        assert_law(tuples_counted(found[:, places], size), law)
    for place in range(batch_size):
        assert_law(np.bincount(found[:, place], minlength=size), one)
    if not replacement:
        assert all(len(set(row)) == batch_size for row in found[:2000])
    with pytest.raises(AttributeError):
        buffer.sample(1).weight  # noqa: B018


@pytest.mark.parametrize("share", [0.02, 0.5, 0.51, 0.9, 1.0])
def test_uniform_without_replacement_of_many(share):
    buffer = filled(np.zeros(3000), Uniform(replacement=False), capacity=4000, seed=71)
    count = int(share * 3000)
    counts = np.zeros(3000, np.int64)
    firsts = np.zeros(30, np.int64)
    for _ in range(200):
        index = buffer.sample(count).index
        assert len(np.unique(index)) == count
        counts[index] += 1
        firsts += np.bincount(index[: count // 2] // 100, minlength=30)
    assert_law(firsts, np.full(30, 1 / 30))
    if share < 1:
        expected = 200 * share
        statistic = ((counts - expected) ** 2 / (expected * (1 - share))).sum()
        assert statistic * 2999 / 3000 < critical(2999)


# Prioritized.


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0, 2.5])
@pytest.mark.parametrize("epsilon", [1e-6, 0.5])
@pytest.mark.parametrize("stratified", [False, True])
def test_prioritized(alpha, epsilon, stratified):
    priorities = np.random.default_rng(81).exponential(size=70) ** 2
    priorities[[0, 9, 69]] = 0.0
    sampler = Prioritized(alpha=alpha, epsilon=epsilon, stratified=stratified)
    buffer = filled(np.ones(70), sampler, capacity=99, seed=82)
    assert buffer.update_weights(np.arange(70), priorities) == 70
    found = drawn(buffer, 50, 2000)
    weights = (priorities + epsilon) ** alpha
    probability = normalized(weights)
    if not stratified:
        assert_law(np.bincount(found.ravel(), minlength=70), probability)
    batch = buffer.sample(64)
    np.testing.assert_allclose(batch.weight, weights[batch.index], rtol=1e-14)
    np.testing.assert_allclose(batch.probability, probability[batch.index], rtol=1e-12)


@pytest.mark.parametrize("overwritten", [0, 100])
@pytest.mark.parametrize("kind", ["even", "spread"])
def test_one_entry_from_each_stratum(kind, overwritten):
    rng = np.random.default_rng(83)
    priorities = rng.uniform(1, 2, 500) if kind == "even" else spread(500, 2.5)
    sampler = Prioritized(alpha=1.0, epsilon=1e-9, stratified=True)
    buffer = filled(priorities, sampler, overwritten=overwritten, capacity=600, seed=84)
    # The strata follow the slots of the ring.
    slots = np.argsort(np.arange(overwritten, overwritten + 500) % buffer.capacity)
    ends = np.cumsum((priorities + 1e-9)[slots])
    ends /= ends[-1]
    begins = np.append(0.0, ends[:-1])
    place = np.argsort(slots)
    counts = np.zeros(500, np.int64)
    for batch_size in (1, 7, 64, 500, 1000):
        for _ in range(100 if batch_size < 500 else 20):
            found = drawn(buffer, batch_size, 1)[0]
            number = np.arange(batch_size)
            assert (ends[place[found]] > number / batch_size - 1e-12).all()
            assert (begins[place[found]] < (number + 1) / batch_size + 1e-12).all()
            counts += np.bincount(found, minlength=500)
    assert_law(counts[slots], ends - begins)  # closer than chance would have it


# Ranks.


def harmonic(size, alpha):
    return math.fsum(float(rank) ** -alpha for rank in range(1, size + 1))


def assert_rank_law(ranks, size, alpha):
    """χ² by rank up to 20, then by groups of ranks with edges about 1024."""
    edges = [*range(min(size, 20)), 30, 50, 100, 200, 500, 900, 1000, 1022, 1023, 1024, 1025, 1026]
    edges += [1030, 1100, 1500, 2000, 3000, 4000, 4990, 4999]
    edges = [edge for edge in edges if edge < size]
    law = np.arange(1, size + 1, dtype=float) ** -alpha
    law = np.add.reduceat(law, edges) / harmonic(size, alpha)
    group = np.searchsorted(edges, ranks - 1, side="right") - 1
    assert_law(np.bincount(group, minlength=len(edges)), law)


@pytest.mark.parametrize("alpha", [0.0, 0.7, 1.0, 2.0])
@pytest.mark.parametrize("size", [1, 2, 100, 1023, 1024, 1025, 5000])
def test_ranks(size, alpha):
    priorities = np.random.default_rng(91).permutation(size) * 0.01 - 0.0
    sampler = RankBased(alpha=alpha)
    buffer = filled(priorities, sampler, capacity=size + 3, seed=92)
    rank = np.empty(size, np.int64)
    rank[np.argsort(-priorities)] = np.arange(1, size + 1)
    batches = [buffer.sample(1000) for _ in range(100)]
    found = np.concatenate([batch.index for batch in batches])
    if size > 1:
        assert_rank_law(rank[found], size, alpha)
    given = np.concatenate([batch.probability for batch in batches[:20]])
    expected = rank[found[: len(given)]] ** -float(alpha) / harmonic(size, alpha)
    np.testing.assert_allclose(given, expected, rtol=1e-10)
    np.testing.assert_array_equal(batches[0].weight, priorities[batches[0].index])


@pytest.mark.parametrize("alpha", [0.5, 1 - 1e-12, 1 + 1e-8, 1.5, 30.0])
def test_probabilities_of_ranks_add_up(alpha):
    size = 20_000
    buffer = filled(np.arange(size, 0.0, -1), RankBased(alpha=alpha), seed=93)
    probability = np.full(size, np.nan)
    for _ in range(60):
        batch = buffer.sample(5000)
        probability[batch.index] = batch.probability
    known = ~np.isnan(probability)
    assert known[0]
    expected = np.arange(1, size + 1) ** -alpha / harmonic(size, alpha)
    np.testing.assert_allclose(probability[known], expected[known], rtol=1e-10)


def test_equal_priorities_rank_by_slot():
    buffer = filled(np.array([1.0, 2.0, 1.0, 2.0, 1.0, 0.0]), RankBased(alpha=1.0), seed=94)
    batch = buffer.sample(3000)
    rank = np.array([3, 1, 4, 2, 5, 6])[batch.index]
    np.testing.assert_allclose(batch.probability, 1 / rank / harmonic(6, 1.0), rtol=1e-12)
    assert_law(np.bincount(rank)[1:], 1 / np.arange(1, 7) / harmonic(6, 1.0))


@pytest.mark.parametrize("size", [300, 3000])
@pytest.mark.parametrize("alpha", [0.0, 0.7, 1.0])
def test_one_rank_from_each_stratum(alpha, size):
    priorities = np.random.default_rng(95).random(size)
    buffer = filled(priorities, RankBased(alpha=alpha, stratified=True), capacity=4000, seed=96)
    rank = np.empty(size, np.int64)
    rank[np.argsort(-priorities)] = np.arange(size)
    ends = np.cumsum(np.arange(1, size + 1) ** -alpha)
    ends /= ends[-1]
    begins = np.append(0.0, ends[:-1])
    for batch_size in (1, 8, 256, 1000):
        for found in drawn(buffer, batch_size, 50):
            number = np.arange(batch_size)
            assert (ends[rank[found]] > number / batch_size - 1e-10).all()
            assert (begins[rank[found]] < (number + 1) / batch_size + 1e-10).all()


# Importance weights.


@pytest.mark.parametrize("beta", [0.0, 0.4, 1.0, None])
@pytest.mark.parametrize("normalize", ["buffer", "batch"])
@pytest.mark.parametrize("kind", [Prioritized, RankBased])
def test_importance(kind, normalize, beta):
    priorities = spread(200, 1.0)
    sampler = kind(alpha=0.8, beta=0.3, normalize=normalize)
    buffer = filled(priorities, sampler, capacity=300, seed=101)
    if kind is Prioritized:
        probability = normalized((priorities + 1e-6) ** 0.8)
    else:
        probability = np.empty(200)
        probability[np.argsort(-priorities)] = normalized(np.arange(1, 201) ** -0.8)
    for _ in range(20):
        batch = buffer.sample(32, beta=beta)
        own = probability[batch.index]
        raw = (200 * own) ** -(0.3 if beta is None else beta)
        least = (probability if normalize == "buffer" else own).min()
        greatest = (200 * least) ** -(0.3 if beta is None else beta)
        assert batch.importance.dtype == np.float32
        np.testing.assert_allclose(batch.importance, raw / greatest, rtol=1e-6)
        assert batch.importance.max() <= 1
        if normalize == "batch":
            assert batch.importance.max() == 1
    np.testing.assert_array_equal(batch.importance.shape, (32,))


def test_importance_of_a_weight_far_below_the_others():
    # The least probability underflows; what was drawn is to be weighed by it all the same.
    sampler = Prioritized(alpha=1.0, epsilon=1e-300, beta=1.0)
    buffer = filled(np.array([0.0, 1e100, 1e100]), sampler, seed=102)
    np.testing.assert_array_equal(buffer.sample(8).importance, 0.0)


@pytest.mark.parametrize("kind", [Prioritized, RankBased])
def test_beta_is_annealed(kind):
    sampler = kind(alpha=1.0, beta=0.2, beta_final=0.9, beta_samples=7, normalize="batch")
    buffer = filled(np.array([1.0, 8.0]), sampler, seed=103)
    ratio = 2.0 if kind is RankBased else (8 + 1e-6) / (1 + 1e-6)
    for number in range(12):
        batch = buffer.sample(200)
        assert set(batch.index) == {0, 1}
        beta = 0.2 + 0.7 * min(number / 7, 1)
        expected = np.where(batch.index == 1, ratio**-beta, 1.0)
        np.testing.assert_allclose(batch.importance, expected, rtol=1e-6)
    np.testing.assert_allclose(buffer.sample(200, beta=0.5).importance.min(), ratio**-0.5, 1e-6)
    assert buffer.num_samples == 13
    steady = filled(np.array([1.0, 8.0]), kind(alpha=1.0, beta=0.2, normalize="batch"))
    for _ in range(3):
        np.testing.assert_allclose(steady.sample(200).importance.min(), ratio**-0.2, 1e-6)


def test_seeds():
    def index(seed):
        return filled(np.arange(1, 51), Proportional(replacement=False), seed=seed).sample(20).index

    np.testing.assert_array_equal(index(5), index(5))
    assert not (index(5) == index(6)).all()
    assert not (index(None) == index(None)).all()
