"""Settings of a computation, checked: steps, seed, runs, threads."""

from __future__ import annotations

from dataclasses import dataclass

from hotloop.bandits.described import whole
from hotloop.bandits.folding import CHUNK
from hotloop.system.cores import available_cores

MAX_RUNS, MAX_SEED = 2**32 - CHUNK, 2**64 - 1


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What all blocks of a comparison have in common."""

    seed: int
    num_steps: int
    steps_per_point: int
    late_steps: int
    arm_shares: bool = False

    @property
    def num_points(self) -> int:
        """P."""
        return -(-self.num_steps // self.steps_per_point)


def settings_from(
    seed: int,
    num_steps: int,
    late_steps: int | None,
    steps_per_point: int | None,
    arm_shares: bool = False,
) -> Settings:
    """Settings that were given, and what follows from them.

    Raises:
        ConfigError: one of them makes no sense.
    """
    num_steps = whole("num_steps", num_steps, 1, 2**31 - 1)
    if steps_per_point is None:
        steps_per_point = 1 if num_steps <= 2000 else -(-num_steps // 1000)
    late_steps = max(num_steps // 10, 1) if late_steps is None else late_steps
    return Settings(
        seed=whole("seed", seed, 0, MAX_SEED),
        num_steps=num_steps,
        steps_per_point=whole("steps_per_point", steps_per_point, 1, num_steps),
        late_steps=whole("late_steps", late_steps, 1, num_steps),
        arm_shares=arm_shares,
    )


def threads_from(threads: int | None) -> int:
    """How many threads were asked for; one for each core that this process may use by default.

    Raises:
        ConfigError: it makes no sense.
    """
    if threads is None:
        threads = available_cores()
    return whole("threads", threads, 1, 1024)
