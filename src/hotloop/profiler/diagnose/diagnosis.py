"""A diagnosis: the finding of one rule."""

from __future__ import annotations

from dataclasses import dataclass

from hotloop.profiler.diagnose.limits import LIMITS
from hotloop.profiler.session.stages import CodeLine

# The `rule` of a diagnosis of a line of code that no rule recognizes.
UNNAMED = "line"


@dataclass(frozen=True)
class Diagnosis:
    """One reason why a program is slow.

    Attributes:
        rule: identifier of the rule, such as "replay-grows". `UNNAMED` if no rule applies.
        title: the cause in one line.
        confidence: probability that it is a cause, 0 to 1.
        gain: estimated speed-up of the whole program without the cause, 1.0 and above. None if
            this profile does not show how much time the cause costs.
        evidence: sentences with numbers.
        advice: the change to make.
        verify: a command that shows whether the change helped.
        places: the user's lines concerned: the most expensive, further ones, their callers.
        wait: how most of the time passes: "computing", "queued" for a core, or blocked on "sleep",
            "network", "disk", "child", "lock", "pipe", "interpreter" (its lock), or "something".
        pace: "once", "repeated", or "growing" while the program runs.
        loop_gain: estimated speed-up of the program without its start-up.
        is_rebuild: whether the fix restructures the program instead of removing a cost.
        share: share of the whole time, if it may be removable but no gain is promised.
    """

    rule: str
    title: str
    confidence: float
    gain: float | None
    evidence: tuple[str, ...]
    advice: str
    verify: str
    places: tuple[CodeLine, ...] = ()
    wait: str = "computing"
    pace: str = "repeated"
    loop_gain: float | None = None
    is_rebuild: bool = False
    share: float = 0.0

    @property
    def order(self) -> tuple[bool, float]:
        """Sort key: removable causes before rebuilds, then by time saved."""
        return self.is_rebuild, -self.saved

    @property
    def saved(self) -> float:
        """Share of the time that the fix saves.

        If the gain is unknown, the diagnosis's share is used, and at least 5 %.
        """
        return (
            max(LIMITS.unknown_saving, self.share) if self.gain is None else 1.0 - 1.0 / self.gain
        )
