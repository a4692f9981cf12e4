"""Host beside the GPU: which lines and stages it was in while the GPU did something, or nothing."""

from __future__ import annotations

from collections.abc import Mapping

from hotloop.profiler.session import Process, Sample
from hotloop.profiler.session.gpu import GpuUse, Place
from hotloop.profiler.session.stages import Leaf, stage_by_key, user_leaf


class Host:
    """What a program did in the windows of a GPU.

    Args:
        use: what the windows say.
    """

    def __init__(self, use: GpuUse) -> None:
        self.use = use
        parts = (use.at_all, use.in_gaps, use.in_syncs, use.in_copies)
        places = list(dict.fromkeys(place for part in parts for place in part))
        # As a process that was sampled at these places, so that stages are told as everywhere.
        process = Process("windows", "main", use.pid, 0, "complete", 0, 1)
        process.stacks = [place.stack for place in places]
        process.samples = [
            Sample(use.pid, place.path, number, 1, 0, 0, 1) for number, place in enumerate(places)
        ]
        stages = stage_by_key(process)
        self._stages = {place: stages[place.path, number] for number, place in enumerate(places)}

    def stage(self, place: Place) -> str:
        """By the names of `stages.STAGES`."""
        return self._stages[place]

    def by_stage(self, places: Mapping[Place, float]) -> dict[str, float]:
        """Nanoseconds by stage, the most first."""
        found: dict[str, float] = {}
        for place, ns in places.items():
            found[self.stage(place)] = found.get(self.stage(place), 0.0) + ns
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    def by_line(
        self, places: Mapping[Place, float], *, without: tuple[str, ...] = ()
    ) -> dict[Leaf, float]:
        """Nanoseconds by the user's line, the most first; of some stages none."""
        found: dict[Leaf, float] = {}
        for place, ns in places.items():
            if self.stage(place) not in without:
                leaf = user_leaf(place.stack)
                found[leaf] = found.get(leaf, 0.0) + ns
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    def share(self, stage: str) -> float:
        """Of the windows' time."""
        whole = sum(self.use.at_all.values())
        return self.by_stage(self.use.at_all).get(stage, 0.0) / whole if whole else 0.0
