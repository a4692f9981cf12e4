"""Output that fails nobody: what can't be printed is lost, and the command goes on to its end."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, TextIO, cast


class OutStream:
    """Standard output or standard error, which raises nothing when it can't be written.

    From then on it leads nowhere, and its descriptor too: what environments and C libraries print,
    and what Python still holds at its exit.

    Args:
        stream: what it writes to.

    Attributes:
        error: why it can't be written; None as long as it can.
    """

    def __init__(self, stream: TextIO) -> None:
        self.error: Exception | None = None
        self._stream = stream

    def write(self, text: str) -> int:
        """See `TextIO.write`."""
        if self.error is None:
            try:
                self._stream.write(text)
            except UnicodeEncodeError as error:  # of a stream that could not be reconfigured
                self._stream.write(text.encode(error.encoding, "replace").decode(error.encoding))
            except (OSError, ValueError) as error:  # a ValueError: somebody closed it
                self._give_up(error)
        return len(text)

    def flush(self) -> None:
        """See `TextIO.flush`."""
        if self.error is None:
            try:
                self._stream.flush()
            except (OSError, ValueError) as error:
                self._give_up(error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _give_up(self, error: Exception) -> None:
        self.error = error
        with suppress(OSError, ValueError):  # a stream without a descriptor: it is left alone
            number = self._stream.fileno()
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, number)
            os.close(nowhere)


@contextmanager
def steady_output() -> Iterator[OutStream]:
    """Make standard output and standard error `OutStream`s for the body, and yield the first.

    Characters that their encoding lacks are replaced. Where they are closed, they lead nowhere.
    """
    _hold_descriptors()
    before = sys.stdout, sys.stderr
    with ExitStack() as exits:
        nowhere = exits.enter_context(open(os.devnull, "w", encoding="utf-8"))
        # None: its descriptor was closed when Python started.
        streams = [_steady(stream or nowhere, exits) for stream in before]
        sys.stdout, sys.stderr = (cast("TextIO", stream) for stream in streams)
        try:
            yield streams[0]
        finally:
            for stream in streams:
                stream.flush()
            sys.stdout, sys.stderr = before


def _steady(stream: TextIO, exits: ExitStack) -> OutStream:
    with suppress(AttributeError, OSError, ValueError):  # not every stream can, nor must
        errors = stream.errors
        cast("Any", stream).reconfigure(errors="replace")
        exits.callback(_restore, stream, errors)
    return OutStream(stream)


def _restore(stream: Any, errors: str | None) -> None:
    with suppress(OSError, ValueError):
        stream.reconfigure(errors=errors)


def _hold_descriptors() -> None:
    """Open those of 0, 1 and 2 that are closed.

    Else the next file to be opened takes the number, and gets what C libraries print into it.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gives the lowest number that is free
            os.set_inheritable(number, True)
