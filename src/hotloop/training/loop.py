"""The training loop: act → step → store → sample → learn → publish → report.

Read this page first, and `hotloop/algorithms/sac.py` second. Each training is this loop over stages
that the algorithm's declaration assembles: `on_policy.py` learns from fragments of the current
policy, `off_policy.py` from a replay buffer, or from a source of your own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from hotloop.base.signals import Interrupts, PendingInterrupt
from hotloop.learner import Learner
from hotloop.policies import ActingPolicy
from hotloop.rollouts import Rollout
from hotloop.timing import span
from hotloop.training.run_updates import Run, UpdateRequest
from hotloop.types import Fragment

if TYPE_CHECKING:
    from hotloop.training.checkpoint_state import CompletedIteration
    from hotloop.training.observers import Observers
    from hotloop.training.resume import ResumedRun


class Stages(Protocol):
    """The stages of a run, from one version of the policy to the next."""

    learner: Learner
    policy: ActingPolicy
    rollout: Rollout
    interrupts: Interrupts
    store_span: str  # the name of the timing span around `store`

    def restore(self, resumed: ResumedRun) -> tuple[list[int], list[str]]:
        """Load a checkpoint. Return environments with new episodes, and notes for the user."""
        ...

    def rounds(self, interrupt: PendingInterrupt) -> Iterator[None]:
        """Begin an iteration, yield before each of its rounds, and end it."""
        ...

    def collect(self) -> Sequence[Fragment]:
        """Return the fragments of the next steps, which the next call may overwrite."""
        ...

    def store(self, fragments: Sequence[Fragment]) -> None:
        """Add the fragments to the replay buffer, or prepare a batch of them."""
        ...

    def update_requests(self) -> Iterator[UpdateRequest]:
        """Yield requests for the updates that are due, with the batches to learn from."""
        ...

    def publish(self) -> None:
        """Act with the newest parameters from now on."""
        ...

    def complete(self) -> CompletedIteration:
        """Return the iteration's metrics, and its policy and state for a checkpoint."""
        ...


def training_loop(stages: Stages, observers: Observers) -> Run[None]:
    """Train until all transitions are collected or an observer stops the run."""
    should_continue = observers.begin()
    while should_continue:
        with stages.interrupts() as interrupt:
            for _ in stages.rounds(interrupt):
                with span("collect"):
                    fragments = stages.collect()  # act → step: rollouts/collector.py
                with span(stages.store_span):
                    stages.store(fragments)  # store: replay/buffer.py
                yield from stages.update_requests()  # sample → learn: run_updates.py
                with span("publish"):
                    stages.publish()  # publish → act
            with span("publish"):
                iteration = stages.complete()
            should_continue = observers.end_iteration(iteration, interrupt)  # report
