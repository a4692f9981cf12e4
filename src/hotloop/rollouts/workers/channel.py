"""The channel between a learner and a worker: packets over a pair of connected sockets.

A packet is one byte, a nudge to look at the shared words again, or a message. What is large travels
in a memory file of its own whose descriptor goes along.
"""

from __future__ import annotations

import array
import contextlib
import io
import json
import os
import socket
from collections.abc import Mapping

import numpy as np

from hotloop.rollouts.workers.messages import MESSAGES, Message, Packet
from hotloop.types import Array

NUDGE = b"\0"
_MAX_PACKET = 32_768
_ROOM_FOR_FDS = socket.CMSG_LEN(3 * array.array("i").itemsize)


class Closed(Exception):
    """The other side is gone."""


class Channel:
    """One end.

    Args:
        end: of a pair of `SOCK_SEQPACKET`.
    """

    def __init__(self, end: socket.socket) -> None:
        self.socket = end

    @classmethod
    def pair(cls) -> tuple[Channel, socket.socket]:
        """An end for here, and one to be inherited."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return cls(ours), theirs

    def nudge(self) -> None:
        """Wake the other side; if its queue is full, it has been woken.

        Raises:
            Closed: the other side is gone.
        """
        try:
            self.socket.send(NUDGE, socket.MSG_DONTWAIT)
        except BlockingIOError:
            pass
        except OSError as error:
            raise Closed from error

    def send(
        self,
        message: Message,
        *,
        arrays: Mapping[str, Array] | None = None,
        fd: int = -1,
    ) -> None:
        """Send a message, with arrays or a descriptor.

        Raises:
            Closed: the other side is gone.
        """
        fds: list[int] = []
        own: list[int] = []
        payload = json.dumps(vars(message)).encode()
        kind = type(message).__name__
        header = {"kind": kind, "fd": fd >= 0, "arrays": arrays is not None, "in_file": False}
        if fd >= 0:
            fds.append(fd)
        if arrays is not None:
            buffer = io.BytesIO()
            np.savez(buffer, **arrays)  # pyright: ignore[reportArgumentType]
            own.append(_file_of(buffer.getvalue()))
        if len(payload) > _MAX_PACKET // 2:
            own.append(_file_of(payload))
            header["in_file"], payload = True, b""
        try:
            packet = json.dumps(header).encode() + b"\n" + payload
            socket.send_fds(self.socket, [packet], [*fds, *own])
        except OSError as error:
            raise Closed from error
        finally:
            for one in own:
                os.close(one)

    def receive(self, *, block: bool) -> Packet | None:
        """The next packet; None where there is none and `block` is off.

        Raises:
            Closed: the other side is gone.
        """
        flags = socket.MSG_CMSG_CLOEXEC | (0 if block else socket.MSG_DONTWAIT)
        try:
            # Not `socket.recv_fds`, which does not look at its flags.
            packet, extra, _, _ = self.socket.recvmsg(_MAX_PACKET, _ROOM_FOR_FDS, flags)
        except BlockingIOError:
            return None
        except OSError as error:
            raise Closed from error
        if not packet:
            raise Closed
        if packet == NUDGE:
            return Packet()
        fds = [fd for _, _, content in extra for fd in array.array("i", content)]
        header, payload = packet.split(b"\n", 1)
        about = json.loads(header)
        fd = fds.pop(0) if about["fd"] else -1
        arrays: dict[str, Array] = {}
        if about["arrays"]:
            with np.load(io.BytesIO(_read_file(fds.pop(0))), allow_pickle=False) as file:
                arrays = dict(file)
        if about["in_file"]:
            payload = _read_file(fds.pop(0))
        return Packet(MESSAGES[about["kind"]](**json.loads(payload)), arrays, fd)

    def close(self) -> None:
        """Close this end; the other one sees it. Harmless when repeated."""
        with contextlib.suppress(OSError):
            self.socket.close()


def _file_of(content: bytes) -> int:
    fd = os.memfd_create("hotloop-message", os.MFD_CLOEXEC)
    with os.fdopen(os.dup(fd), "wb") as file:
        file.write(content)
    return fd


def _read_file(fd: int) -> bytes:
    with os.fdopen(fd, "rb") as file:
        file.seek(0)
        return file.read()
