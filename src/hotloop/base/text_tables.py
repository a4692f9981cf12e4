"""Tables that fit a terminal, and are not cut in a pipe, and JSON instead of them."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from hotloop.base.documents import finite
from hotloop.base.streams import make_console

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


def plain_table() -> Table:
    """Return a table without lines, with two spaces between columns."""
    from rich.table import Table

    return Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")


def print_columns(
    columns: Sequence[tuple[str, Sequence[str]]],
    *,
    num_labels: int = 1,
    num_texts: int = 0,
    justify: Literal["left", "right"] = "left",
) -> None:
    """Print a table of columns, each a heading and its cells.

    In a terminal, columns that do not fit beside the others go into another table below, with the
    labels of the rows in front of them again. In a pipe, each row is one line.

    Args:
        columns: the columns. All have the same number of cells.
        num_labels: number of columns, at the left, that name the rows.
        num_texts: number of columns, at the right, that have text. Others have numbers, which are
            aligned at the right and do not wrap.
        justify: alignment of the columns that name the rows.
    """
    from rich.cells import cell_len
    from rich.text import Text

    console = wide_console()
    widths = [max(map(cell_len, (heading, *cells))) + 2 for heading, cells in columns]
    blocks: list[list[int]] = [[]]
    width = labels_width = sum(widths[:num_labels]) - 2  # no space after the last column
    for index in range(num_labels, len(columns)):
        width += widths[index]
        if width > console.width and blocks[-1]:
            blocks.append([])
            width = labels_width + widths[index]
        blocks[-1].append(index)
    for number, block in enumerate(blocks):
        table, chosen = plain_table(), [*range(num_labels), *block]
        for index in chosen:
            is_label, is_text = index < num_labels, index >= len(columns) - num_texts
            table.add_column(
                Text(columns[index][0]),
                justify=justify if is_label else "left" if is_text else "right",
                no_wrap=not (is_label or is_text),
                overflow="fold",
            )
        for cells in zip(*(columns[index][1] for index in chosen), strict=True):
            table.add_row(*map(Text, cells))
        if number:
            print()
        print_table(table, console)


def print_rows(
    headings: Sequence[str], rows: Sequence[Sequence[str]], *, num_labels: int = 1, num_texts: int
) -> None:
    """Print a table of rows. See `print_columns`."""
    columns = [(heading, [row[k] for row in rows]) for k, heading in enumerate(headings)]
    print_columns(columns, num_labels=num_labels, num_texts=num_texts)


def aligned(rows: Sequence[Sequence[str]], *, num_texts: int = 0) -> str:
    """Return rows as lines, with the first column and the last `num_texts` ones at the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    first_text = len(widths) - num_texts
    return "\n".join(
        "  ".join(
            cell.rjust(width) if 0 < i < first_text else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def print_json(value: Any) -> int:
    """Print one JSON value, with null for NaN and infinity. Return the exit code 0."""
    json.dump(finite(value), sys.stdout, default=str, allow_nan=False)
    print()
    return 0


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
