"""The latest complete iteration of a run, saved as a checkpoint."""

from __future__ import annotations

from hotloop.base.signals import delayed_interrupt
from hotloop.runs import Checkpoint, RunDirectory
from hotloop.timing import span
from hotloop.training.checkpoint_state import BestEvaluation
from hotloop.training.resume import ResumedRun


class Saver:
    """The checkpoint of the latest complete iteration, and its writer.

    Args:
        num_kept: the number of checkpoints to keep besides the last and the best.
        resumed: the checkpoint that the run resumes from.
    """

    def __init__(self, run: RunDirectory, num_kept: int, resumed: ResumedRun | None) -> None:
        self._run = run
        self._keep = num_kept
        self._latest = None if resumed is None else resumed.checkpoint
        self._saved_at = self.timesteps

    @property
    def timesteps(self) -> int:
        """Return the transitions after the last complete iteration, 0 before the first."""
        return 0 if self._latest is None else self._latest.state["timesteps"]

    @property
    def iteration(self) -> int:
        """Return the number of the last complete iteration, 0 before the first."""
        return 0 if self._latest is None else self._latest.state["iteration"]

    def set_latest(self, checkpoint: Checkpoint) -> None:
        """Set the checkpoint of the last complete iteration."""
        self._latest = checkpoint

    def save(self, best: BestEvaluation | None) -> None:
        """Write the checkpoint.

        Args:
            best: the best evaluation so far, whose checkpoint gets a link.

        Raises:
            RunDirectoryError: the checkpoint can't be written, or the directory no longer exists.
        """
        assert self._latest is not None
        is_best = best is not None and best.timesteps == self.timesteps
        with span("save"), delayed_interrupt():
            self._run.check_present()
            self._run.sync_metrics()  # a resumed run continues these
            # Link `best` first: if the process is killed in between, the checkpoint that `last`
            # names as the best still exists.
            self._run.checkpoints.save(
                self._latest, names=("best", "last") if is_best else ("last",), keep=self._keep
            )
            self._saved_at = self.timesteps

    def close(self, best: BestEvaluation | None) -> None:
        """Write the checkpoint if it is not written yet."""
        if self._latest is not None and self._saved_at != self.timesteps:
            self.save(best)
