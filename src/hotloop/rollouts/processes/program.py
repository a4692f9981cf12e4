"""The program frame of a worker and of the inference process.

`WorkerProcess` starts it with a file descriptor and the learner's process number. It ends when the
learner closes its end of the channel, or dies.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import traceback
from collections.abc import Callable, Mapping
from typing import TypeVar

from hotloop import timing
from hotloop.base.importing import describe_exception
from hotloop.base.signals import ignore_job_warnings
from hotloop.base.streams import short_warnings, steady_output
from hotloop.errors import EnvironmentFailure, MaskError, NonFiniteStep
from hotloop.rollouts.inference.wakeups import clear_wakeup
from hotloop.rollouts.processes.channel import Channel, ChannelClosed
from hotloop.rollouts.processes.messages import (
    CallRequest,
    Failure,
    Greeting,
    InferenceSetup,
    Packet,
    Setup,
)
from hotloop.types import Array

_MessageT = TypeVar("_MessageT", Greeting, Setup, InferenceSetup)

# Interval at which a waiting process reads the shared memory, in case it missed a wake-up.
POLL_S = 0.1


def run(arguments: list[str], serve: Callable[[Channel, Greeting, int], None]) -> int:
    """Serve the learner until it is gone, and return the exit code.

    Args:
        arguments: A file descriptor and the learner's process number.
        serve: Called with the channel, the greeting and the learner's process number.
    """
    ignore_job_warnings()
    fd, parent_pid = map(int, arguments)
    channel = Channel(socket.socket(fileno=fd))
    try:
        greeting, _, _ = receive(channel, Greeting)
        # A run directory that was deleted or moved must not be created again.
        if os.path.isdir(greeting.timing_dir):
            timing.start(greeting.timing_dir, component=greeting.component)
        try:
            with steady_output(), short_warnings():  # environments may print to closed streams
                serve(channel, greeting, parent_pid)
        except ChannelClosed:
            raise
        except Exception as error:  # also bugs of hotloop, and errors outside of environment calls
            send_failure(channel, error, is_final=True)
            return 1
        except KeyboardInterrupt as error:  # not Ctrl-C, which does not reach this process
            problem = f"an environment raised {describe_exception(error)}"
            send_failure(channel, EnvironmentFailure(problem), is_final=True)
            return 1
    except ChannelClosed:
        pass
    return 0


def receive(
    channel: Channel,
    kind: type[_MessageT],
    *,
    on_other: Callable[[Packet], None] = lambda packet: None,
) -> tuple[_MessageT, Mapping[str, Array], int]:
    """Wait for a message, and pass nudges and calls to `on_other`."""
    packet = channel.receive(block=True)
    while packet is not None and isinstance(packet.message, CallRequest | None):
        on_other(packet)
        packet = channel.receive(block=True)
    assert packet is not None
    assert isinstance(packet.message, kind)
    return packet.message, packet.arrays, packet.fd


def send_failure(channel: Channel, error: BaseException, *, is_final: bool) -> None:
    """Send the text and the traceback of an error to the learner."""
    is_recoverable = isinstance(error, EnvironmentFailure) and not isinstance(
        error, NonFiniteStep | MaskError
    )
    failure = Failure(
        message=str(error),
        is_final=is_final,
        is_recoverable=is_recoverable,
        type=type(error).__name__,
        traceback="".join(traceback.format_exception(error)),
    )
    with contextlib.suppress(ChannelClosed):
        channel.send(failure)


def wait_for_wakeup(wakeup_fd: int, channel: Channel, parent_pid: int) -> None:
    """Wait until a worker or inference wakes this process, or the learner writes; 0.1 s at most.

    Raises:
        ChannelClosed: The learner is gone.
    """
    ready, _, _ = select.select([wakeup_fd, channel.socket], [], [], POLL_S)
    clear_wakeup(wakeup_fd)
    if channel.socket in ready:
        channel.take_nudge()
    elif not ready:
        check_parent(parent_pid)


def check_parent(parent_pid: int) -> None:
    """Check that the learner is alive. Another process may hold its end of the channel open.

    Raises:
        ChannelClosed: The learner is dead.
    """
    if os.getppid() != parent_pid:
        raise ChannelClosed
