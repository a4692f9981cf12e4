"""Check that all environments will fit into memory, while the first ones are made."""

from __future__ import annotations

from hotloop.base import processes
from hotloop.base.memory import require_memory

_FIRST_COUNT = 64
# Growth of the process that may have causes other than the created environments.
_MARGIN_BYTES = 2**22


class MemoryCheck:
    """An estimate of the memory for all environments, from that of the first ones."""

    def __init__(self, num_envs: int) -> None:
        self._num_envs, self._before = num_envs, processes.resident_bytes()

    def check(self, count: int) -> None:
        """Check the memory after `count` environments were made, each time their number doubles.

        Raises:
            ConfigError: memory is too small for the remaining ones.
        """
        if count < _FIRST_COUNT or count.bit_count() != 1:  # not a power of two
            return
        growth_bytes = processes.resident_bytes() - self._before
        env_bytes = (growth_bytes - _MARGIN_BYTES) // count
        require_memory(
            env_bytes * (self._num_envs - count),
            f"{self._num_envs:,} environments",
            "lower `num_envs`",
        )
