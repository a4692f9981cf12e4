"""A diagnosis: the finding of one rule."""

from __future__ import annotations

from dataclasses import dataclass

from hotloop.profiler.session.stages import Leaf

# What a line of code is for a rule that has no name for it.
UNNAMED = "line"


@dataclass(frozen=True)
class Diagnosis:
    """One reason why a program is not faster.

    Attributes:
        rule: its name, "replay-grows"; `UNNAMED`: no rule knows it.
        title: the cause in a line.
        confidence: that it is one, 0 to 1.
        gain: the estimated speed-up of the whole program once it is removed, 1.0 and above; None:
            what it costs can't be told from this profile.
        evidence: sentences with numbers.
        advice: the change to make.
        verify: a command that shows whether it helped.
        places: the user's lines that it is about: the dearest, others of it, those that call it.
        wait: what its time is: "computing", "queued" for a core, or blocked on "sleep", "network",
            "disk", "child", "lock", "pipe", "interpreter" (its lock), or "something".
        pace: "once", "repeated", or "growing" while the program runs.
        loop_gain: as `gain`, of the program without its start.
        is_rebuild: nothing is removed: the program would be built in another way.
        share: of the whole time, what it has, where no gain is promised but it might be removed.
    """

    rule: str
    title: str
    confidence: float
    gain: float | None
    evidence: tuple[str, ...]
    advice: str
    verify: str
    places: tuple[Leaf, ...] = ()
    wait: str = "computing"
    pace: str = "repeated"
    loop_gain: float | None = None
    is_rebuild: bool = False
    share: float = 0.0

    @property
    def order(self) -> tuple[bool, float]:
        """What diagnoses are sorted by: what is removed before what is rebuilt, by time saved."""
        return self.is_rebuild, -self.saved

    @property
    def saved(self) -> float:
        """The share of the time to be saved.

        Where neither it nor its share is known, a twentieth is taken for it.
        """
        return max(0.05, self.share) if self.gain is None else 1.0 - 1.0 / self.gain
