"""Activity of the host in GPU windows: its lines and stages while the GPU works or idles."""

from __future__ import annotations

from collections.abc import Mapping

from hotloop.profiler.session import ProfiledProcess, Sample
from hotloop.profiler.session.gpu import GpuUse, HostPosition
from hotloop.profiler.session.stages import CodeLine, innermost_user_line, stage_by_key
from hotloop.profiler.session.sums import ranked, sums


class Host:
    """The host's activity in GPU windows."""

    def __init__(self, use: GpuUse) -> None:
        self.use = use
        times = (use.host_in_windows, use.host_in_gaps, use.host_in_syncs, use.host_in_copies)
        positions = list(dict.fromkeys(position for part in times for position in part))
        # Classify the positions as if a process had been sampled there.
        process = ProfiledProcess("windows", "main", use.pid, 0, "complete", 0, 1)
        process.stacks = [position.stack for position in positions]
        process.samples = [
            Sample(use.pid, x.path, number, 1, 0, 0, 1) for number, x in enumerate(positions)
        ]
        stages = stage_by_key(process, by_name=False)
        self._stages = {x: stages[x.path, number] for number, x in enumerate(positions)}

    def stage(self, position: HostPosition) -> str:
        """Return the stage of a position, a key of `stages.STAGES`."""
        return self._stages[position]

    def by_stage(self, positions: Mapping[HostPosition, float]) -> dict[str, float]:
        """Return the nanoseconds by stage, largest first."""
        totals = sums((self.stage(position), ns) for position, ns in positions.items())
        return {stage: totals[stage] for stage in ranked(totals)}

    def by_line(
        self, positions: Mapping[HostPosition, float], *, without: tuple[str, ...] = ()
    ) -> dict[CodeLine, float]:
        """Return the nanoseconds by user's line, largest first, without some stages."""
        totals = sums(
            (innermost_user_line(position.stack), ns)
            for position, ns in positions.items()
            if self.stage(position) not in without
        )
        return {line: totals[line] for line in ranked(totals)}

    def share(self, stage: str) -> float:
        """Return the share of a stage in the windows' time."""
        total_ns = sum(self.use.host_in_windows.values())
        by_stage = self.by_stage(self.use.host_in_windows)
        return by_stage.get(stage, 0.0) / total_ns if total_ns else 0.0
