"""Pipelines of three stages, drawn from a seed. The busiest stage is not the bottleneck.

A stage has several workers, which are threads or processes, between two bounded queues. The busiest
stage has many workers, which together spend more time than the single worker of the bottleneck.

    pipelines.py SEED SECONDS
"""

from __future__ import annotations

import multiprocessing
import queue
import random
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple


class Plan(NamedTuple):
    """A pipeline.

    Attributes:
        uses_processes: whether workers are processes instead of threads.
        workers: number of workers by stage.
        seconds: time per item by stage.
        bottleneck, busiest: names of stages.
    """

    uses_processes: bool
    workers: tuple[int, ...]
    seconds: tuple[float, ...]
    bottleneck: str
    busiest: str


STAGES = ("first", "second", "third")


def plan(seed: int) -> Plan:
    """Draw a pipeline."""
    rng = random.Random(seed)
    bottleneck, busiest, other = rng.sample(range(3), 3)
    period_s = rng.uniform(0.005, 0.010)
    workers, seconds = [1, 1, 1], [0.0, 0.0, 0.0]
    seconds[bottleneck] = period_s
    workers[busiest] = rng.randint(2, 4)
    seconds[busiest] = workers[busiest] * period_s * rng.uniform(0.55, 0.62)
    seconds[other] = period_s * rng.uniform(0.2, 0.5)
    return Plan(
        rng.random() < 0.4, tuple(workers), tuple(seconds), STAGES[bottleneck], STAGES[busiest]
    )


def first(seconds: float) -> None:
    """Work for an item."""
    time.sleep(seconds)


def second(seconds: float) -> None:
    """Work for an item."""
    time.sleep(seconds)


def third(seconds: float) -> None:
    """Work for an item."""
    time.sleep(seconds)


def work(stage: Callable[[float], None], seconds: float, source: Any, target: Any) -> None:
    """Process items for ever."""
    while True:
        item = source.get() if source is not None else 1
        stage(seconds)
        if target is not None:
            target.put(item)


def main() -> None:
    """Run the pipeline."""
    drawn = plan(int(sys.argv[1]))
    context = multiprocessing.get_context("fork")
    queues = [context.Queue(4) if drawn.uses_processes else queue.Queue(4) for _ in range(2)]
    sources, targets = [None, *queues], [*queues, None]
    for index, stage in enumerate((first, second, third)):
        for _ in range(drawn.workers[index]):
            args = stage, drawn.seconds[index], sources[index], targets[index]
            if drawn.uses_processes:
                context.Process(target=work, args=args, daemon=True).start()
            else:
                threading.Thread(target=work, args=args, daemon=True).start()
    time.sleep(float(sys.argv[2]))


if __name__ == "__main__":
    main()
