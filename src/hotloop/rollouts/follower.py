"""A policy that acts within the steps of another one, in the same games; see `joint`."""

from __future__ import annotations

from hotloop.rollouts.collector import Collector, Slot, StepObserver
from hotloop.timing import span
from hotloop.timing.policy_shares import policy_span


class Follower:
    """Collects the rows of a policy one by one, within the steps of the previous policy.

    Attributes:
        collector: the same.
        slot: the same. Set it to fill another one.
        next_row: index of the next row in the slot.
        observer: callbacks for each row, or None.
    """

    def __init__(self, name: str, collector: Collector, slot: Slot) -> None:
        self._span = policy_span(name)
        self.collector, self.slot, self.next_row = collector, slot, 0
        self.observer: StepObserver | None = None

    def reset(self) -> None:
        """See `Others.reset`."""
        with span(self._span):
            self.collector.begin()

    def act(self) -> None:
        """See `Others.act`."""
        row = self.next_row
        with span(self._span):
            self.collector.collect(self.slot, row, row + 1, self.observer)
        self.next_row += 1
