"""Draws follow their law, for every sampler and every algorithm that it uses."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from hotloop.errors import ReplayError
from hotloop.replay import Prioritized, Proportional, RankBased, ReplayBuffer, Uniform

FIELDS = {"x": ((), np.int64)}


def filled(weights, sampler, *, capacity=None, overwritten=0, seed=0):
    """Return a buffer whose live entries have these weights, after `overwritten` other entries."""
    size = len(weights)
    capacity = size if overwritten else (capacity or size)
    buffer = ReplayBuffer(capacity, FIELDS, sampler=sampler, seed=seed)
    if overwritten:
        rng = np.random.default_rng(1)
        old = {} if not buffer.sampler.weighted else {"weight": rng.uniform(0, 9, overwritten)}
        buffer.extend(x=np.arange(overwritten), **old)
    kwargs = {"weight": weights} if buffer.sampler.weighted else {}
    buffer.extend(x=np.arange(overwritten, overwritten + size), **kwargs)
    assert len(buffer) == size
    return buffer


def draw(buffer, batch_size, times):
    """Return draws (times, batch_size) as positions among the live entries, 0 for the oldest."""
    draws = np.empty((times, batch_size), np.int64)
    for row in draws:
        row[:] = buffer.sample(batch_size).index
    return draws - (buffer.num_added - len(buffer))


def critical(degrees):
    """Return the one-in-a-million critical value of χ² (Wilson and Hilferty's approximation)."""
    part = 2 / (9 * degrees)
    return degrees * (1 - part + 4.75342 * math.sqrt(part)) ** 3


def pooled(expected, *counts, least=8.0):
    """Merge cells with few expected counts. Impossible cells must be empty."""
    for count in counts:
        assert count[expected == 0].sum() == 0
    rare = (expected < least) & (expected > 0)
    common = expected >= least

    def pool(values):
        return np.append(values[common], values[rare].sum()) if rare.any() else values[common]

    return [pool(values) for values in (expected, *counts)]


def assert_law(counts, probability):
    """Test counts against a law with χ²."""
    counts, probability = np.ravel(counts), np.ravel(probability)
    assert probability.sum() == pytest.approx(1)
    expected, counts = pooled(probability * counts.sum(), counts)
    statistic = ((counts - expected) ** 2 / expected).sum()
    assert len(counts) > 1
    assert statistic < critical(len(counts) - 1)


def assert_same_law(counts, other_counts):
    """Test with χ² whether two samples have one law."""
    counts, other_counts = np.ravel(counts).astype(float), np.ravel(other_counts).astype(float)
    both, counts, other_counts = pooled(counts + other_counts, counts, other_counts, least=16.0)
    ratio = math.sqrt(other_counts.sum() / counts.sum())
    statistic = ((counts * ratio - other_counts / ratio) ** 2 / both).sum()
    assert statistic < critical(len(both) - 1)


def successive_law(probability, length):
    """Return the probability of every ordered tuple of successive sampling, one axis per draw."""
    size = len(probability)
    law = np.zeros((size,) * length)
    for places in itertools.permutations(range(size), length):
        remaining, chance = 1.0, 1.0
        for place in places:
            chance *= probability[place] / remaining if remaining > 0 else 0.0
            # Summing the rest is exact. 1 − p would cancel beside a heavy entry.
            unused = [p for k, p in enumerate(probability) if k not in places]
            later = [probability[i] for i in places[places.index(place) + 1 :]]
            remaining = math.fsum([*unused, *later])
        law[places] = chance
    return law


def count_tuples(draws, size):
    """Return how often each ordered tuple was drawn, one axis per draw."""
    counts = np.zeros((size,) * draws.shape[1], np.int64)
    np.add.at(counts, tuple(draws.T), 1)
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
    law = successive_law(normalized(weights, shift), 2)
    counts = count_tuples(draw(buffer, 2, 10_000), len(weights))
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
def test_batches_of_four_without_replacement(name):
    # Four of six entries, so that draws after changes of the tree are included.
    weights, shift, setting = VECTORS[name]
    buffer = filled(weights, Proportional(replacement=False, shift=setting), seed=14)
    law = successive_law(normalized(weights, shift), 4)
    counts = count_tuples(draw(buffer, 4, 60_000), len(weights))
    assert_law(counts, law)


@pytest.mark.parametrize("overwritten", [0, 777])
@pytest.mark.parametrize(
    ("kind", "walks"),
    [("even", False), ("spread", True), ("wide", True), ("negative", True), ("high", False)],
)
def test_pairs_among_a_thousand(kind, walks, overwritten):
    # Counts are grouped by neighbors. The tree has four levels, partly filled or wrapped around.
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
    counts = count_tuples(draw(buffer, 2, 40_000) // 50, 20)
    assert_law(counts, law / law.sum())
    assert law.sum() == pytest.approx(1, rel=1e-12)


def test_every_position_of_a_large_batch_matches_numpy():
    # The law of position k differs from that of a single draw. NumPy is the reference.
    weights = spread(40, 1.5)
    buffer = filled(weights, Proportional(replacement=False), seed=31)
    draws = draw(buffer, 30, 20_000)
    assert all(len(set(row)) == 30 for row in draws[:1000])
    rng, probability = np.random.default_rng(32), normalized(weights)
    peers = np.array([rng.choice(40, 30, replace=False, p=probability) for _ in range(10_000)])
    for place in (0, 1, 9, 19, 28, 29):
        counts = np.bincount(draws[:, place], minlength=40)
        assert_same_law(counts, np.bincount(peers[:, place], minlength=40))
    assert_law(np.bincount(draws[:, 0], minlength=40), probability)
    # The ten entries that each batch leaves out. χ² of such counts is smaller.
    counts, peer_counts = (len(x) - np.bincount(x.ravel(), minlength=40) for x in (draws, peers))
    assert_same_law(counts, peer_counts)


def test_single_draws_with_replacement(vector):
    weights, shift, setting = vector
    buffer = filled(weights, Proportional(shift=setting), seed=41)
    probability = normalized(weights, shift)
    draws = draw(buffer, 100, 2000)
    assert_law(np.bincount(draws.ravel(), minlength=len(weights)), probability)
    # Draws of one batch are independent.
    assert_law(count_tuples(draws[:, :2], len(weights)), np.outer(probability, probability))
    batch = buffer.sample(50)
    np.testing.assert_allclose(batch.probability, probability[batch.index], rtol=1e-9)
    np.testing.assert_array_equal(batch.weight, np.asarray(weights)[batch.index])


def test_entries_without_weight_are_never_drawn():
    weights = np.zeros(100)
    weights[[7, 63, 64, 99]] = [1.0, 2.0, 3.0, 4.0]
    buffer = filled(weights, Proportional(), capacity=130, seed=42)
    counts = np.bincount(draw(buffer, 200, 500).ravel(), minlength=100)
    assert_law(counts, weights / 10)
    assert buffer.counters["filled_uniformly"] == 0


def draw_and_restore(weights, sampler, batch_size, times, **options):
    """Draw and check that the trees are bitwise the same after each draw."""
    buffer = filled(weights, sampler, **options)
    buffer.sample(batch_size)  # this fixes the shift of the sums
    before = {name: array.tobytes() for name, array in buffer._store.weights.items()}
    draws = np.empty((times, batch_size), np.int64)
    for row in draws:
        row[:] = buffer.sample(batch_size).index
        assert {name: array.tobytes() for name, array in buffer._store.weights.items()} == before
    return buffer, draws - (buffer.num_added - len(buffer))


@pytest.mark.parametrize("overwritten", [0, 333])
@pytest.mark.parametrize("shift", ["min", 0.7])
def test_heavy_entries_are_restored_bitwise(shift, overwritten):
    rng = np.random.default_rng(51)
    weights = rng.normal(0, 0.1, 300)
    weights[[5, 77, 299]] = 1e6 * rng.uniform(1, 2, 3)
    _, draws = draw_and_restore(
        weights, Proportional(replacement=False, shift=shift), 40, 200, overwritten=overwritten
    )
    assert all(len(set(row)) == 40 for row in draws)
    assert all({5, 77, 299} <= set(row[:10]) for row in draws)


@pytest.mark.parametrize("shift", [0.0, 2.0])
def test_batches_larger_than_the_number_of_weights(shift):
    # All entries with weight follow successive sampling. The others follow uniformly.
    weights = np.array([0.0, 3.0, 0.0, 0.0, 1.0, 0.0, 0.0, 5.0, 0.0, 0.0]) - shift
    buffer, draws = draw_and_restore(
        weights, Proportional(replacement=False), 5, 20_000, capacity=12, seed=52
    )
    assert all(len(set(row)) == 5 for row in draws)
    assert (np.sort(draws[:, :3]) == [1, 4, 7]).all()
    law = successive_law([3 / 9, 1 / 9, 5 / 9], 3)
    assert_law(count_tuples(np.searchsorted([1, 4, 7], draws[:, :3]), 3), law)
    weightless = [0, 2, 3, 5, 6, 8, 9]
    law = successive_law(np.full(7, 1 / 7), 2)
    assert_law(count_tuples(np.searchsorted(weightless, draws[:, 3:]), 7), law)
    assert buffer.counters["filled_uniformly"] == 2 * 20_001
    batch = buffer.sample(5)
    np.testing.assert_allclose(batch.probability[3:], 0.0, atol=0)


def test_full_batch_with_a_single_weight():
    weights = np.zeros(300)
    weights[123] = 1.0
    buffer, draws = draw_and_restore(weights, Proportional(replacement=False), 300, 20)
    assert (draws[:, 0] == 123).all()
    assert (np.sort(draws) == np.arange(300)).all()
    assert buffer.counters["filled_uniformly"] == 21 * 299


def test_strict_error_names_both_numbers():
    weights = np.zeros(50)
    weights[[3, 30, 44]] = 1.0
    buffer = filled(weights, Proportional(replacement=False, strict=True), seed=53)
    before = {name: array.tobytes() for name, array in buffer._store.weights.items()}
    with pytest.raises(ReplayError, match=r"batch of 4 needs .* but 3 of 50 have some"):
        buffer.sample(4)
    assert {name: array.tobytes() for name, array in buffer._store.weights.items()} == before
    assert buffer.counters["filled_uniformly"] == buffer.num_samples == 0
    assert sorted(buffer.sample(3).index) == [3, 30, 44]
    buffer.update_weights([0], [0.001])
    assert sorted(buffer.sample(4).index) == [0, 3, 30, 44]


@pytest.mark.parametrize("value", [0.0, -3.0])
@pytest.mark.parametrize("replacement", [True, False])
def test_draws_without_any_weight_are_uniform(replacement, value):
    buffer = filled(np.full(9, value), Proportional(replacement=replacement), seed=54, capacity=11)
    counts = count_tuples(draw(buffer, 2, 20_000), 9)
    law = np.full((9, 9), 1 / 81) if replacement else successive_law(np.full(9, 1 / 9), 2)
    assert_law(counts, law)
    assert buffer.counters["filled_uniformly"] == 2 * 20_000
    np.testing.assert_array_equal(buffer.sample(2).probability, 1 / 9)


# Weights at the limits of float64.


def test_weights_from_1e_300_to_1e290():
    # Neighbors differ by ten orders of magnitude, so the order of the draws is certain.
    weights = 10.0 ** np.arange(-300, 291, 10)
    order = np.random.default_rng(61).permutation(len(weights))
    _, draws = draw_and_restore(
        weights[order], Proportional(replacement=False), len(weights), 50, overwritten=100
    )
    np.testing.assert_array_equal(order[draws], np.tile(np.arange(59, -1, -1), (50, 1)))


def test_tiny_weights_beside_vast_ones_follow_their_law():
    # Two entries hold the whole sum. The other five are below its last bit.
    light = np.array([1.0, 2.0, 3.0, 4.0, 2.0]) * 1e-300
    weights = np.concatenate([light[:3], [1e280, 3e280], light[3:]])
    _, draws = draw_and_restore(weights, Proportional(replacement=False), 4, 20_000, seed=62)
    assert (np.sort(draws[:, :2]) == [3, 4]).all()
    assert_law(np.bincount(draws[:, 0] - 3), [1 / 4, 3 / 4])
    tiny = np.searchsorted([0, 1, 2, 5, 6], draws[:, 2:])
    assert_law(count_tuples(tiny, 5), successive_law(light / light.sum(), 2))


def test_geometric_weights():
    weights = 2.0 ** -np.arange(256)
    order = np.random.default_rng(63).permutation(256)
    _, draws = draw_and_restore(weights[order], Proportional(replacement=False), 256, 3000)
    draws = order[draws]  # by weight: 0 is the heaviest
    assert (np.sort(draws) == np.arange(256)).all()
    # The last weights are far below the first one's last bit.
    counts = np.bincount(np.minimum(draws[:, 0], 12), minlength=13)
    assert_law(counts, [*2.0 ** -np.arange(1, 13), 2.0**-12])
    law = successive_law(normalized(weights[:12]), 2)
    pairs = draws[(draws[:, :2] < 12).all(1), :2]
    assert_law(count_tuples(pairs, 12), law)
    # Entry i + 1 precedes entry i with odds 1 : 2, everywhere along the scale.
    places = np.argsort(draws)
    for first in range(0, 255, 17):
        swapped = (places[:, first + 1] < places[:, first]).sum()
        assert_law([swapped, 3000 - swapped], [1 / 3, 2 / 3])


def test_vast_negative_weights():
    # All other weights exceed the least by 1e290, to the last bit.
    weights = np.array([3.0, -1e290, 5.0, 1e200, -7.0])
    buffer, draws = draw_and_restore(weights, Proportional(replacement=False), 2, 5000, seed=64)
    assert not (draws == 1).any()
    law = successive_law([1 / 4, 0, 1 / 4, 1 / 4, 1 / 4], 2)
    assert_law(count_tuples(draws, 5), law)
    assert 1 in buffer.sample(5).index


# Uniform.


@pytest.mark.parametrize("overwritten", [0, 8])
@pytest.mark.parametrize(("size", "batch_size"), [(9, 2), (9, 4), (9, 5), (9, 8), (9, 9), (30, 3)])
@pytest.mark.parametrize("replacement", [True, False])
def test_uniform(size, batch_size, replacement, overwritten):
    buffer = filled(np.zeros(size), Uniform(replacement=replacement), overwritten=overwritten)
    draws = draw(buffer, batch_size, 15_000)
    single = np.full(size, 1 / size)
    law = np.outer(single, single) if replacement else successive_law(single, 2)
    for places in {(0, 1), (0, batch_size - 1), (batch_size - 2, batch_size - 1)}:
        assert_law(count_tuples(draws[:, places], size), law)
    for place in range(batch_size):
        assert_law(np.bincount(draws[:, place], minlength=size), single)
    if not replacement:
        assert all(len(set(row)) == batch_size for row in draws[:2000])
    with pytest.raises(AttributeError):
        buffer.sample(1).weight  # noqa: B018


@pytest.mark.parametrize("share", [0.02, 0.5, 0.51, 0.9, 1.0])
def test_large_uniform_batches_without_replacement(share):
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
    draws = draw(buffer, 50, 2000)
    weights = (priorities + epsilon) ** alpha
    probability = normalized(weights)
    if not stratified:
        assert_law(np.bincount(draws.ravel(), minlength=70), probability)
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
            draws = draw(buffer, batch_size, 1)[0]
            number = np.arange(batch_size)
            assert (ends[place[draws]] > number / batch_size - 1e-12).all()
            assert (begins[place[draws]] < (number + 1) / batch_size + 1e-12).all()
            counts += np.bincount(draws, minlength=500)
    assert_law(counts[slots], ends - begins)  # more evenly than by chance


# Ranks.


def harmonic(size, alpha):
    return math.fsum(float(rank) ** -alpha for rank in range(1, size + 1))


def assert_rank_law(ranks, size, alpha):
    """Test with χ² by rank up to 20, then by groups of ranks with edges about 1024."""
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
    draws = np.concatenate([batch.index for batch in batches])
    if size > 1:
        assert_rank_law(rank[draws], size, alpha)
    probability = np.concatenate([batch.probability for batch in batches[:20]])
    expected = rank[draws[: len(probability)]] ** -float(alpha) / harmonic(size, alpha)
    np.testing.assert_allclose(probability, expected, rtol=1e-10)
    np.testing.assert_array_equal(batches[0].weight, priorities[batches[0].index])


@pytest.mark.parametrize("alpha", [0.5, 1 - 1e-12, 1 + 1e-8, 1.5, 30.0])
def test_rank_probabilities_match_the_power_law(alpha):
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


def test_equal_priorities_are_ranked_by_slot():
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
        for draws in draw(buffer, batch_size, 50):
            number = np.arange(batch_size)
            assert (ends[rank[draws]] > number / batch_size - 1e-10).all()
            assert (begins[rank[draws]] < (number + 1) / batch_size + 1e-10).all()


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
        chance = probability[batch.index]
        raw = (200 * chance) ** -(0.3 if beta is None else beta)
        least = (probability if normalize == "buffer" else chance).min()
        greatest = (200 * least) ** -(0.3 if beta is None else beta)
        assert batch.importance.dtype == np.float32
        np.testing.assert_allclose(batch.importance, raw / greatest, rtol=1e-6)
        assert batch.importance.max() <= 1
        if normalize == "batch":
            assert batch.importance.max() == 1
    np.testing.assert_array_equal(batch.importance.shape, (32,))


def test_importance_of_a_weight_far_below_the_others():
    # The least probability underflows, and importance weights still refer to it.
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
