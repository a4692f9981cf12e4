"""Tables that fit a terminal, and that a pipe gets whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


def plain_table() -> Table:
    """A table without lines, its columns two spaces apart."""
    from rich.table import Table

    return Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")


def wide_console() -> Console:
    """The terminal; for a pipe, which has no width, one in which nothing is folded or cut."""
    from rich.console import Console

    console = Console()
    return console if console.is_terminal else Console(width=10_000, color_system=None)


def print_table(table: Table, console: Console) -> None:
    """Print to `wide_console`, without the blanks that fill a row's end."""
    with console.capture() as capture:
        console.print(table)
    lines = capture.get().splitlines()
    print("\n".join(line.rstrip() for line in lines), flush=True)
