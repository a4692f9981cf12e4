"""Storage of a buffer on the host: its arrays, and the handle with their addresses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hotloop.base.memory import require_memory
from hotloop.base.signals import delayed_interrupt
from hotloop.replay.native import handle as native
from hotloop.replay.native.entry_points import rebuild_weights
from hotloop.replay.native.ranks import BLOCK, max_blocks, rank_table
from hotloop.replay.native.tree import level_sizes
from hotloop.replay.storage.allocator import Allocator, aligned_array
from hotloop.replay.storage.frame_pool import FramePool
from hotloop.replay.storage.layout import RowLayout
from hotloop.types import Array

WEIGHT_FROM = {
    "episode_return": native.WEIGHT_EPISODE_RETURN,
    "return_so_far": native.WEIGHT_RETURN_SO_FAR,
    "return_to_go": native.WEIGHT_RETURN_TO_GO,
}


class HostStore:
    """The arrays of a buffer. Compiled code writes to them.

    Args:
        layout: layout of the rows.
        settings: checked settings of the buffer.
        sampler_settings: the sampler's settings, by field of the handle.
        allocator: allocator of rows and frames.

    Attributes:
        handle: the record for compiled code; `address`: its address; `handles`: an array with this
            one record.
        rows: the transitions. `heads`: transitions that wait, and observations after the last ones.
        finals: observations that no transition starts with. `finals_free`: numbers of free ones.
        per_env: state of each environment, by field of the handle.
        pools: frame pools of the fields outside the rows. `pool_records`: their records.
        weights: arrays of the weights and of the tree or ranks, by name.
        numbers, new_weights: work space for the arguments of `update_weights` and `get`.

    Raises:
        ConfigError: the windows of all environments don't fit into memory.
        MemoryError: the transitions don't fit into memory.
        OutputError: the disk has no room for the files.
    """

    def __init__(
        self,
        layout: RowLayout,
        settings: Mapping[str, Any],
        sampler_settings: Mapping[str, float],
        allocator: Allocator,
    ) -> None:
        self.layout, self.settings = layout, settings
        self._allocator = allocator
        capacity, num_envs, n_step = (settings[name] for name in ("capacity", "num_envs", "n_step"))
        # About 40 bytes per environment, and per step of its window a row with two numbers.
        require_memory(
            num_envs * (40 + n_step * (layout.row_bytes + 12)),
            f"the last {n_step:,} steps of {num_envs:,} environments",
            "lower `n_step` or `num_envs`",
        )
        # The handle, with settings.
        self.handles = aligned_array(1, native.HANDLE, fill=0)
        self.handle: Any = self.handles[0]
        self.address: int = self.handles.ctypes.data
        self.handle["steps"] = 1
        for name, value in sampler_settings.items():
            self.handle[name] = value
        if settings["weight_from"] is not None:
            self.handle["weight_rule"] = WEIGHT_FROM[settings["weight_from"]]
        running_weight = settings["running_weight"]
        self.handle["running_is_mean"] = running_weight == "mean"
        self.handle["running_weight"] = 0.0 if running_weight == "mean" else running_weight

        # Rows, heads, final observations and frames.
        self.rows = self._allocator.allocate(capacity * layout.row_bytes)
        self.heads = np.zeros(num_envs * n_step * layout.row_bytes, np.uint8)
        self.per_env = {
            "env_steps": np.zeros(num_envs, np.int64),
            "env_waiting": np.zeros(num_envs, np.int64),
            "env_pending": np.zeros(num_envs, np.uint8),
            "env_return": np.zeros(num_envs, np.float64),
            "env_first": np.full(num_envs, -1, np.int64),
            "env_last": np.full(num_envs, -1, np.int64),
            "linking_slots": np.full(num_envs * n_step, -1, np.int32),
            "head_weights": np.full(num_envs * n_step, np.nan),
        }
        has_finals = layout.link >= 0
        self.finals = self._allocator.allocate(0)
        self.finals_free = np.zeros(0, np.int32)
        self.add_finals((max(64, capacity >> 8) + n_step + 1) if has_finals else 0)
        self.pool_records = np.zeros(len(layout.frame_fields), native.POOL)
        self.pools = [
            FramePool(field, capacity, num_envs * n_step, self._allocator, record)
            for field, record in zip(layout.frame_fields, self.pool_records, strict=True)
        ]
        # Offsets and addresses.
        for name in ("capacity", "num_envs", "n_step", "gamma"):
            self.handle[name] = settings[name]
        for name in ("row_bytes", "stage_bytes", "plain_bytes", "obs_bytes", "stage_next"):
            self.handle[name] = getattr(layout, name)
        for name in ("shares_next_obs", "link", "discount", "raw_reward", "previous", "following"):
            self.handle[name] = getattr(layout, name)
        for name in ("reward", "terminated", "truncated"):
            self.handle[name] = layout.offset(name)
        if layout.raw_reward < 0:
            self.handle["raw_reward"] = self.handle["reward"]
        self.handle["num_pools"] = len(layout.frame_fields)
        arrays = {
            "rows": self.rows,
            "heads": self.heads,
            "pools": self.pool_records,
            **self.per_env,
        }
        for name, array in arrays.items():
            self.handle[name] = array.ctypes.data
        # Weights and work space.
        self.weights = self._make_weights()
        rebuild_weights(self.address)
        self._scratch_size = 0
        self.reserve_scratch(1024)

    def _make_weights(self) -> dict[str, Array]:
        """Return the weights, and the tree or the ranks over them."""
        if self.handle["kind"] == native.KIND_UNIFORM:
            return {}
        handle, capacity = self.handle, self.settings["capacity"]
        if self.handle["kind"] == native.KIND_TREE:
            sizes = level_sizes(capacity)
            handle["levels"] = len(sizes) - 1
            num_leaves, num_nodes = sizes[0], sum(sizes[1:])
            # Use one block of memory, so that huge pages cover all of it.
            trees = aligned_array(num_leaves + 3 * num_nodes, np.float64, fill=0)
            starts = num_leaves + np.cumsum([0, *sizes[1:-1]])
            for tree, name in enumerate(("sums", "mins", "maxs")):
                addresses = trees.ctypes.data + 8 * (starts + tree * num_nodes)
                handle[name][1 : len(sizes)] = addresses
            handle["sums"][0] = handle["leaves"] = trees.ctypes.data
            trees[num_leaves + num_nodes :][:num_nodes] = np.inf
            trees[num_leaves + 2 * num_nodes :] = -np.inf
            return {"leaves": trees}
        blocks = max_blocks(capacity)
        arrays = {
            "leaves": aligned_array(capacity, np.float64, fill=0),
            "block_keys": aligned_array(blocks * BLOCK, np.float64),
            "block_slots": aligned_array(blocks * BLOCK, np.int32),
            "block_counts": np.zeros(blocks, np.int32),
            "block_order": np.zeros(blocks, np.int32),
            "block_before": np.zeros(blocks, np.int64),
            "free_blocks": np.zeros(blocks, np.int32),
            "rank_table": rank_table(self.handle["rank_alpha"]),
        }
        for name, array in arrays.items():
            handle[name] = array.ctypes.data
        handle["max_blocks"] = blocks
        return arrays

    def sizes(self) -> dict[str, int]:
        """Return sizes in bytes by purpose."""
        return {
            "rows": self.rows.nbytes,
            "finals": self.finals.nbytes + self.finals_free.nbytes,
            "apart": sum(pool.size_bytes() for pool in self.pools),
            "weights": sum(array.nbytes for array in self.weights.values()),
            "heads": self.heads.nbytes,
            "work": self._scratch.nbytes,
        }

    def reserve_scratch(self, count: int) -> None:
        """Provide work space for batches of up to `count` entries."""
        if count <= self._scratch_size:
            return
        size = 1 << (count - 1).bit_length()
        scratch = aligned_array(9 * size, np.int64, fill=0)
        with delayed_interrupt():  # the handle must not keep addresses of released memory
            self._scratch = scratch
            self._scratch_size = self.handle["scratch_size"] = size
            pieces = ("targets", "candidates", "batch_slots", "work_weights", "numbers", "table")
            for number, name in enumerate(pieces):
                self.handle[name] = scratch[number * size :].ctypes.data
            self.handle["proposals"] = self.handle["targets"]
            self.handle["prefixes"] = self.handle["numbers"]
            self.new_weights = scratch[3 * size : 4 * size].view(np.float64)
            self.numbers = scratch[4 * size : 5 * size]

    def grow(self) -> None:
        """Provide room for at least one more transition, even if it shares nothing."""
        is_tight = self.handle["finals_num_free"] <= self.settings["n_step"]
        with delayed_interrupt():
            if is_tight and self.layout.link >= 0:
                self.add_finals(max(64, len(self.finals_free) // 2) + self.settings["n_step"])
            for pool in self.pools:
                if pool.is_tight():
                    pool.grow(2 * pool.field.stack)

    def add_finals(self, count: int) -> None:
        """Add room for `count` final observations."""
        num_finals = len(self.finals_free)
        finals = self._allocator.allocate((num_finals + count) * self.layout.obs_bytes)
        finals[: self.finals.nbytes] = self.finals
        free = np.zeros(num_finals + count, np.int32)
        num_free = int(self.handle["finals_num_free"])
        free[:num_free] = self.finals_free[:num_free]
        free[num_free : num_free + count] = np.arange(num_finals + count - 1, num_finals - 1, -1)
        self.finals, self.finals_free = finals, free
        self.handle["finals"] = finals.ctypes.data
        self.handle["finals_free"] = free.ctypes.data
        self.handle["finals_num_free"] = num_free + count
