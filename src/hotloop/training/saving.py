"""Checkpoints of a training: the last whole iteration, and when it is written."""

from __future__ import annotations

from hotloop.runs import Checkpoint, RunDirectory
from hotloop.system.signals import delayed_interrupt
from hotloop.timing import span
from hotloop.training.position import BestEvaluation
from hotloop.training.resume import Resumed


class Saver:
    """Knows the last whole iteration, and writes it when it is told to.

    Args:
        run: where to.
        keep: how many checkpoints besides the last and the best.
        resumed: what the run goes on from.
    """

    def __init__(self, run: RunDirectory, keep: int, resumed: Resumed | None) -> None:
        self._run = run
        self._keep = keep
        self._latest = None if resumed is None else resumed.checkpoint
        self._saved_at = self.timesteps

    @property
    def timesteps(self) -> int:
        """Transitions of the last whole iteration; 0 before the first."""
        return 0 if self._latest is None else self._latest.state["timesteps"]

    @property
    def iteration(self) -> int:
        """Its number; 0 before the first."""
        return 0 if self._latest is None else self._latest.state["iteration"]

    def keep(self, checkpoint: Checkpoint) -> None:
        """Take an iteration for the last whole one."""
        self._latest = checkpoint

    def save(self, best: BestEvaluation | None) -> None:
        """Write it.

        Args:
            best: the best evaluation so far; a link leads to its checkpoint.

        Raises:
            RunDirectoryError: it can't be written, or the directory is not there any more.
        """
        assert self._latest is not None
        is_best = best is not None and best.timesteps == self.timesteps
        with span("save"), delayed_interrupt():
            self._run.check_present()
            self._run.sync_metrics()  # which a checkpoint goes on from
            # The best one first: if the process is killed in between, what the last one says is
            # the best is still there.
            self._run.checkpoints.save(
                self._latest, names=("best", "last") if is_best else ("last",), keep=self._keep
            )
            self._saved_at = self.timesteps

    def close(self, best: BestEvaluation | None) -> None:
        """Write it, if it is not written yet."""
        if self._latest is not None and self._saved_at != self.timesteps:
            self.save(best)
