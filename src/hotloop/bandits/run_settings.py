"""Checked settings of a computation: steps, seed, runs, threads."""

from __future__ import annotations

from dataclasses import dataclass

from hotloop.bandits.checked_settings import check_int
from hotloop.bandits.kernels.layout import LANES
from hotloop.base.cores import available_cores

BLOCK = LANES  # runs that kernels play together
CHUNK = 8 * BLOCK  # runs whose sums are added before they are added to the total
MAX_RUNS, MAX_SEED = 2**32 - CHUNK, 2**64 - 1


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """Settings that all blocks of a comparison share. See `run` for their meaning."""

    seed: int
    num_steps: int
    steps_per_point: int
    late_steps: int
    arm_shares: bool = False

    @property
    def num_points(self) -> int:
        """Number P of points of a curve."""
        return -(-self.num_steps // self.steps_per_point)


def make_settings(
    seed: int,
    num_steps: int,
    late_steps: int | None,
    steps_per_point: int | None,
    arm_shares: bool = False,
) -> RunSettings:
    """Return checked settings, with defaults in place of None.

    Raises:
        ConfigError: A setting is invalid.
    """
    num_steps = check_int("num_steps", num_steps, 1, 2**31 - 1)
    if steps_per_point is None:
        steps_per_point = 1 if num_steps <= 2000 else -(-num_steps // 1000)
    late_steps = max(num_steps // 10, 1) if late_steps is None else late_steps
    return RunSettings(
        seed=check_int("seed", seed, 0, MAX_SEED),
        num_steps=num_steps,
        steps_per_point=check_int("steps_per_point", steps_per_point, 1, num_steps),
        late_steps=check_int("late_steps", late_steps, 1, num_steps),
        arm_shares=arm_shares,
    )


def resolve_threads(threads: int | None) -> int:
    """Return the number of threads. The default is the number of cores this process may use.

    Raises:
        ConfigError: `threads` is invalid.
    """
    if threads is None:
        threads = available_cores()
    return check_int("threads", threads, 1, 1024)
