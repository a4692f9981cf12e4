"""A program of the learner's, at the other end of a channel: a worker, or the inference process.

`WorkerProcess` starts it with a descriptor and the learner's process number. It ends when the
learner closes its end of the channel, or dies.
"""

from __future__ import annotations

import contextlib
import os
import socket
import traceback
from collections.abc import Callable, Mapping
from typing import TypeVar

from hotloop import timing
from hotloop.errors import EnvironmentFailure, MaskError, NonFiniteStep
from hotloop.rollouts.workers.channel import Channel, Closed
from hotloop.rollouts.workers.messages import Failure, Greeting, InferenceSetup, Setup
from hotloop.streams import steady_output
from hotloop.types import Array

_Kind = TypeVar("_Kind", Greeting, Setup, InferenceSetup)


def run(arguments: list[str], serve: Callable[[Channel, Greeting, int], None]) -> int:
    """Serve the learner until it is gone.

    Args:
        arguments: a descriptor and the learner's process number.
        serve: does so, with the channel, the greeting and the learner's process number.

    Returns:
        The process's exit code.
    """
    descriptor, parent = map(int, arguments)
    channel = Channel(socket.socket(fileno=descriptor))
    try:
        greeting, _, _ = receive(channel, Greeting)
        # Who deletes or moves a run's directory does not want it made again.
        if os.path.isdir(greeting.timing_dir):
            timing.start(greeting.timing_dir, component=greeting.component)
        try:
            with steady_output():  # what environments print may have nowhere to go
                serve(channel, greeting, parent)
        except Closed:
            raise
        except Exception as error:  # also a defect, or what an environment raises outside of calls
            tell(channel, error, is_final=True)
            return 1
    except Closed:
        pass
    return 0


def receive(channel: Channel, kind: type[_Kind]) -> tuple[_Kind, Mapping[str, Array], int]:
    """Wait for a message, past the nudges before it."""
    packet = channel.receive(block=True)
    while packet is not None and packet.message is None:
        packet = channel.receive(block=True)
    assert packet is not None
    assert isinstance(packet.message, kind)
    return packet.message, packet.arrays, packet.fd


def tell(channel: Channel, error: BaseException, *, is_final: bool) -> None:
    """Say what went wrong, in the learner's words and with the traceback of here."""
    can_be_mended = isinstance(error, EnvironmentFailure) and not isinstance(
        error, NonFiniteStep | MaskError
    )
    failure = Failure(
        message=str(error),
        is_final=is_final,
        can_be_mended=can_be_mended,
        type=type(error).__name__,
        traceback="".join(traceback.format_exception(error)),
    )
    with contextlib.suppress(Closed):
        channel.send(failure)


def look_for(parent: int) -> None:
    """Make sure that the learner lives.

    Raises:
        Closed: it does not; another process may hold its end of the channel open.
    """
    if os.getppid() != parent:
        raise Closed
