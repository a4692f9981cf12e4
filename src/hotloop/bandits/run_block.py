"""The memory of a block of 256 runs: frame, environment and agents in the kernels' layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hotloop.bandits.kernel_plans import KernelPlan, num_rows
from hotloop.bandits.kernels import driver, layout, recording
from hotloop.bandits.kernels.layout import LANES, WINDOW
from hotloop.bandits.run_settings import RunSettings
from hotloop.base.memory import require_memory
from hotloop.types import Array


@dataclass
class AlignedMemory:
    """Zeroed memory whose start is aligned to a cache line."""

    size_bytes: int
    array: Array = field(init=False, repr=False)

    def __post_init__(self) -> None:
        buffer = np.zeros(self.size_bytes + 64, np.uint8)
        start = -buffer.ctypes.data % 64
        self.array = buffer[start : start + self.size_bytes]

    @property
    def address(self) -> int:
        """Address of the first byte."""
        return self.array.ctypes.data

    def view(self, dtype: Any, offset: int = 0, count: int = -1) -> Array:
        """Return a part of the memory as an array."""
        return np.frombuffer(self.array, dtype, count, offset)


class RunBlock:
    """The memory of one block, reused for the next block. Only one thread may use it.

    Args:
        agents: plans of the agents.
        environment: plan of the environment.
        num_arms: number k of arms.
        settings: settings that all blocks share.
        dimension: length of a context, 0 without contexts.
        in_hindsight: whether the optimal arm is the best one over all steps.

    Raises:
        ConfigError: The curves don't fit into memory.
    """

    def __init__(
        self,
        agents: Sequence[KernelPlan],
        environment: KernelPlan,
        *,
        num_arms: int,
        settings: RunSettings,
        dimension: int = 0,
        in_hindsight: bool = False,
    ) -> None:
        self.settings, self.num_arms = settings, num_arms
        self.frame = AlignedMemory(layout.FRAME_BYTES)
        self._words = self.frame.view(np.int64, 0, layout.WORDS)
        self._plans = [*agents, environment]  # keeps their arrays alive
        self._environment = self._make_environment(environment, dimension)
        self.agents = [self._make_agent(plan) for plan in agents]
        rows_per_agent = 6 + (num_arms if settings.arm_shares else 0)
        require_memory(
            8 * rows_per_agent * settings.num_points * len(agents),
            f"curves of {settings.num_points:,} points",
            "raise `steps_per_point`",
        )
        # Give each agent its curves, record and pulls.
        self.curves = np.zeros((len(agents), 6, settings.num_points))
        self._records = AlignedMemory(recording.RECORD_BYTES * len(agents))
        shape = (len(agents), settings.num_points, num_arms)
        self.pulls = np.zeros(shape if settings.arm_shares else 0, np.int64)
        for index, agent in enumerate(self.agents):
            words = agent.view(np.int64)
            words[layout.CURVE] = self.curves[index].ctypes.data
            words[layout.RECORD] = self._records.address + index * recording.RECORD_BYTES
            words[layout.PULLS] = self.pulls[index].ctypes.data if settings.arm_shares else 0
        self._addresses = np.array([agent.address for agent in self.agents], np.int64)
        # Fill in the frame.
        words = self._words
        words[layout.KEY_LOW] = settings.seed & 0xFFFFFFFF
        words[layout.KEY_HIGH] = settings.seed >> 32
        words[layout.NUM_ARMS] = num_arms
        words[layout.NUM_STEPS] = settings.num_steps
        words[layout.DIMENSION] = dimension
        words[layout.NEEDS_POLICY_WORDS] = any(plan.needs_policy_words for plan in agents)
        words[layout.NEEDS_UNIT] = any(plan.needs_unit_rewards for plan in agents)
        words[layout.STEPS_PER_POINT] = settings.steps_per_point
        words[layout.LATE_START] = settings.num_steps - settings.late_steps
        words[layout.ENVIRONMENT] = self._environment.address
        words[layout.AGENTS] = self._addresses.ctypes.data
        words[layout.NUM_AGENTS] = len(agents)
        words[layout.IN_HINDSIGHT] = in_hindsight
        words[layout.ROWS] = num_rows(num_arms)

    def _make_environment(self, plan: KernelPlan, dimension: int) -> AlignedMemory:
        rows = (self.num_arms + 3) // 4 * 4
        num_values = WINDOW if plan.is_nonstationary else 1
        context = 4 * LANES * ((dimension + 3) // 4 * 4)
        sizes = [4 * LANES * rows * num_values, 4 * LANES * num_values, 4 * LANES * WINDOW]
        sizes += [4 * LANES, context * WINDOW, plan.state_bytes]
        offsets = layout.HEAD + np.cumsum([0, *sizes])
        memory = AlignedMemory(int(offsets[-1]))
        words = memory.view(np.int64, 0, layout.WORDS)
        words[layout.FRAME] = self.frame.address
        arrays = (layout.VALUES_AT, layout.BEST_AT, layout.NOISE_AT, layout.BEST_ARM_AT)
        for word, offset in zip((*arrays, layout.CONTEXT_AT, layout.STATE), offsets, strict=False):
            words[word] = memory.address + offset
        stride = 4 * LANES * (rows if plan.has_padding else self.num_arms)
        words[layout.VALUES_STRIDE] = stride if plan.is_nonstationary else 0
        words[layout.BEST_STRIDE] = 4 * LANES if plan.is_nonstationary else 0
        words[layout.CONTEXT_STRIDE] = context
        _write_plan(memory, plan, (layout.START, layout.ADVANCE, layout.GIVE_REWARD))
        return memory

    def _make_agent(self, plan: KernelPlan) -> AlignedMemory:
        memory = AlignedMemory(layout.HEAD + plan.state_bytes)
        words = memory.view(np.int64, 0, layout.WORDS)
        words[layout.FRAME] = self.frame.address
        words[layout.STATE] = memory.address + layout.HEAD
        _write_plan(memory, plan, (layout.START, layout.CHOOSE, layout.UPDATE))
        return memory

    @property
    def best_values(self) -> Array:
        """Best true value of each run at this step: float32, (LANES,)."""
        words = self._environment.view(np.int64, 0, layout.WORDS)
        offset = int(words[layout.BEST_AT]) - self._environment.address
        return self._environment.view(np.float32, offset, LANES)

    def part_addresses(self, word: int) -> tuple[int, int]:
        """Return the addresses of a part of the first agent or environment, and of its owner."""
        owner = self._environment if word == layout.GIVE_REWARD else self.agents[0]
        return int(owner.view(np.int64, 0, layout.WORDS)[word]), owner.address

    def reset(self, first_run: int, num_runs: int) -> None:
        """Prepare for `num_runs` runs (at most LANES), from number `first_run` on."""
        self._words[layout.FIRST_RUN] = first_run
        self._words[layout.NUM_RUNS] = num_runs
        self._words[layout.FAULT] = 0
        self.curves[:] = 0
        self.pulls[:] = 0

    def play(self, first: int, last: int) -> int:
        """Play steps without the GIL. Return −1, or the index of the agent with a fault."""
        return driver.play(self.frame.address, first, last)

    @property
    def fault(self) -> tuple[int, int, int, float]:
        """Kind, run, step from 1, and invalid value of the first fault."""
        words = self._words
        value = self.frame.view(np.float64, 0, layout.WORDS)[layout.FAULT_VALUE]
        run = words[layout.FIRST_RUN] + words[layout.FAULT_LANE]
        return int(words[layout.FAULT]), int(run), int(words[layout.FAULT_STEP]) + 1, float(value)

    def run_values(self) -> Array:
        """Return `results.QUANTITIES` of each run: float64, (agents, 5, runs)."""
        settings, num_agents = self.settings, len(self.agents)
        records = self._records.array.reshape(num_agents, recording.RECORD_BYTES)

        def row(offset: int, dtype: Any) -> Array:
            size = LANES * np.dtype(dtype).itemsize
            return records[:, offset : offset + size].view(dtype)

        values = np.empty((num_agents, 5, LANES))
        reward_sum, hits = row(recording.REWARD_SUM, np.float64), row(recording.HITS, np.int32)
        values[:, 0] = reward_sum / settings.num_steps
        values[:, 1] = hits / settings.num_steps
        values[:, 2] = row(recording.REGRET, np.float64)
        values[:, 3] = reward_sum - row(recording.REWARD_SUM_BEFORE_LATE, np.float64)
        values[:, 4] = hits - row(recording.HITS_BEFORE_LATE, np.int32)
        values[:, 3:] /= settings.late_steps
        return values[:, :, : self._words[layout.NUM_RUNS]]


def _write_plan(memory: AlignedMemory, plan: KernelPlan, part_words: Sequence[int]) -> None:
    words, numbers = (memory.view(kind, 0, layout.WORDS) for kind in (np.int64, np.float64))
    for word, part in zip(part_words, plan.parts, strict=True):
        words[word] = part.address
    for index, value in enumerate(plan.parameters):
        target = words if isinstance(value, (int, np.integer)) else numbers
        target[layout.PARAMETERS + index] = value
