"""Print the bottleneck of a training: learner, inference or workers."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path
from typing import Any

from hotloop import timing
from hotloop.base import documents
from hotloop.base.crowding import Crowding
from hotloop.errors import ConfigError, HotloopError, UnknownNameError
from hotloop.rollouts.planning.bottleneck import describe_bottleneck
from hotloop.timing import Node, Recording

# Options, and their values, that make learner and workers work at the same time.
_OVERLAPPING: dict[str, dict[str, Any]] = {
    "--overlap": {"overlap": True},
    "--schedule lag:1": {"schedule": "lag:1"},
    "--schedule async": {"schedule": "async"},
}


def last_processes(run_dir: Path) -> tuple[Recording | None, list[Recording]]:
    """Return the recordings of a run's last learner, and of its workers and inference processes."""
    from hotloop.runs.run_status import last_learner

    recordings, _ = timing.read_directory(run_dir / "timing")
    last = last_learner(recordings)
    if last is None:
        return None, []
    # Select by start time, since Ray actors are no children of the learner. Processes of an earlier
    # part of a resumed run have started before it, perhaps before a reboot.
    return last, [
        recording
        for recording in recordings
        if recording.component.startswith(("worker-", "inference-"))
        and recording.boot_id == last.boot_id
        and recording.start_ns >= last.start_ns
    ]


def print_bottleneck(run_dir: Path) -> None:
    """Print the bottleneck of a run's last process, if it had workers."""
    learner, recordings = last_processes(run_dir)
    if learner is None:
        return
    trees: dict[str, Node] = {}
    for recording in recordings:  # a worker and its replacements count as one
        trees.setdefault(recording.component, Node(recording.component)).add(recording.tree())
    sentence = describe_bottleneck(learner.tree(), trees.values(), _overlap_options(run_dir))
    if sentence:
        print(f"\nbottleneck: {sentence}")


def _overlap_options(run_dir: Path) -> list[str]:
    """Return the options that would make a run's learner and workers work at the same time.

    There are none if the run has such an option, or if it leaves no core idle. Each option is valid
    together with the run's other options.
    """
    from hotloop.runs import RunDirectory

    with contextlib.suppress(OSError, ValueError):
        crowding = Crowding.from_json(documents.read(run_dir / "cores.json"))
        if crowding is not None and not crowding.leaves_cores_idle:
            return []
    options: list[str] = []
    with contextlib.suppress(HotloopError, ImportError):
        content = RunDirectory.open(run_dir).config
        if ":" in content["algorithm"]:  # a report does not import a user's module
            return []
        from hotloop.algorithms import find
        from hotloop.training.options import from_stored

        config = from_stored(find(content["algorithm"]).config, content["config"])
        if config.overlap or config.schedule not in ("barrier", "variable"):
            return []
        for option, changes in _OVERLAPPING.items():
            with contextlib.suppress(ConfigError, UnknownNameError):
                dataclasses.replace(config, **changes)
                options.append(option)
    return options
