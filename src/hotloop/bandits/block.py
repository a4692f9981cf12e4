"""A block of 256 runs as memory: frame, environment and agents laid out for the kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hotloop.bandits.kernels import driver, layout, recording
from hotloop.bandits.kernels.layout import LANES, WINDOW
from hotloop.bandits.plan import Plan, num_rows
from hotloop.bandits.settings import Settings
from hotloop.system.memory import need_memory
from hotloop.types import Array


@dataclass
class Memory:
    """Zeroed memory that begins at a cache line."""

    size: int
    array: Array = field(init=False, repr=False)

    def __post_init__(self) -> None:
        whole = np.zeros(self.size + 64, np.uint8)
        start = -whole.ctypes.data % 64
        self.array = whole[start : start + self.size]

    @property
    def address(self) -> int:
        """Where it begins."""
        return self.array.ctypes.data

    def view(self, dtype: Any, offset: int = 0, count: int = -1) -> Array:
        """A part of it as an array."""
        return np.frombuffer(self.array, dtype, count, offset)


class Block:
    """The memory of one block; used again for the next, by one thread.

    Args:
        agents: what the kernels can play; None in the place of one in plain Python.
        environment: what the kernels can make; None for one in plain Python.
        num_arms: k.
        settings: what all blocks have in common.

    Raises:
        ConfigError: the curves don't fit into memory.
    """

    def __init__(
        self,
        agents: Sequence[Plan | None],
        environment: Plan | None,
        *,
        num_arms: int,
        settings: Settings,
        dimension: int = 0,
        in_hindsight: bool = False,
    ) -> None:
        self.settings, self.num_arms = settings, num_arms
        self.frame = Memory(layout.FRAME_BYTES)
        self._words = self.frame.view(np.int64, 0, layout.WORDS)
        self._plans = [plan for plan in (*agents, environment) if plan is not None]  # keeps arrays
        self._environment = self._make_environment(environment, dimension)
        self.agents = [self._make_agent(plan) for plan in agents]
        each = 6 + (num_arms if settings.arm_shares else 0)
        need_memory(
            8 * each * settings.num_points * len(agents),
            f"curves of {settings.num_points:,} points",
            "raise `steps_per_point`",
        )
        self.curves = np.zeros((len(agents), 6, settings.num_points))
        self._records = Memory(recording.RECORD_BYTES * len(agents))
        shape = (len(agents), settings.num_points, num_arms)
        self.pulls = np.zeros(shape if settings.arm_shares else 0, np.int64)
        for which, agent in enumerate(self.agents):
            words = agent.view(np.int64)
            words[layout.CURVE] = self.curves[which].ctypes.data
            words[layout.RECORD] = self._records.address + which * recording.RECORD_BYTES
            words[layout.PULLS] = self.pulls[which].ctypes.data if settings.arm_shares else 0
        self._addresses = np.array([agent.address for agent in self.agents], np.int64)
        words = self._words
        words[layout.KEY_LOW] = settings.seed & 0xFFFFFFFF
        words[layout.KEY_HIGH] = settings.seed >> 32
        words[layout.NUM_ARMS] = num_arms
        words[layout.NUM_STEPS] = settings.num_steps
        words[layout.DIMENSION] = dimension
        words[layout.NEEDS_POLICY] = any(plan is not None and plan.needs_policy for plan in agents)
        words[layout.NEEDS_UNIT] = any(plan is not None and plan.needs_unit for plan in agents)
        words[layout.STEPS_PER_POINT] = settings.steps_per_point
        words[layout.LATE_FROM] = settings.num_steps - settings.late_steps
        words[layout.ENVIRONMENT] = self._environment.address
        words[layout.AGENTS] = self._addresses.ctypes.data
        words[layout.NUM_AGENTS] = len(agents)
        words[layout.IN_HINDSIGHT] = in_hindsight
        words[layout.ROWS] = num_rows(num_arms)

    def _make_environment(self, plan: Plan | None, dimension: int) -> Memory:
        rows = (self.num_arms + 3) // 4 * 4
        ahead = WINDOW if plan is not None and plan.has_walk else 1
        context = 4 * LANES * ((dimension + 3) // 4 * 4)
        sizes = [4 * LANES * rows * ahead, 4 * LANES * ahead, 4 * LANES * WINDOW]
        sizes += [4 * LANES, context * WINDOW, plan.state_bytes if plan is not None else 0]
        offsets = layout.HEAD + np.cumsum([0, *sizes])
        memory = Memory(int(offsets[-1]))
        words = memory.view(np.int64, 0, layout.WORDS)
        words[layout.FRAME] = self.frame.address
        places = (layout.VALUES_AT, layout.BEST_AT, layout.NOISE_AT, layout.BEST_ARM_AT)
        for word, offset in zip((*places, layout.CONTEXT_AT, layout.STATE), offsets, strict=False):
            words[word] = memory.address + offset
        if plan is None:
            return memory
        stride = 4 * LANES * (rows if plan.has_padding else self.num_arms)
        words[layout.VALUES_STRIDE] = stride if plan.has_walk else 0
        words[layout.BEST_STRIDE] = 4 * LANES if plan.has_walk else 0
        words[layout.CONTEXT_STRIDE] = context
        for word, part in zip(
            (layout.START, layout.ADVANCE, layout.GIVE_REWARD), plan.parts, strict=True
        ):
            words[word] = part.address
        _write_parameters(memory, plan.parameters)
        return memory

    def _make_agent(self, plan: Plan | None) -> Memory:
        memory = Memory(layout.HEAD + (plan.state_bytes if plan is not None else 0))
        words = memory.view(np.int64, 0, layout.WORDS)
        words[layout.FRAME] = self.frame.address
        words[layout.STATE] = memory.address + layout.HEAD
        if plan is not None:
            for word, part in zip(
                (layout.START, layout.CHOOSE, layout.UPDATE), plan.parts, strict=True
            ):
                words[word] = part.address
            _write_parameters(memory, plan.parameters)
        return memory

    @property
    def best(self) -> Array:
        """The best true value of each run at this step: float32, (LANES,)."""
        words = self._environment.view(np.int64, 0, layout.WORDS)
        offset = int(words[layout.BEST_AT]) - self._environment.address
        return self._environment.view(np.float32, offset, LANES)

    def part(self, word: int) -> tuple[int, int]:
        """Addresses of a part of the first agent, or of the environment, and of its owner."""
        owner = self._environment if word == layout.GIVE_REWARD else self.agents[0]
        return int(owner.view(np.int64, 0, layout.WORDS)[word]), owner.address

    def begin(self, first_run: int, num_runs: int) -> None:
        """Turn to other runs: `num_runs` of them, at most LANES, from number `first_run` on."""
        self._words[layout.FIRST_RUN] = first_run
        self._words[layout.NUM_RUNS] = num_runs
        self._words[layout.FAULT] = 0
        self.curves[:] = 0
        self.pulls[:] = 0

    def play(self, first: int, last: int) -> int:
        """Play steps, without the interpreter's lock; −1, or the agent that met a fault."""
        return driver.play(self.frame.address, first, last)

    @property
    def fault(self) -> tuple[int, int, int, float]:
        """Kind, run, step from 1, and the value that was no good."""
        words = self._words
        value = self.frame.view(np.float64, 0, layout.WORDS)[layout.FAULT_VALUE]
        run = words[layout.FIRST_RUN] + words[layout.FAULT_LANE]
        return int(words[layout.FAULT]), int(run), int(words[layout.FAULT_STEP]) + 1, float(value)

    def ends(self) -> Array:
        """What every run came to, in the order of `results.QUANTITIES`: (agents, 5, runs)."""
        settings, num_agents = self.settings, len(self.agents)
        records = self._records.array.reshape(num_agents, recording.RECORD_BYTES)

        def row(offset: int, dtype: Any) -> Array:
            size = LANES * np.dtype(dtype).itemsize
            return records[:, offset : offset + size].view(dtype)

        ends = np.empty((num_agents, 5, LANES))
        gained, hits = row(recording.GAINED, np.float64), row(recording.HITS, np.int32)
        ends[:, 0] = gained / settings.num_steps
        ends[:, 1] = hits / settings.num_steps
        ends[:, 2] = row(recording.REGRET, np.float64)
        ends[:, 3] = gained - row(recording.GAINED_BEFORE_LATE, np.float64)
        ends[:, 4] = hits - row(recording.HITS_BEFORE_LATE, np.int32)
        ends[:, 3:] /= settings.late_steps
        return ends[:, :, : self._words[layout.NUM_RUNS]]


def _write_parameters(memory: Memory, parameters: Sequence[float | int]) -> None:
    words, numbers = (memory.view(kind, 0, layout.WORDS) for kind in (np.int64, np.float64))
    for index, value in enumerate(parameters):
        target = words if isinstance(value, (int, np.integer)) else numbers
        target[layout.PARAMETERS + index] = value
