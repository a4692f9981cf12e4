"""Accounting of all transitions, and of the workers' time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hotloop import timing
from hotloop.timing import Node, Recording
from hotloop.timing.policy_shares import has_policy

# Spans of a worker's activities.
_ACTIVITIES = ("act", "env_step", "env_reset", "wait", "wait_for_inference")


@dataclass(frozen=True, kw_only=True)
class WorkerAccount:
    """Counts and times of one worker, over its successive processes.

    Attributes:
        worker: Number of the worker.
        steps: Transitions of its environments.
        restarts: Number of replaced processes.
        env_failures: Number of environments that failed and were replaced.
        step_share, reset_share, act_share, wait_share: Shares of the processes' time. Stepping
            does not include the resets that follow it.
        step_p50_s, step_p99_s: Quantiles of a step's duration, including resets.
        reset_p50_s, reset_p99_s: Quantiles of a reset's duration, NaN without resets.
        lived_s: Total lifetime of its processes.
        node: Last node in a cluster, empty on this machine.
    """

    worker: int
    steps: int = 0
    restarts: int = 0
    env_failures: int = 0
    step_share: float = 0.0
    reset_share: float = 0.0
    act_share: float = 0.0
    wait_share: float = 0.0
    step_p50_s: float = float("nan")
    step_p99_s: float = float("nan")
    reset_p50_s: float = float("nan")
    reset_p99_s: float = float("nan")
    lived_s: float = 0.0
    node: str = ""

    @property
    def active_steps_per_s(self) -> float:
        """Transitions per second of stepping, resetting and acting, 0 without such time."""
        active_s = self.lived_s * (self.step_share + self.reset_share + self.act_share)
        return self.steps / active_s if active_s else 0.0

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain numbers, with None for NaN."""
        return {
            name: None if isinstance(value, float) and math.isnan(value) else value
            for name, value in vars(self).items()
        }


@dataclass(frozen=True, kw_only=True)
class Accounting:
    """Numbers of transitions. `collected = trained + dropped + in_flight` holds at any moment.

    Attributes:
        collected: Transitions that were requested from environments.
        trained: Transitions that were returned to the learner.
        dropped: Dropped transitions by reason: "environment failed", "worker died", "reset" (a step
            that an environment with next-step autoreset spends on the reset), "too old" (with
            `drops_too_old`), "run ended".
        in_flight: Transitions that were collected but not returned yet.
        policy_age: Mean and maximum number of versions between the acting policy and the newest one
            when a transition was returned.
        workers: Accounts of the workers, empty if the learner's process steps the environments.
    """

    collected: int
    trained: int
    dropped: Mapping[str, int] = field(default_factory=dict)
    in_flight: int = 0
    policy_age: tuple[float, int] = (0.0, 0)
    workers: Sequence[WorkerAccount] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain numbers."""
        return {
            "collected": self.collected,
            "trained": self.trained,
            "dropped": dict(self.dropped),
            "in_flight": self.in_flight,
            "policy_age_mean": self.policy_age[0],
            "policy_age_max": self.policy_age[1],
            "workers": [worker.to_json() for worker in self.workers],
        }


def recordings_of_this_run(directory: str) -> list[Recording]:
    """Return the recordings in a directory that began after this process's recording.

    The directory of a resumed run also has those of earlier workers, perhaps from before a reboot.
    """
    try:
        recordings, _ = timing.read_directory(directory)
    except timing.RecordingError:  # the directory can't be created
        return []
    this = timing.current()
    return [x for x in recordings if x.boot_id == this.boot_id and x.start_ns >= this.start_ns]


def time_shares(tree: Node) -> dict[str, float]:
    """Return the times in a worker's timing tree, as fields of `WorkerAccount`."""
    nodes = {name: Node(name) for name in _ACTIVITIES}
    nested_reset_ns = 0
    for path, node in tree.walk():
        if node.name in nodes and not has_policy(node):  # the last policy steps the games
            nodes[node.name].add(node)
        if path[-2:] == ("env_step", "env_reset"):
            nested_reset_ns += node.total_ns
    act, step, reset, wait, inference = nodes.values()
    lifetime_ns = tree.total_ns or 1
    return {
        "step_share": (step.total_ns - nested_reset_ns) / lifetime_ns,
        "reset_share": reset.total_ns / lifetime_ns,
        # Waiting for central inference counts as acting, not as waiting for the learner.
        "act_share": (act.total_ns + inference.total_ns) / lifetime_ns,
        "wait_share": wait.total_ns / lifetime_ns,
        "step_p50_s": step.percentile(50) / 1e9,
        "step_p99_s": step.percentile(99) / 1e9,
        "reset_p50_s": reset.percentile(50) / 1e9,
        "reset_p99_s": reset.percentile(99) / 1e9,
        "lived_s": tree.total_ns / 1e9,
    }
