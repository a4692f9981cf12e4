"""Learning that a run asks for, and who makes its updates.

A run is a generator: it collects, yields what it wants to learn, is sent what came of it, and goes
on. So one run and many that learn together (`hotloop.training.lanes`) have one loop.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, TypeVar

from hotloop.learner import Learner
from hotloop.timing import span

Ended = TypeVar("Ended")


@dataclass(frozen=True)
class Learning:
    """Updates that are due now.

    Attributes:
        learner: makes them.
        steps: yields each batch to learn from, is sent |TD error|, (B,), or None, and returns what
            came of it all.
        spans: how the time is called, from the outermost one to that of a single batch.
        launch: makes all of it in fewer calls, of many batches each; None: there is no such way.
            Who makes updates of several runs at once takes `steps`.
    """

    learner: Learner
    steps: Generator[Any, Any, Any]
    spans: tuple[str, ...]
    launch: Callable[[], Any] | None = None


Run = Generator[Learning, Any, Ended]
"""A run that asks for updates, and returns its result."""


def drive(run: Run[Ended]) -> Ended:
    """Make the updates that a run asks for, until it ends; return its result."""
    came: Any = None
    error: BaseException | None = None
    while True:
        try:
            asked = run.send(came) if error is None else run.throw(error)
            error = None
            came = learn(asked)
        except StopIteration as end:
            return end.value
        except BaseException as problem:  # a signal's too, whose moment may be any
            if inspect.getgeneratorstate(run) == inspect.GEN_CLOSED:
                raise
            error = problem


def learn(asked: Learning) -> Any:
    """Make all updates; return what came of them."""
    *around, each = asked.spans
    if asked.launch is not None:
        with span(each):
            return asked.launch()
    with contextlib.ExitStack() as spans:
        for name in around:
            spans.enter_context(span(name))
        told = None
        while True:
            try:
                batch = asked.steps.send(told)
            except StopIteration as end:
                return end.value
            with span(each):
                told = asked.learner.update(batch)
