"""A channel between the learner and a worker: packets over a pair of connected sockets.

A packet is a message or a nudge, one byte that makes the receiver read the shared counters. Large
contents travel in a memory file, whose descriptor is sent with the packet.
"""

from __future__ import annotations

import array
import contextlib
import io
import json
import os
import socket
from collections import deque
from collections.abc import Mapping

import numpy as np

from hotloop.rollouts.processes.messages import MESSAGES, Message, Packet
from hotloop.types import Array

NUDGE = b"\0"
_MAX_PACKET = 32_768
_ANCILLARY_BYTES = socket.CMSG_LEN(3 * array.array("i").itemsize)


class ChannelClosed(Exception):
    """The other end of the channel is closed."""


class Channel:
    """One end of a channel.

    Args:
        end: One socket of a `SOCK_SEQPACKET` pair.
    """

    def __init__(self, end: socket.socket) -> None:
        self.socket = end
        self._kept: deque[Packet] = deque()

    @classmethod
    def pair(cls) -> tuple[Channel, socket.socket]:
        """Return a channel for this process and the socket that a child process inherits."""
        local_end, remote_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return cls(local_end), remote_end

    def nudge(self) -> None:
        """Wake the other process. A full queue means that it has been woken already.

        Raises:
            ChannelClosed: The other end is closed.
        """
        try:
            self.socket.send(NUDGE, socket.MSG_DONTWAIT)
        except BlockingIOError:
            pass
        except OSError as error:
            raise ChannelClosed from error

    def send(
        self,
        message: Message,
        *,
        arrays: Mapping[str, Array] | None = None,
        fd: int = -1,
    ) -> None:
        """Send a message, optionally with arrays or a file descriptor.

        Raises:
            ChannelClosed: The other end is closed.
        """
        fds: list[int] = []
        file_fds: list[int] = []
        payload = json.dumps(vars(message)).encode()
        kind = type(message).__name__
        header = {"kind": kind, "fd": fd >= 0, "arrays": arrays is not None, "in_file": False}
        if fd >= 0:
            fds.append(fd)
        if arrays is not None:
            buffer = io.BytesIO()
            np.savez(buffer, **arrays)  # pyright: ignore[reportArgumentType]
            file_fds.append(_write_file(buffer.getvalue()))
        if len(payload) > _MAX_PACKET // 2:
            file_fds.append(_write_file(payload))
            header["in_file"], payload = True, b""
        try:
            packet = json.dumps(header).encode() + b"\n" + payload
            socket.send_fds(self.socket, [packet], [*fds, *file_fds])
        except OSError as error:
            raise ChannelClosed from error
        finally:
            for file_fd in file_fds:
                os.close(file_fd)

    def receive(self, *, block: bool) -> Packet | None:
        """Return the next packet, or None if there is none and `block` is False.

        Raises:
            ChannelClosed: The other end is closed.
        """
        return self._kept.popleft() if self._kept else self._read(block=block)

    def _read(self, *, block: bool) -> Packet | None:
        """Return the next packet, or None if `block` is False and there is none."""
        flags = socket.MSG_CMSG_CLOEXEC | (0 if block else socket.MSG_DONTWAIT)
        try:
            # `socket.recv_fds` ignores its flags.
            packet, ancillary, _, _ = self.socket.recvmsg(_MAX_PACKET, _ANCILLARY_BYTES, flags)
        except BlockingIOError:
            return None
        except OSError as error:
            raise ChannelClosed from error
        if not packet:
            raise ChannelClosed
        if packet == NUDGE:
            return Packet()
        fds = [fd for _, _, content in ancillary for fd in array.array("i", content)]
        header, payload = packet.split(b"\n", 1)
        fields = json.loads(header)
        fd = fds.pop(0) if fields["fd"] else -1
        arrays: dict[str, Array] = {}
        if fields["arrays"]:
            with np.load(io.BytesIO(_read_file(fds.pop(0))), allow_pickle=False) as file:
                arrays = dict(file)
        if fields["in_file"]:
            payload = _read_file(fds.pop(0))
        return Packet(MESSAGES[fields["kind"]](**json.loads(payload)), arrays, fd)

    def take_nudge(self) -> None:
        """Take the next packet from the socket, and keep it for `receive` if it is a message.

        Raises:
            ChannelClosed: The other end is closed.
        """
        packet = self._read(block=False)
        if packet is not None and packet.message is not None:
            self._kept.append(packet)

    def close(self) -> None:
        """Close this end, which the other process notices. Further calls have no effect."""
        with contextlib.suppress(OSError):
            self.socket.close()


def _write_file(content: bytes) -> int:
    fd = os.memfd_create("hotloop-message", os.MFD_CLOEXEC)
    with os.fdopen(os.dup(fd), "wb") as file:
        file.write(content)
    return fd


def _read_file(fd: int) -> bytes:
    with os.fdopen(fd, "rb") as file:
        file.seek(0)
        return file.read()
