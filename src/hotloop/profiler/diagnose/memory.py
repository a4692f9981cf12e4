"""A rule on memory that keeps growing."""

from __future__ import annotations

from hotloop.profiler.diagnose.causes import Explanation
from hotloop.profiler.diagnose.evidence import Evidence
from hotloop.profiler.session.memory import memory_growth


def growing_memory(evidence: Evidence) -> Explanation | None:
    """Detect processes whose memory rises until the end of the run, without levelling off.

    See `session.memory` for the thresholds. A replay buffer that fills looks the same, so the
    diagnosis promises no gain.
    """
    growing = [
        (growth, process)
        for process in evidence.session.processes
        if (growth := memory_growth(process)) is not None
    ]
    if not growing:
        return None
    growing.sort(key=lambda item: -item[0].bytes_per_s)
    growth, process = growing[0]
    suffix = f", and that of {len(growing) - 1} other processes" if len(growing) > 1 else ""
    return Explanation(
        None,
        (
            f"{process.name} grows from {growth.first_bytes / 1e6:,.0f} MB to "
            f"{growth.last_bytes / 1e6:,.0f} MB, {60 * growth.bytes_per_s / 1e6:,.0f} MB per "
            f"minute{suffix}",
        ),
        texts={"process": process.name},
    )
