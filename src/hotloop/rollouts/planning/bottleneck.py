"""The stage that the others wait for: learner, inference or workers."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from hotloop.timing import Node

# A smaller share of waiting counts as no waiting.
_MIN_WAIT = 0.1
# If the median worker waits longer than the busiest by this share, the busiest is the bottleneck.
_MIN_WAIT_GAP = 0.25
# Spans of the learner's loop.
_LOOP_SPANS = ("collect", "prepare", "update", "publish", "report", "save", "evaluate")


def describe_bottleneck(
    learner: Node, processes: Iterable[Node], overlap_options: Sequence[str] = ()
) -> str:
    """Return one sentence about the bottleneck, or an empty text without workers.

    Args:
        learner: The learner's tree.
        processes: The trees of workers, such as `worker-3`, and inference, such as `inference-0`.
        overlap_options: Options that make learner and workers work at the same time.
    """
    # Compute the shares of time that learner and workers wait.
    processes = list(processes)
    workers = [node for node in processes if node.name.startswith("worker-") and _active_ns(node)]
    loop = [child for child in learner.children.values() if child.name in _LOOP_SPANS]
    loop_ns = sum(child.total_ns for child in loop)
    if not workers or not loop_ns:
        return ""
    waits = {process.name: _share(process, "wait") for process in workers}
    learner_waits = _total_ns(learner, "wait_for_workers") / loop_ns
    busiest_wait, median_wait = min(waits.values()), statistics.median(waits.values())
    busiest = next(process for process in workers if waits[process.name] == busiest_wait)
    name = _label(busiest)
    wait_text = f"The learner waits for {learner_waits:.0%} of its loop"

    # Find the stage that the others wait for.
    if learner_waits < _MIN_WAIT and median_wait < _MIN_WAIT:
        return f"none. {wait_text}, workers for {median_wait:.0%} of their time"
    if learner_waits < _MIN_WAIT:
        stage = max(loop, key=lambda child: child.total_ns)
        share = stage.total_ns / loop_ns
        return (
            f"learner. Workers wait for {median_wait:.0%} of their time, while `{stage.name}` "
            f"takes {share:.0%} of the learner's loop"
        )
    if len(workers) > 1 and median_wait - busiest_wait >= _MIN_WAIT_GAP:
        return (
            f"{name}. {wait_text}, workers for {median_wait:.0%} of their time, {name} for "
            f"{busiest_wait:.0%}; {_main_stage(busiest)}"
        )
    if busiest_wait >= _MIN_WAIT:
        options = " or ".join(f"`{option}`" for option in overlap_options)
        return (
            f"none, learner and workers take turns. {wait_text}, workers for {median_wait:.0%} of "
            f"their time{f'. {options} runs them in parallel' if options else ''}"
        )
    inference = [process for process in processes if process.name.startswith("inference-")]
    if inference and _share(busiest, "wait_for_inference") >= 0.5:
        share = 1.0 - max(_share(process, "wait") for process in inference)
        return (
            f"inference. {wait_text}, {name} waits for actions for "
            f"{_share(busiest, 'wait_for_inference'):.0%} of its time; inference is busy for "
            f"{share:.0%}"
        )
    return f"workers. {wait_text}; {_main_stage(busiest)}"


def _main_stage(worker: Node) -> str:
    """Return a sentence about the stage that takes most of a worker's time."""
    stages = [child for child in worker.children.values() if child.kind != "wait"]
    stages = [child for child in stages if child.name != "make_envs"]
    if not stages:
        return f"{_label(worker)} recorded no work"
    stage = max(stages, key=lambda child: child.total_ns)
    share = stage.total_ns / _active_ns(worker)
    return f"`{stage.name}` is {share:.0%} of the time of {_label(worker)}, which waits least"


def _label(worker: Node) -> str:
    return worker.name.replace("-", " ")


def _active_ns(process: Node) -> int:
    """Return the time of a process, without the creation of environments."""
    return process.total_ns - _total_ns(process, "make_envs")


def _share(process: Node, name: str) -> float:
    return _total_ns(process, name) / max(1, _active_ns(process))


def _total_ns(tree: Node, name: str) -> int:
    return sum(node.total_ns for path, node in tree.walk() if path[-1] == name)
