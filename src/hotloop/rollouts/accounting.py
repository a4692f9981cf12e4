"""Accounts of every transition, and of each worker's time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hotloop.timing import Node


@dataclass(frozen=True, kw_only=True)
class WorkerAccount:
    """One worker: over all processes that were it, one after another.

    Attributes:
        worker: its number.
        steps: transitions of its environments.
        restarts: how often its process was replaced.
        env_failures: how often one of its environments failed and was made anew.
        step_share, reset_share, act_share, wait_share: of its processes' time. Stepping does not
            include the resets that follow it.
        step_p50_s, step_p99_s: of a step of its environments, the resets in it included.
        reset_p50_s, reset_p99_s: of a reset; NaN where there was none.
        lived_s: time of its processes.
        node: of a cluster, where it was last; empty: this machine.
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
        """Transitions for each second that it stepped, reset and acted; 0 where it did not."""
        active_s = self.lived_s * (self.step_share + self.reset_share + self.act_share)
        return self.steps / active_s if active_s else 0.0

    def to_json(self) -> dict[str, Any]:
        """As plain numbers; None where there is none."""
        return {
            name: None if isinstance(value, float) and math.isnan(value) else value
            for name, value in vars(self).items()
        }


@dataclass(frozen=True, kw_only=True)
class Accounting:
    """`collected = trained + dropped + in flight`, at any moment.

    Attributes:
        collected: transitions that environments were asked for.
        trained: handed to the learner.
        dropped: by reason: "environment failed", "worker died", "reset" (a step that an environment
            with next-step autoreset spends on it), "too old" (where that is asked for), "run
            ended".
        in_flight: collected, and not handed over yet.
        policy_age: versions between the policy that acted and the newest one when a transition was
            handed over: the mean and the greatest.
        workers: one for each; none where the learner's own process steps the environments.
    """

    collected: int
    trained: int
    dropped: Mapping[str, int] = field(default_factory=dict)
    in_flight: int = 0
    policy_age: tuple[float, int] = (0.0, 0)
    workers: Sequence[WorkerAccount] = ()

    def to_json(self) -> dict[str, Any]:
        """As plain numbers."""
        return {
            "collected": self.collected,
            "trained": self.trained,
            "dropped": dict(self.dropped),
            "in_flight": self.in_flight,
            "policy_age_mean": self.policy_age[0],
            "policy_age_max": self.policy_age[1],
            "workers": [worker.to_json() for worker in self.workers],
        }


def shares_of(tree: Node) -> dict[str, float]:
    """What a worker's timing tree says, as fields of `WorkerAccount`."""
    step, reset = Node("env_step"), Node("env_reset")
    found = {"act": 0, "env_step": 0, "env_reset": 0, "wait": 0, "wait_for_inference": 0}

    def walk(node: Node) -> None:
        for child in node.children.values():
            if child.name in found:
                found[child.name] += child.total_ns
            if child.name == "env_step":
                _add(step, child)
            elif child.name == "env_reset":
                _add(reset, child)
                if node.name == "env_step":
                    found["env_step"] -= child.total_ns
            walk(child)

    walk(tree)
    whole = tree.total_ns or 1
    return {
        "step_share": found["env_step"] / whole,
        "reset_share": found["env_reset"] / whole,
        # Who has another process act waits for that, and not for the learner.
        "act_share": (found["act"] + found["wait_for_inference"]) / whole,
        "wait_share": found["wait"] / whole,
        "step_p50_s": step.percentile(50) / 1e9,
        "step_p99_s": step.percentile(99) / 1e9,
        "reset_p50_s": reset.percentile(50) / 1e9,
        "reset_p99_s": reset.percentile(99) / 1e9,
        "lived_s": tree.total_ns / 1e9,
    }


def _add(total: Node, node: Node) -> None:
    """Take a node's spans into another's percentiles."""
    total.min_ns = min(total.min_ns, node.min_ns) if total.count else node.min_ns
    total.max_ns = max(total.max_ns, node.max_ns)
    total.count += node.count
    total.total_ns += node.total_ns
    total.histogram += node.histogram
