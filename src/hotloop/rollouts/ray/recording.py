"""Recordings of actors: each records itself, on the node that it is on."""

from __future__ import annotations

import importlib
import json
import os
from typing import NamedTuple

from hotloop import timing
from hotloop.rollouts.ray.node_watch import directory_on


class Recorded(NamedTuple):
    """Where an actor records.

    Attributes:
        component: what it is called.
        timing_dir: where, on the learner's node; empty: nowhere.
        learner_node, job: of Ray. On another node it records where a `NodeWatch` finds it.
        profile: how the learner is profiled, as `hotloop profile` tells its processes; empty: not.
    """

    component: str
    timing_dir: str
    learner_node: str
    job: str
    profile: str


def record(recorded: Recorded) -> str:
    """Record this actor from here on; where the learner is profiled, profile it.

    Returns:
        The node that it is on.
    """
    import ray

    node = ray.get_runtime_context().get_node_id()
    timing_dir = recorded.timing_dir
    is_elsewhere = node != recorded.learner_node
    own = directory_on(node, recorded.job)
    if recorded.profile and "HOTLOOP_PROFILE" not in os.environ:
        settings = json.loads(recorded.profile)
        if is_elsewhere:
            settings["directory"] = own
        os.environ["HOTLOOP_PROFILE"] = json.dumps(settings)
        importlib.import_module("hotloop.profiler.collect.processes").begin_in_child()
    if timing_dir and (is_elsewhere or os.path.isdir(timing_dir)):
        directory = os.path.join(own, "timing") if is_elsewhere else timing_dir
        timing.start(directory, component=recorded.component)
    return node
