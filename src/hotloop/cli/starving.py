"""Name the stage that the others of a training wait for: learner, inference, workers."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from pathlib import Path

from hotloop import timing
from hotloop.timing import Node, Recording

# A stage waits for less than this: nobody starves it.
_LITTLE = 0.1
# Who waits so much more than the one that waits least, waits for that one.
_FAR = 0.25
_LOOP = ("collect", "prepare", "update", "publish", "report", "save", "evaluate")


def last_processes(run_dir: Path) -> tuple[Recording | None, list[Recording]]:
    """Return the recording of a run's last learner, and those of its workers and inference."""
    recordings, _ = timing.read_directory(run_dir / "timing")
    learners = [one for one in recordings if one.component == "learner"]
    if not learners:
        return None, []
    last = max(learners, key=lambda one: one.start_ns)
    # Not by its number, which actors of Ray have not as their parent: those of a run that this one
    # goes on from lie earlier.
    return last, [
        one
        for one in recordings
        if one.component.startswith(("worker-", "inference-")) and one.start_ns >= last.start_ns
    ]


def print_of_run(run_dir: Path) -> None:
    """Print who waits for whom in a run's last process; nothing where it had no workers."""
    learner, others = last_processes(run_dir)
    if learner is None:
        return
    trees: dict[str, Node] = {}
    for one in others:  # processes that followed each other are one worker
        trees.setdefault(one.component, Node(one.component)).add(one.tree())
    sentence = told(learner.tree(), trees.values())
    if sentence:
        print(f"\nwho waits: {sentence}")


def told(learner: Node, others: Iterable[Node]) -> str:
    """Say in one sentence who waits for whom; nothing where there are no workers.

    Args:
        learner: its tree.
        others: of each worker, named `worker-3`, and of inference processes, `inference-0`.
    """
    others = list(others)
    workers = [one for one in others if one.name.startswith("worker-") and _at_work_ns(one)]
    loop = [child for child in learner.children.values() if child.name in _LOOP]
    loop_ns = sum(child.total_ns for child in loop)
    if not workers or not loop_ns:
        return ""
    waits = {one.name: _share(one, "wait") for one in workers}
    learner_waits = _total_ns(learner, "wait_for_workers") / loop_ns
    least, middle = min(waits.values()), statistics.median(waits.values())
    busiest = next(one for one in workers if waits[one.name] == least)
    name = _named(busiest)
    it_waits = f"the learner waits for {learner_waits:.0%} of its loop"

    if learner_waits < _LITTLE and middle < _LITTLE:
        return f"nobody starves: {it_waits}, workers for {middle:.0%} of their time"
    if learner_waits < _LITTLE:
        stage = max(loop, key=lambda child: child.total_ns)
        share = stage.total_ns / loop_ns
        return (
            f"the learner starves the workers: they wait for {middle:.0%} of their time, while "
            f"`{stage.name}` takes {share:.0%} of its loop"
        )
    if len(workers) > 1 and middle - least >= _FAR:
        return (
            f"{name} starves the learner and the other workers: {it_waits}, workers for "
            f"{middle:.0%} of their time, {name} for {least:.0%}; {_doing(busiest)}"
        )
    if least >= _LITTLE:
        return (
            f"learner and workers take turns: {it_waits}, workers for {middle:.0%} of their time; "
            "`--overlap`, or appo's `--schedule lag:1` or async, lets them work side by side"
        )
    inference = [one for one in others if one.name.startswith("inference-")]
    if inference and _share(busiest, "wait_for_inference") >= 0.5:
        share = 1.0 - max(_share(one, "wait") for one in inference)
        return (
            f"inference starves workers and learner: {it_waits}, {name} waits for actions for "
            f"{_share(busiest, 'wait_for_inference'):.0%} of its time; inference is at work for "
            f"{share:.0%}"
        )
    return f"the workers starve the learner: {it_waits}; {_doing(busiest)}"


def _doing(worker: Node) -> str:
    """What a worker spends most of its time with."""
    stages = [child for child in worker.children.values() if child.kind != "wait"]
    stages = [child for child in stages if child.name != "make_envs"]
    if not stages:
        return f"{_named(worker)} does nothing that was recorded"
    stage = max(stages, key=lambda child: child.total_ns)
    share = stage.total_ns / _at_work_ns(worker)
    return f"`{stage.name}` is {share:.0%} of the time of {_named(worker)}, which waits least"


def _named(worker: Node) -> str:
    return worker.name.replace("-", " ")


def _at_work_ns(process: Node) -> int:
    """Its time, but for making environments."""
    return process.total_ns - _total_ns(process, "make_envs")


def _share(process: Node, name: str) -> float:
    return _total_ns(process, name) / max(1, _at_work_ns(process))


def _total_ns(tree: Node, name: str) -> int:
    """Of all spans of that name, wherever they are."""
    return sum(node.total_ns for path, node in tree.walk() if path[-1] == name)
