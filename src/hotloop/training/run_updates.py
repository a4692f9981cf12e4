"""Run the updates that the training loop requests.

A run is a generator that collects, yields an update request, and continues after the updates.
A single run and runs trained together (`hotloop.training.lanes`) thus share one training loop.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, TypeVar

from hotloop.learner import Learner
from hotloop.timing import span

Outcome = TypeVar("Outcome")


@dataclass(frozen=True)
class UpdateRequest:
    """A request for the updates that are due.

    Attributes:
        learner: the learner that runs the updates.
        batches: a generator that yields each batch, and receives |TD error|, (B,), or None.
        spans: the names of the timing spans, from the outermost to that of a single batch.
        launch: a function that runs all updates in fewer calls of many batches each, or None.
            Lanes always use `batches`.
    """

    learner: Learner
    batches: Generator[Any, Any, None]
    spans: tuple[str, ...]
    launch: Callable[[], None] | None = None


Run = Generator[UpdateRequest, None, Outcome]
"""A generator that yields update requests and returns the run's result."""


def drive(run: Run[Outcome]) -> Outcome:
    """Execute a run's update requests until it ends, and return its result."""
    error: BaseException | None = None
    while True:
        try:
            request = next(run) if error is None else run.throw(error)
            error = None
            run_updates(request)
        except StopIteration as end:
            return end.value
        except BaseException as problem:  # also of a signal, which may come at any moment
            if inspect.getgeneratorstate(run) == inspect.GEN_CLOSED:
                raise
            error = problem


def run_updates(request: UpdateRequest) -> None:
    """Run all updates of a request."""
    *outer_spans, update_span = request.spans
    if request.launch is not None:
        with span(update_span):
            request.launch()
        return
    with contextlib.ExitStack() as spans:
        for name in outer_spans:
            spans.enter_context(span(name))
        td_error = None
        while True:
            try:
                batch = request.batches.send(td_error)
            except StopIteration:
                return
            with span(update_span):
                td_error = request.learner.update(batch)
