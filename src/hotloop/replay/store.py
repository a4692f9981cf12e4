"""All that a buffer consists of in memory, and the handle that says where it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hotloop.memory import need_memory
from hotloop.replay import native, rows
from hotloop.replay.calls import rebuild_weights
from hotloop.replay.drawing import NUMBERS, SAVED, SCRATCH_WORDS
from hotloop.replay.layout import Layout
from hotloop.replay.memory import Memory, aligned
from hotloop.replay.options import WEIGHT_FROM
from hotloop.replay.pool import FramePool
from hotloop.replay.ranks import BLOCK, max_blocks, rank_table
from hotloop.replay.samplers import Sampler
from hotloop.replay.tree import level_sizes
from hotloop.types import Array


class Store:
    """The arrays of a buffer, which only jitted code writes to.

    Args:
        layout: of its rows.
        settings: as they were checked.
        sampler: how batches are drawn.
        memory: where rows and frames lie.

    Attributes:
        handle: int64, what the jitted code knows (see native.py); `reals`: the same as float64;
            `at`: its address.
        rows: the transitions. `heads`: those that wait, and observations that follow the last ones.
        finals: observations that no transition starts with, of which `finals_free` are free.
        per_env: by the handle's word, what is known of each environment.
        pools: frames of the fields that lie apart, and `apart_words` what the jitted code knows.
        weights: the weights, and what lies over them.
        numbers, new_weights: work space for what `update_weights` and `get` are given.

    Raises:
        ConfigError: so many environments, or such long windows, don't fit into memory.
        MemoryError: so many transitions can't be reserved.
        OutputError: there is no room for the files.
    """

    def __init__(
        self, layout: Layout, settings: Mapping[str, Any], sampler: Sampler, memory: Memory
    ) -> None:
        self.layout, self.settings, self.sampler = layout, settings, sampler
        self._memory = memory
        capacity, num_envs, n_step = (settings[name] for name in ("capacity", "num_envs", "n_step"))
        # Of an environment some 40 bytes and its window's transitions, each with two numbers more.
        need_memory(
            num_envs * (40 + n_step * (layout.row_bytes + 12)),
            f"the last {n_step:,} steps of {num_envs:,} environments",
            "lower `n_step` or `num_envs`",
        )
        self.handle = aligned(native.HANDLE_WORDS, np.int64, fill=0)
        self.at: int = self.handle.ctypes.data
        self.reals = self.handle.view(np.float64)
        for word, value in self.sampler.words().items():
            if word in (native.SHIFT, native.ALPHA, native.EPSILON, native.RANK_ALPHA):
                self.reals[word] = value
            else:
                self.handle[word] = int(value)
        if settings["weight_from"] is not None:
            self.handle[native.WEIGHTS] = WEIGHT_FROM[settings["weight_from"]]
        running = settings["running_weight"]
        self.handle[native.RUNNING_IS_MEAN] = running == "mean"
        self.reals[native.RUNNING] = 0.0 if running == "mean" else running
        self.reals[native.GAMMA] = settings["gamma"]

        self.rows = self._memory.bulk(capacity * layout.row_bytes)
        self.heads = np.zeros(num_envs * n_step * layout.row_bytes, np.uint8)
        self.per_env = {
            native.ENV_STEPS: np.zeros(num_envs, np.int64),
            native.ENV_WAITING: np.zeros(num_envs, np.int64),
            native.ENV_PENDING: np.zeros(num_envs, np.uint8),
            native.ENV_RETURN: np.zeros(num_envs, np.float64),
            native.ENV_FIRST: np.full(num_envs, -1, np.int64),
            native.ENV_LAST: np.full(num_envs, -1, np.int64),
            native.OPEN: np.full(num_envs * n_step, -1, np.int32),
            native.HEAD_WEIGHTS: np.full(num_envs * n_step, np.nan),
        }
        has_finals = layout.link >= 0
        self.finals = self._memory.bulk(0)
        self.finals_free = np.zeros(0, np.int32)
        self.more_finals((max(64, capacity >> 8) + n_step + 1) if has_finals else 0)
        self.apart_words = np.zeros((len(layout.aparts), rows.APART_WORDS), np.int64)
        self.pools = [
            FramePool(apart, capacity, num_envs * n_step, self._memory, words)
            for apart, words in zip(layout.aparts, self.apart_words, strict=True)
        ]
        self.handle[native.CAPACITY] = capacity
        self.handle[native.NUM_ENVS] = num_envs
        self.handle[native.N_STEP] = n_step
        self.handle[native.ROWS] = self.rows.ctypes.data
        self.handle[native.ROW_BYTES] = layout.row_bytes
        self.handle[native.STAGE_BYTES] = layout.stage_bytes
        self.handle[native.PLAIN_BYTES] = layout.plain_bytes
        self.handle[native.LINKED] = layout.linked
        self.handle[native.OBS_BYTES] = layout.obs_bytes
        self.handle[native.LINK] = layout.link
        self.handle[native.NEXT] = layout.stage_next
        self.handle[native.REWARD] = layout.offset("reward")
        self.handle[native.TERMINATED] = layout.offset("terminated")
        self.handle[native.TRUNCATED] = layout.offset("truncated")
        self.handle[native.DISCOUNT] = layout.discount
        raw_reward = layout.raw_reward if layout.raw_reward >= 0 else layout.offset("reward")
        self.handle[native.RAW_REWARD] = raw_reward
        self.handle[native.PREVIOUS] = layout.previous
        self.handle[native.HEADS] = self.heads.ctypes.data
        self.handle[native.NUM_APART] = len(layout.aparts)
        self.handle[native.APART] = self.apart_words.ctypes.data
        for word, array in self.per_env.items():
            self.handle[word] = array.ctypes.data
        self.weights = self._make_weights()
        rebuild_weights(self.at)

        self._scratch_size = 0
        self.make_scratch(1024)

    def _make_weights(self) -> dict[str, Array]:
        """The weights, and the tree or the ranks over them."""
        if not self.sampler.weighted:
            return {}
        handle, capacity = self.handle, self.settings["capacity"]
        if self.handle[native.KIND] == native.KIND_TREE:
            sizes = level_sizes(capacity)
            handle[native.LEVELS] = len(sizes) - 1
            num_leaves, num_nodes = sizes[0], sum(sizes[1:])
            # One piece of memory, so that large pages hold all of it.
            trees = aligned(num_leaves + 3 * num_nodes, np.float64, fill=0)
            starts = num_leaves + np.cumsum([0, *sizes[1:-1]])
            for tree, word in enumerate((native.SUMS, native.MINS, native.MAXS)):
                places = trees.ctypes.data + 8 * (starts + tree * num_nodes)
                handle[word + 1 : word + len(sizes)] = places
            handle[native.SUMS] = trees.ctypes.data
            trees[num_leaves + num_nodes :][:num_nodes] = np.inf
            trees[num_leaves + 2 * num_nodes :] = -np.inf
            return {"sums": trees}
        blocks = max_blocks(capacity)
        made = {
            "sums": aligned(capacity, np.float64, fill=0),
            "keys": aligned(blocks * BLOCK, np.float64),
            "slots": aligned(blocks * BLOCK, np.int32),
            "counts": np.zeros(blocks, np.int32),
            "order": np.zeros(blocks, np.int32),
            "before": np.zeros(blocks, np.int64),
            "free": np.zeros(blocks, np.int32),
            "table": rank_table(self.reals[native.RANK_ALPHA]),
        }
        words = (
            native.SUMS,
            native.BLOCK_KEYS,
            native.BLOCK_SLOTS,
            native.BLOCK_COUNTS,
            native.BLOCK_ORDER,
            native.BLOCK_BEFORE,
            native.FREE_BLOCKS,
            native.RANK_TABLE,
        )
        for word, array in zip(words, made.values(), strict=True):
            handle[word] = array.ctypes.data
        handle[native.MAX_BLOCKS] = blocks
        return made

    def sizes(self) -> dict[str, int]:
        """Bytes by what they are for."""
        return {
            "rows": self.rows.nbytes,
            "finals": self.finals.nbytes + self.finals_free.nbytes,
            "apart": sum(pool.size_bytes() for pool in self.pools),
            "weights": sum(array.nbytes for array in self.weights.values()),
            "heads": self.heads.nbytes,
            "work": self._scratch.nbytes,
        }

    def make_scratch(self, count: int) -> None:
        """Have work space for batches of up to `count`."""
        if count <= self._scratch_size:
            return
        size = 1 << (count - 1).bit_length()
        self._scratch = aligned(SCRATCH_WORDS * size, np.int64, fill=0)
        self._scratch_size = size
        self.handle[native.SCRATCH] = self._scratch.ctypes.data
        self.handle[native.SCRATCH_SIZE] = size
        self.numbers = self._scratch[NUMBERS * size : (NUMBERS + 1) * size]
        self.new_weights = self._scratch[SAVED * size : (SAVED + 1) * size].view(np.float64)

    def grow(self) -> None:
        """Have room for at least one more transition, whatever it shares."""
        tight = self.handle[native.FINALS_NUM_FREE] <= self.settings["n_step"]
        if tight and self.layout.link >= 0:
            self.more_finals(max(64, len(self.finals_free) // 2) + self.settings["n_step"])
        for pool in self.pools:
            if pool.is_tight():
                pool.grow(2 * pool.apart.stack)

    def more_finals(self, count: int) -> None:
        """Have room for `count` more final observations."""
        old, size = self.finals, self.layout.obs_bytes
        there = len(self.finals_free)
        self.finals = self._memory.bulk((there + count) * size)
        self.finals[: old.nbytes] = old
        free = np.zeros(there + count, np.int32)
        num_free = int(self.handle[native.FINALS_NUM_FREE])
        free[:num_free] = self.finals_free[:num_free]
        free[num_free : num_free + count] = np.arange(there + count - 1, there - 1, -1)
        self.finals_free = free
        self.handle[native.FINALS] = self.finals.ctypes.data
        self.handle[native.FINALS_FREE] = free.ctypes.data
        self.handle[native.FINALS_NUM_FREE] = num_free + count
