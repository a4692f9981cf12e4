"""Sums, least and greatest weights, and ranks are exact at any moment."""

from __future__ import annotations

import bisect
import ctypes
import itertools
import math

import numpy as np
import pytest
from numba import njit

from hotloop.replay import Prioritized, Proportional, RankBased, ReplayBuffer
from hotloop.replay.native.entry_points import rebuild_weights
from hotloop.replay.native.handle import handle_at
from hotloop.replay.native.pointers import f64_at, i64_at
from hotloop.replay.native.ranks import BLOCK, greatest_rank, insert_rank, max_blocks, remove_rank
from hotloop.replay.native.tree import descend, level_sizes

FIELDS = {"x": ((), np.int64)}
SIZES = [1, 2, 7, 8, 9, 63, 64, 65, 512, 513, 4097]


def make_buffer(capacity, sampler=None, seed=0):
    return ReplayBuffer(capacity, FIELDS, sampler=sampler or Proportional(), seed=seed)


def words_at(address, count):
    return np.ctypeslib.as_array((ctypes.c_double * count).from_address(int(address)))


def levels(buffer, tree):
    """Return a tree's words by level, without padding."""
    handle = buffer._store.handle
    words, size = [], len(buffer)
    for level in range(handle["levels"] + 1):
        if level > 0:
            size = -(-size // 8)
        empty = level == 0 and tree != "sums"
        words.append(None if empty else words_at(handle[tree][level], size))
    return words


def root_values(buffer):
    """Return the sum, the least and the greatest weight."""
    handle = buffer._store.handle
    top = handle["levels"]
    trees = ("sums", "mins", "maxs")
    return [float(words_at(handle[tree][top], 1)[0]) for tree in trees]


def in_eights(values, fill):
    size = -(-len(values) // 8) * 8
    return np.append(values, np.full(size - len(values), fill)).reshape(-1, 8)


def add_eights(values):
    """Return sums of eight neighbors from left to right, as the tree adds them."""
    total = np.zeros(-(-len(values) // 8))
    for child in in_eights(values, 0.0).T:
        total += child
    return total


def assert_consistent(buffer):
    """Check every word against its children, to the last bit."""
    sums, mins, maxs = (levels(buffer, tree) for tree in ("sums", "mins", "maxs"))
    base = buffer._store.handle["base"]
    below, least, greatest = sums[0] + base, sums[0], sums[0]
    for level in range(1, len(sums)):
        below = add_eights(below)
        least = in_eights(least, np.inf).min(1)
        greatest = in_eights(greatest, -np.inf).max(1)
        assert sums[level].tobytes() == below.tobytes()
        np.testing.assert_array_equal(mins[level], least)
        np.testing.assert_array_equal(maxs[level], greatest)
    assert len(below) == 1


def tree_bytes(buffer):
    """Return the content of the trees as bytes."""
    trees = ("sums", "mins", "maxs")
    return [
        None if level is None else level.tobytes()
        for tree in trees
        for level in levels(buffer, tree)
    ]


@pytest.mark.parametrize("capacity", SIZES)
def test_trees_are_consistent_after_every_change(capacity):
    rng = np.random.default_rng(1)
    buffer = make_buffer(capacity, Proportional(replacement=False))
    while buffer.num_added < 3 * capacity + 20:
        count = int(rng.integers(1, max(2, min(capacity, 300))))
        buffer.extend(x=np.arange(count), weight=rng.normal(0, 10.0 ** rng.integers(-3, 9), count))
        assert_consistent(buffer)
        numbers = rng.integers(0, buffer.num_added, rng.integers(1, 40))
        buffer.update_weights(numbers, rng.lognormal(0, 3, len(numbers)))
        assert_consistent(buffer)
        buffer.sample(int(rng.integers(1, min(len(buffer), 50) + 1)))
        assert_consistent(buffer)
    assert buffer.counters["stale_updates"] > 0


def test_levels():
    assert level_sizes(1) == [8, 8]
    assert level_sizes(8) == [8, 8]
    assert level_sizes(9) == [16, 8, 8]
    assert level_sizes(64) == [64, 8, 8]
    assert level_sizes(65) == [72, 16, 8, 8]
    assert level_sizes(1_000_000)[-1] == 8


@pytest.mark.parametrize("capacity", [1, 7, 65, 513])
def test_least_and_greatest_after_100_000_overwrites(capacity):
    rng = np.random.default_rng(2)
    num_added = 100_000 if capacity == 513 else 20_000
    weights = rng.standard_t(2, num_added).round(3)  # far outliers, and many alike
    buffer = make_buffer(capacity)
    before = np.concatenate([np.full(capacity - 1, np.inf), weights])
    least = np.lib.stride_tricks.sliding_window_view(before, capacity).min(1)
    before[: capacity - 1] = -np.inf
    greatest = np.lib.stride_tricks.sliding_window_view(before, capacity).max(1)
    top = buffer._store.handle["levels"]
    low = words_at(buffer._store.handle["mins"][top], 1)
    high = words_at(buffer._store.handle["maxs"][top], 1)
    for number in range(num_added):
        buffer.add(x=number, weight=weights[number])
        if low[0] != least[number] or high[0] != greatest[number]:
            pytest.fail(f"after {number}: {low[0]}, {high[0]}")
    assert_consistent(buffer)


@pytest.mark.parametrize("sampled", [True, False])
def test_overwritten_least_weight_leaves_no_trace(sampled):
    # Returns lie in 200 … 6000, with one crash.
    rng = np.random.default_rng(3)
    returns = rng.uniform(200, 6000, 5000)
    returns[700] = -600.0
    buffer = make_buffer(1000, seed=4)
    for number, weight in enumerate(returns[:2500]):
        buffer.add(x=number, weight=weight)
        if number in (699, 700, 701, 1500, 1698, 1699, 1700, 1701, 2499) or (
            sampled and number > 680 and number % 7 == 0
        ):
            live = returns[max(0, number - 999) : number + 1]
            shift = 600.0 if 700 <= number < 1700 else 0.0
            batch = buffer.sample(300)
            assert not shift or 700 not in batch.index
            expected = (returns[batch.index] + shift) / math.fsum(live + shift)
            np.testing.assert_allclose(batch.probability, expected, rtol=1e-13)


def test_updates_move_least_and_greatest():
    buffer = make_buffer(100)
    buffer.extend(x=np.arange(100), weight=np.arange(1.0, 101.0))
    buffer.update_weights([50], [-7.0])
    assert root_values(buffer)[1:] == [-7.0, 100.0]
    buffer.update_weights([50, 99], [3.0, 0.5])
    assert root_values(buffer)[1:] == [0.5, 99.0]
    buffer.update_weights([99, 99, 99], [1e9, -1e9, 4.0])  # the last one counts
    assert root_values(buffer) == [math.fsum([*range(1, 51), 3, *range(52, 100), 4]), 1.0, 99.0]


def test_10_000_000_updates_do_not_drift():
    rng = np.random.default_rng(5)
    buffer = make_buffer(100_000)
    buffer.extend(x=np.arange(100_000), weight=rng.random(100_000))
    weights = np.zeros(0)
    for count in range(1000):
        if count % 50 == 0:  # from far above to far below
            weights = rng.lognormal(0, 4, 20_000) * 10.0 ** rng.uniform(-3, 6)
        numbers = rng.integers(0, 100_000, 10_000)
        buffer.update_weights(numbers, weights[count % 50 * 200 :][:10_000])
    assert_consistent(buffer)
    leaves = levels(buffer, "sums")[0]
    total, least, greatest = root_values(buffer)
    assert total == pytest.approx(math.fsum(leaves), rel=1e-12)
    assert (least, greatest) == (leaves.min(), leaves.max())
    before = tree_bytes(buffer)
    rebuild_weights(buffer._store.address)
    assert tree_bytes(buffer) == before


@pytest.mark.parametrize("vast", [1e18, 1e290])
def test_vast_weight_leaves_no_trace(vast):
    rng = np.random.default_rng(6)
    weights = rng.random(1600)
    expected, buffer = make_buffer(513), make_buffer(513)
    expected.extend(x=np.arange(1600), weight=weights)
    weights[[3, 800, 1200]] = vast
    buffer.extend(x=np.arange(1100), weight=weights[:1100])
    buffer.sample(5)
    buffer.extend(x=np.arange(500), weight=weights[1100:])
    assert root_values(buffer)[2] == vast
    buffer.sample(5)
    buffer.update_weights([1200], levels(expected, "sums")[0][[1200 % 513]])
    assert tree_bytes(buffer) == tree_bytes(expected)
    # The weight is written and replaced within one call.
    number = buffer.num_added - 1
    buffer.update_weights([number, number], [vast, weights[-1]])
    assert tree_bytes(buffer) == tree_bytes(expected)


def test_vast_negative_weight_leaves_no_trace():
    rng = np.random.default_rng(7)
    weights = rng.random(1600)
    buffer = make_buffer(513)
    buffer.extend(x=np.arange(600), weight=weights[:600])
    buffer.update_weights([599], [-1e18])
    batch = buffer.sample(50)
    np.testing.assert_allclose(batch.probability, 1 / 512, rtol=1e-12)
    assert 599 not in batch.index
    buffer.extend(x=np.arange(1000), weight=weights[600:])
    batch = buffer.sample(50)
    expected = weights[batch.index] / math.fsum(weights[-513:])
    np.testing.assert_allclose(batch.probability, expected, rtol=1e-13)
    assert_consistent(buffer)


@pytest.mark.parametrize("sampler", [Prioritized(alpha=0.6), RankBased()])
def test_new_entries_get_the_greatest_weight(sampler):
    rng = np.random.default_rng(8)
    buffer = make_buffer(100, sampler)
    buffer.add(x=0)
    assert buffer.get([0]).weight == 1.0
    live = [1.0]
    for number in range(1, 2000):
        if rng.random() < 0.3:
            chosen = int(rng.integers(len(live)))
            buffer.update_weights([number - len(live) + chosen], [priority := rng.lognormal(0, 2)])
            exact = isinstance(sampler, RankBased)
            live[chosen] = priority if exact else (priority + 1e-6) ** 0.6
        buffer.add(x=number)
        weight = buffer.get([number]).weight[0]
        assert weight == pytest.approx(max(live), rel=1e-15)
        live = [*live[-99:], weight]


# Descents.


@njit(error_model="numpy")
def walk(handle, shift, targets, slots, count, prefixes):
    descend(handle_at(handle), shift, f64_at(targets), i64_at(slots), count, f64_at(prefixes))


def slots_at(buffer, shift, targets):
    targets = np.array(targets, np.float64)
    slots, prefixes = np.empty(len(targets), np.int64), np.zeros(64 + 8)
    addresses = [array.ctypes.data for array in (targets, slots, prefixes)]
    store = buffer._store
    walk(store.address, float(shift), addresses[0], addresses[1], len(targets), addresses[2])
    return slots


@pytest.mark.parametrize("base", [0.0, 12.0])
@pytest.mark.parametrize("shift", [0, 3, 1000, -2])
@pytest.mark.parametrize("capacity", SIZES)
def test_descents_match_a_search(capacity, shift, base):
    # With integers all sums are exact, and so are the slots of targets.
    rng = np.random.default_rng(9)
    for size in {1, capacity // 3 + 1, capacity - capacity // 8, capacity}:
        weights = rng.integers(max(-shift, 0), 50, size) * (rng.random(size) < 0.7)
        weights = np.maximum(weights, -shift)
        weights[rng.integers(size)] = 60
        buffer = make_buffer(capacity)
        buffer.extend(x=np.arange(size), weight=weights.astype(float))
        buffer._store.handle["base"] = base
        rebuild_weights(buffer._store.address)
        assert_consistent(buffer)
        ends = np.cumsum(weights + shift)
        targets = rng.integers(0, ends[-1], 500) + 0.5 * rng.integers(0, 2, 500)
        targets = np.concatenate([targets, [0, ends[-1] - 0.5], ends[:-1][:50]])
        targets = targets[targets < ends[-1]]
        expected = np.searchsorted(ends, targets, side="right")
        np.testing.assert_array_equal(slots_at(buffer, shift, targets), expected)


@pytest.mark.parametrize("capacity", [9, 513, 70_000])
def test_descents_among_real_numbers(capacity):
    rng = np.random.default_rng(10)
    weights = rng.lognormal(0, 3, capacity)
    for shift in (0.0, 0.1, 33.3):
        buffer = make_buffer(capacity)
        buffer.extend(x=np.arange(capacity), weight=weights - shift)
        ends = np.cumsum(np.append(0.0, weights - shift + shift))
        targets = rng.random(2000) * ends[-1]
        slots = slots_at(buffer, shift, targets)
        assert (targets >= ends[slots] - 1e-11 * ends[-1]).all()
        assert (targets <= ends[slots + 1] + 1e-11 * ends[-1]).all()
        beyond = slots_at(buffer, shift, [ends[-1] * (1 + 1e-9), ends[-1] * 2, 1e300])
        assert (beyond < capacity).all()


# Ranks.


@njit(error_model="numpy")
def insert(handle, slot, key):
    insert_rank(handle_at(handle), slot, key)


@njit(error_model="numpy")
def remove(handle, slot, key):
    remove_rank(handle_at(handle), slot, key)


@njit(error_model="numpy")
def greatest(handle):
    return greatest_rank(handle_at(handle))


def rank_blocks(buffer):
    """Return the blocks in order, each a list of (−priority, slot)."""
    handle, arrays = buffer._store.handle, buffer._store.weights
    blocks = []
    for block in arrays["block_order"][: handle["num_blocks"]]:
        count = arrays["block_counts"][block]
        keys = arrays["block_keys"][block * BLOCK :][:count]
        slots = arrays["block_slots"][block * BLOCK :][:count]
        blocks.append(list(zip((-keys).tolist(), slots.tolist(), strict=True)))
    return blocks


def assert_ranked(buffer, expected):
    blocks = rank_blocks(buffer)
    assert [entry for block in blocks for entry in block] == expected
    handle, arrays = buffer._store.handle, buffer._store.weights
    used, free = handle["num_blocks"], handle["num_free_blocks"]
    assert used + free == handle["max_blocks"] == max_blocks(buffer.capacity)
    block_ids = [*arrays["block_order"][:used], *arrays["free_blocks"][:free]]
    assert sorted(block_ids) == list(range(used + free))
    counts = [len(block) for block in blocks]
    assert all(0 < count <= BLOCK for count in counts)
    # Neighbors of this size bound the number of blocks.
    assert all(count + next_count > BLOCK // 2 for count, next_count in itertools.pairwise(counts))
    assert greatest(buffer._store.address) == (-expected[0][0] if expected else -math.inf)


@pytest.mark.parametrize("num_keys", [1, 5, 300, 10**9])
def test_ranks_after_100_000_changes(num_keys):
    rng = np.random.default_rng(11)
    capacity = 6000
    buffer = make_buffer(capacity, RankBased())
    address, entries, keys = buffer._store.address, [], {}
    splits = joins = 0
    is_growing = True
    for number in range(100_000 if num_keys == 5 else 40_000):
        if number % 8000 == 0:
            is_growing = not is_growing if number else True
        blocks = buffer._store.handle["num_blocks"]
        slot = int(rng.integers(capacity))
        if slot in keys and (not is_growing or rng.random() < 0.3):
            key = keys.pop(slot)
            del entries[bisect.bisect_left(entries, (-key, slot))]
            remove(address, slot, key)
        if slot not in keys and (is_growing or rng.random() < 0.1):
            # Some keys increase with time, at the end of the order.
            key = float(rng.integers(num_keys)) if rng.random() < 0.8 else number * 1e-3
            keys[slot] = key
            bisect.insort(entries, (-key, slot))
            insert(address, slot, key)
        change = buffer._store.handle["num_blocks"] - blocks
        splits += change > 0
        joins += change < 0
        if number % 997 == 0:
            assert_ranked(buffer, entries)
    assert splits > 10
    assert joins > 10
    for slot, key in list(keys.items()):
        remove(address, slot, key)
    assert_ranked(buffer, [])


def test_blocks_never_run_out():
    # The worst case: blocks of 256 entries alternate with blocks of one, repeatedly.
    capacity = 64 * BLOCK
    buffer = make_buffer(capacity, RankBased())
    address, free = buffer._store.address, list(range(capacity))
    entries = []
    top, most = 0.0, 0
    for _ in range(12):
        new_entries = []
        while free:
            top += 1.0
            slot = free.pop()
            insert(address, slot, -top)
            new_entries.append((top, slot))
        entries += new_entries
        most = max(most, int(buffer._store.handle["num_blocks"]))
        assert_ranked(buffer, entries)
        for number, block in enumerate(rank_blocks(buffer)):
            for entry in block[1:] if number % 2 else []:
                remove(address, entry[1], -entry[0])
                free.append(entry[1])
        for block in rank_blocks(buffer):
            for entry in block[BLOCK // 2 :]:
                remove(address, entry[1], -entry[0])
                free.append(entry[1])
        entries = [entry for block in rank_blocks(buffer) for entry in block]
        most = max(most, int(buffer._store.handle["num_blocks"]))
        assert_ranked(buffer, entries)
    assert most <= max_blocks(capacity)
    assert most > 64  # more than full blocks would be


def test_ranks_of_a_buffer_over_time():
    rng = np.random.default_rng(12)
    buffer = make_buffer(3000, RankBased())
    live = {}
    for number in range(200):
        count = int(rng.integers(1, 120))
        priorities = rng.integers(0, 20, count) / 4
        first = buffer.num_added
        buffer.extend(x=np.arange(count), weight=priorities)
        live |= dict(zip(range(first, first + count), priorities.tolist(), strict=True))
        numbers = rng.integers(0, buffer.num_added, 200)
        priorities = rng.integers(0, 20, 200) / 4 if number % 10 else np.full(200, number * 1.0)
        buffer.update_weights(numbers, priorities)
        live |= dict(zip(numbers.tolist(), priorities.tolist(), strict=True))
        oldest = buffer.num_added - len(buffer)
        live = {entry: priority for entry, priority in live.items() if entry >= oldest}
        expected = sorted((-priority, entry % 3000) for entry, priority in live.items())
        assert_ranked(buffer, expected)
        # The probability determines the rank, and the rank determines the entry.
        batch = buffer.sample(20)
        total = math.fsum(float(rank) ** -0.7 for rank in range(1, len(live) + 1))
        rank = np.rint((batch.probability * total) ** (-1 / 0.7)).astype(int)
        assert [expected[r - 1][1] for r in rank] == (batch.index % 3000).tolist()
    before = [entry for block in rank_blocks(buffer) for entry in block]
    buffer._store.handle["num_free_blocks"] = buffer._store.handle["max_blocks"]
    rebuild_weights(buffer._store.address)
    assert_ranked(buffer, before)
