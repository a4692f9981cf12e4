"""Standard streams of commands: failed writes do not stop them, and text from outside is plain."""

from __future__ import annotations

import os
import re
import shutil
import sys
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Literal, TextIO, cast

from hotloop.base.redaction import without_secrets

if TYPE_CHECKING:
    from rich.console import Console

# Characters that a terminal executes or hides: all controls but tab and line feed, marks that
# change the direction of text, invisible ones (but the joiners of many scripts), other line ends,
# and halves of surrogate pairs (bytes that are no UTF-8).
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f"
    "\ud800-\udfff\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)
# Gymnasium colors its warnings, also in a pipe.
_COLORS = re.compile(r"\x1b\[[0-9;]*m")
# Packages whose output repeats names and values that hotloop did not choose. Others may color it.
_REPEATING = ("hotloop", "argparse", "traceback")


def printable(text: str) -> str:
    """Return a text without characters that control a terminal: U+FFFD replaces each of them."""
    return _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", text)


def make_console(file: TextIO | None = None, *, width: int | None = None) -> Console:
    """Return a rich console that prints its styles, but no control characters of its texts.

    Styles are for terminals that can show them. `NO_COLOR` removes them, bold ones included, and
    `FORCE_COLOR` prints them elsewhere too.

    Args:
        file: The stream; standard output by default.
        width: Its width; that of the terminal by default.
    """
    from rich.console import Console
    from rich.segment import Segment

    class PlainTextConsole(Console):
        def render(self, renderable: Any, options: Any = None) -> Any:
            for segment in super().render(renderable, options):
                if not segment.control:
                    segment = Segment(printable(segment.text), segment.style)
                yield segment

    stream = file or sys.stdout
    is_terminal = _is_terminal(stream)
    if is_terminal and not is_redrawable(stream):  # rich would assume 80 columns
        width = width or shutil.get_terminal_size().columns
    colors: Literal["auto", "standard"] | None = "auto"
    if os.environ.get("NO_COLOR"):
        colors = None
    elif os.environ.get("FORCE_COLOR", "0") not in ("", "0") and not is_redrawable(stream):
        colors = "standard"
    return PlainTextConsole(file=file, width=width, force_terminal=is_terminal, color_system=colors)


def is_redrawable(stream: TextIO) -> bool:
    """Return whether a stream is a terminal that can move its cursor and show colors."""
    return _is_terminal(stream) and os.environ.get("TERM", "").lower() not in ("dumb", "unknown")


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except (AttributeError, ValueError):  # the stream is missing or closed
        return False


class OutStream:
    """Standard output or standard error, without errors for writes that fail.

    After a failure the stream and its file descriptor lead to /dev/null. This includes the output
    of environments and C libraries, and the text that Python flushes at exit.

    What hotloop prints itself is `printable`: names of files, functions and environments may
    contain control characters. Output of environments and of rich, which prints colors, passes as
    it is.

    Attributes:
        error: The error of the first write that failed, or None.
    """

    def __init__(self, stream: TextIO) -> None:
        self.error: Exception | None = None
        self._stream = stream

    def write(self, text: str) -> int:
        """See `TextIO.write`."""
        writer = sys._getframe(1).f_globals.get("__name__", "")  # `print` has no frame
        if writer.partition(".")[0] in _REPEATING:
            text = printable(text)
        return self.write_raw(text)

    def write_raw(self, text: str) -> int:
        """Write a text with its control characters, such as a table with colors."""
        if self.error is None:
            try:
                self._stream.write(text)
            except UnicodeEncodeError as error:  # this stream could not be reconfigured
                self._stream.write(text.encode(error.encoding, "replace").decode(error.encoding))
            except (OSError, ValueError) as error:  # ValueError: the stream is closed
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
        with suppress(OSError, ValueError):  # the stream has no descriptor
            number = self._stream.fileno()
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, number)
            os.close(nowhere)


@contextmanager
def short_warnings() -> Iterator[None]:
    """Print each warning as one plain line, with its file and line if another package warns."""
    package_dir = os.path.dirname(os.path.dirname(__file__)) + os.sep

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        text = " ".join(_COLORS.sub("", str(message)).split())
        if not filename.startswith(package_dir):
            text += f" ({os.path.basename(filename)}:{lineno})"
        print(f"hotloop: warning: {without_secrets(text)}", file=file or sys.stderr)

    original = warnings.showwarning
    warnings.showwarning = show
    try:
        yield
    finally:
        warnings.showwarning = original


@contextmanager
def steady_output() -> Iterator[OutStream]:
    """Make standard output and standard error ignore failed writes, and yield the first.

    Characters outside of their encoding are replaced. Closed streams lead to /dev/null.
    """
    _hold_descriptors()
    before = sys.stdout, sys.stderr
    with ExitStack() as exits:
        nowhere = exits.enter_context(open(os.devnull, "w", encoding="utf-8"))
        # A stream is None if its descriptor was closed when Python started.
        streams = [_steady(stream or nowhere, exits) for stream in before]
        sys.stdout, sys.stderr = (cast("TextIO", stream) for stream in streams)
        try:
            yield streams[0]
        finally:
            for stream in streams:
                stream.flush()
            sys.stdout, sys.stderr = before


def _steady(stream: TextIO, exits: ExitStack) -> OutStream:
    with suppress(AttributeError, OSError, ValueError):  # not every stream can be reconfigured
        errors = stream.errors
        cast("Any", stream).reconfigure(errors="replace")
        exits.callback(_restore, stream, errors)
    return OutStream(stream)


def _restore(stream: Any, errors: str | None) -> None:
    with suppress(OSError, ValueError):
        stream.reconfigure(errors=errors)


def _hold_descriptors() -> None:
    """Open the file descriptors 0, 1 and 2 if they are closed."""
    # Otherwise the next file that is opened takes the number, and C libraries print into it.
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # returns the lowest free number
            os.set_inheritable(number, True)


def notify(message: str) -> None:
    """Print a line on standard error, without secrets that an error of a library may repeat."""
    print(f"hotloop: {without_secrets(message)}", file=sys.stderr)
