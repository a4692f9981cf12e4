"""Tables that fit a terminal, and are not cut in a pipe."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from hotloop.base.streams import make_console

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


def plain_table() -> Table:
    """Return a table without lines, with two spaces between columns."""
    from rich.table import Table

    return Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")


def wide_console() -> Console:
    """Return a console for the terminal, or a very wide one for a pipe, so that nothing is cut."""
    console = make_console()
    return console if console.is_terminal else make_console(width=10_000, color_system=None)


def print_table(table: Table, console: Console) -> None:
    """Print a table on a console, without trailing blanks."""
    with console.capture() as capture:
        console.print(table)
    lines = capture.get().splitlines()
    # The console has replaced control characters, other than those of its colors.
    write = getattr(sys.stdout, "write_raw", sys.stdout.write)
    write("".join(line.rstrip() + "\n" for line in lines))
    sys.stdout.flush()
