"""Storage of a buffer on the host: all of its arrays, and the handle that says where they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hotloop.replay.native import handle as native
from hotloop.replay.native.calls import rebuild_weights
from hotloop.replay.native.ranks import BLOCK, max_blocks, rank_table
from hotloop.replay.native.tree import level_sizes
from hotloop.replay.storage.frames import FramePool
from hotloop.replay.storage.layout import Layout
from hotloop.replay.storage.memory import Memory, aligned
from hotloop.system.memory import need_memory
from hotloop.types import Array

WEIGHT_FROM = {
    "episode_return": native.WEIGHT_EPISODE_RETURN,
    "return_so_far": native.WEIGHT_RETURN_SO_FAR,
    "return_to_go": native.WEIGHT_RETURN_TO_GO,
}


class Store:
    """The arrays of a buffer, which only jitted code writes to.

    Args:
        layout: of its rows.
        settings: as they were checked.
        in_handle: what the handle holds of how batches are drawn.
        memory: where rows and frames lie.

    Attributes:
        handle: what the compiled code knows, by name; `at`: its address;
            `handles`: an array of this one.
        rows: the transitions. `heads`: those that wait, and observations that follow the last ones.
        finals: observations that no transition starts with, of which `finals_free` are free.
        per_env: by the name in the handle, what is known of each environment.
        pools: frames of the fields that lie apart, as compiled code knows them: `aparts`.
        weights: the weights, and what lies over them.
        numbers, new_weights: work space for what `update_weights` and `get` are given.

    Raises:
        ConfigError: so many environments, or such long windows, don't fit into memory.
        MemoryError: so many transitions can't be reserved.
        OutputError: there is no room for the files.
    """

    def __init__(
        self,
        layout: Layout,
        settings: Mapping[str, Any],
        in_handle: Mapping[str, float],
        memory: Memory,
    ) -> None:
        self.layout, self.settings = layout, settings
        self._memory = memory
        capacity, num_envs, n_step = (settings[name] for name in ("capacity", "num_envs", "n_step"))
        # Of an environment some 40 bytes and its window's transitions, each with two numbers more.
        need_memory(
            num_envs * (40 + n_step * (layout.row_bytes + 12)),
            f"the last {n_step:,} steps of {num_envs:,} environments",
            "lower `n_step` or `num_envs`",
        )
        self.handles = aligned(1, native.HANDLE, fill=0)
        self.handle: Any = self.handles[0]
        self.at: int = self.handles.ctypes.data
        self.handle["steps"] = 1
        for name, value in in_handle.items():
            self.handle[name] = value
        if settings["weight_from"] is not None:
            self.handle["weights"] = WEIGHT_FROM[settings["weight_from"]]
        running = settings["running_weight"]
        self.handle["running_is_mean"] = running == "mean"
        self.handle["running"] = 0.0 if running == "mean" else running

        self.rows = self._memory.bulk(capacity * layout.row_bytes)
        self.heads = np.zeros(num_envs * n_step * layout.row_bytes, np.uint8)
        self.per_env = {
            "env_steps": np.zeros(num_envs, np.int64),
            "env_waiting": np.zeros(num_envs, np.int64),
            "env_pending": np.zeros(num_envs, np.uint8),
            "env_return": np.zeros(num_envs, np.float64),
            "env_first": np.full(num_envs, -1, np.int64),
            "env_last": np.full(num_envs, -1, np.int64),
            "open": np.full(num_envs * n_step, -1, np.int32),
            "head_weights": np.full(num_envs * n_step, np.nan),
        }
        has_finals = layout.link >= 0
        self.finals = self._memory.bulk(0)
        self.finals_free = np.zeros(0, np.int32)
        self.more_finals((max(64, capacity >> 8) + n_step + 1) if has_finals else 0)
        self.aparts = np.zeros(len(layout.aparts), native.APART)
        self.pools = [
            FramePool(apart, capacity, num_envs * n_step, self._memory, record)
            for apart, record in zip(layout.aparts, self.aparts, strict=True)
        ]
        for name in ("capacity", "num_envs", "n_step", "gamma"):
            self.handle[name] = settings[name]
        for name in ("row_bytes", "stage_bytes", "plain_bytes", "obs_bytes", "stage_next"):
            self.handle[name] = getattr(layout, name)
        for name in ("linked", "link", "discount", "raw_reward", "previous", "following"):
            self.handle[name] = getattr(layout, name)
        for name in ("reward", "terminated", "truncated"):
            self.handle[name] = layout.offset(name)
        if layout.raw_reward < 0:
            self.handle["raw_reward"] = self.handle["reward"]
        self.handle["num_aparts"] = len(layout.aparts)
        arrays = {"rows": self.rows, "heads": self.heads, "aparts": self.aparts, **self.per_env}
        for name, array in arrays.items():
            self.handle[name] = array.ctypes.data
        self.weights = self._make_weights()
        rebuild_weights(self.at)

        self._scratch_size = 0
        self.make_scratch(1024)

    def _make_weights(self) -> dict[str, Array]:
        """The weights, and the tree or the ranks over them."""
        if self.handle["kind"] == native.KIND_UNIFORM:
            return {}
        handle, capacity = self.handle, self.settings["capacity"]
        if self.handle["kind"] == native.KIND_TREE:
            sizes = level_sizes(capacity)
            handle["levels"] = len(sizes) - 1
            num_leaves, num_nodes = sizes[0], sum(sizes[1:])
            # One piece of memory, so that large pages hold all of it.
            trees = aligned(num_leaves + 3 * num_nodes, np.float64, fill=0)
            starts = num_leaves + np.cumsum([0, *sizes[1:-1]])
            for tree, name in enumerate(("sums", "mins", "maxs")):
                places = trees.ctypes.data + 8 * (starts + tree * num_nodes)
                handle[name][1 : len(sizes)] = places
            handle["sums"][0] = handle["leaves"] = trees.ctypes.data
            trees[num_leaves + num_nodes :][:num_nodes] = np.inf
            trees[num_leaves + 2 * num_nodes :] = -np.inf
            return {"leaves": trees}
        blocks = max_blocks(capacity)
        made = {
            "leaves": aligned(capacity, np.float64, fill=0),
            "block_keys": aligned(blocks * BLOCK, np.float64),
            "block_slots": aligned(blocks * BLOCK, np.int32),
            "block_counts": np.zeros(blocks, np.int32),
            "block_order": np.zeros(blocks, np.int32),
            "block_before": np.zeros(blocks, np.int64),
            "free_blocks": np.zeros(blocks, np.int32),
            "rank_table": rank_table(self.handle["rank_alpha"]),
        }
        for name, array in made.items():
            handle[name] = array.ctypes.data
        handle["max_blocks"] = blocks
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
        self._scratch = aligned(9 * size, np.int64, fill=0)
        self._scratch_size = self.handle["scratch_size"] = size
        pieces = ("targets", "candidates", "chosen", "saved", "numbers", "table")
        for number, name in enumerate(pieces):
            self.handle[name] = self._scratch[number * size :].ctypes.data
        self.handle["proposals"] = self.handle["targets"]
        self.handle["prefixes"] = self.handle["numbers"]
        self.new_weights = self._scratch[3 * size : 4 * size].view(np.float64)
        self.numbers = self._scratch[4 * size : 5 * size]

    def grow(self) -> None:
        """Have room for at least one more transition, whatever it shares."""
        tight = self.handle["finals_num_free"] <= self.settings["n_step"]
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
        num_free = int(self.handle["finals_num_free"])
        free[:num_free] = self.finals_free[:num_free]
        free[num_free : num_free + count] = np.arange(there + count - 1, there - 1, -1)
        self.finals_free = free
        self.handle["finals"] = self.finals.ctypes.data
        self.handle["finals_free"] = free.ctypes.data
        self.handle["finals_num_free"] = num_free + count
