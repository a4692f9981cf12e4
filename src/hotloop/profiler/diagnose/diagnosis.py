"""What a rule has found."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Diagnosis:
    """One reason why a program is not faster.

    Attributes:
        rule: its name, "replay-grows".
        title: the cause in a line.
        confidence: that it is one, 0 to 1.
        gain: the estimated speed-up of the whole program once it is removed, 1.0 and above; None:
            what it costs can't be told from this profile.
        evidence: sentences with numbers.
        advice: the change to make.
        verify: a command that shows whether it helped.
    """

    rule: str
    title: str
    confidence: float
    gain: float | None
    evidence: tuple[str, ...]
    advice: str
    verify: str

    @property
    def weight(self) -> float:
        """What diagnoses are sorted by: the share of the time to be saved, times the confidence.

        Where the gain is not known, a twentieth is taken for it: behind all that is known.
        """
        saved = 0.05 if self.gain is None else 1.0 - 1.0 / self.gain
        return saved * self.confidence
