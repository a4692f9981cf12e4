"""Timing recordings of actors, each written on the actor's node."""

from __future__ import annotations

import json
import os
from typing import NamedTuple

from hotloop import timing
from hotloop.base import startup
from hotloop.rollouts.ray.node_watch import directory_on


class RecordingOptions(NamedTuple):
    """Options of an actor's timing recording.

    Attributes:
        component: Name of the actor in the recording.
        timing_dir: Directory on the learner's node. Empty: no recording.
        learner_node, job: Ray's ids. On another node, an actor records in a directory that a
            `NodeWatch` reads.
        profile: Settings of the learner's profile, from `HOTLOOP_PROFILE`. Empty: no profile.
        functions: Functions that begin the profile of a program, see `hotloop.base.startup`.
    """

    component: str
    timing_dir: str
    learner_node: str
    job: str
    profile: str
    functions: str


def start_recording(options: RecordingOptions) -> str:
    """Start recording this actor, and profile it if the learner is profiled.

    Returns:
        The actor's node.
    """
    import ray

    node = ray.get_runtime_context().get_node_id()
    timing_dir = options.timing_dir
    is_elsewhere = node != options.learner_node
    node_dir = directory_on(node, options.job)
    if options.profile and "HOTLOOP_PROFILE" not in os.environ:
        settings = json.loads(options.profile)
        if is_elsewhere:
            settings["directory"] = node_dir
        os.environ["HOTLOOP_PROFILE"] = json.dumps(settings)
        os.environ[startup.VARIABLE] = options.functions
        startup.call_functions()
    if timing_dir and (is_elsewhere or os.path.isdir(timing_dir)):
        directory = os.path.join(node_dir, "timing") if is_elsewhere else timing_dir
        timing.start(directory, component=options.component)
    return node
