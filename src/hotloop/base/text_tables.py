"""Tables that fit a terminal, and are not cut in a pipe, or are printed as JSON."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Literal

from hotloop.base.documents import finite
from hotloop.base.streams import make_console

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


# The least width of a column whose cells continue on the next line.
_MIN_FOLDED = 8


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
    widths = [max(map(cell_len, (heading, *cells))) for heading, cells in columns]
    for number, chosen in enumerate(_column_blocks(widths, num_labels, console.width)):
        table = plain_table()
        table.show_header = any(columns[index][0] for index in chosen)
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


def _column_blocks(widths: Sequence[int], num_labels: int, max_width: int) -> list[list[int]]:
    """Return the columns of each table. Each table starts with the labels and fits the width."""
    blocks: list[list[int]] = [[*range(num_labels)]]
    width = labels_width = sum(widths[:num_labels]) + 2 * (num_labels - 1)
    for index in range(num_labels, len(widths)):
        width += widths[index] + 2
        if width > max_width and len(blocks[-1]) > num_labels:
            blocks.append([*range(num_labels)])
            width = labels_width + widths[index] + 2
        blocks[-1].append(index)
    return blocks


def aligned(
    rows: Sequence[Sequence[str]], *, num_texts: int = 0, max_width: int | None = None
) -> str:
    """Return rows as lines, with the first column and the last `num_texts` ones at the left.

    Columns that do not fit `max_width` follow below, with the first column in front again. There,
    a first column or a text that is too wide continues on the next lines, and columns without a
    value are omitted.
    """
    columns = list(zip(*rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    first_text = len(widths) - num_texts
    width = sum(widths) + 2 * (len(widths) - 1)
    if max_width is not None and width > max_width:
        filled_columns = [i for i, column in enumerate(columns) if not i or any(column[1:])]
        if len(filled_columns) < len(columns):
            rows = [[row[i] for i in filled_columns] for row in rows]
            num_texts = sum(i >= first_text for i in filled_columns)
            return aligned(rows, num_texts=num_texts, max_width=max_width)
    max_width = max_width or width
    tables = []
    for block in _column_blocks(widths, 1, max_width):
        block_widths = {i: widths[i] for i in block}
        for i in [*(i for i in block if i and i >= first_text), 0]:
            excess = sum(block_widths.values()) + 2 * (len(block) - 1) - max_width
            block_widths[i] -= min(max(0, excess), max(0, block_widths[i] - _MIN_FOLDED))
        lines = []
        for row in rows:
            cells = [_folded(row[i], block_widths[i]) for i in block]
            for texts in zip_longest(*cells, fillvalue=""):
                padded = (
                    text.rjust(block_widths[i])
                    if 0 < i < first_text
                    else text.ljust(block_widths[i])
                    for i, text in zip(block, texts, strict=True)
                )
                lines.append("  ".join(padded).rstrip())
        tables.append("\n".join(lines))
    return "\n\n".join(tables)


def _folded(cell: str, width: int) -> list[str]:
    """Return the lines of a cell, broken between words where possible."""
    if len(cell) <= width:
        return [cell]
    indent = " " * (len(cell) - len(cell.lstrip()))
    return textwrap.wrap(cell.lstrip(), width, initial_indent=indent, subsequent_indent=indent)


def print_json(value: Any) -> int:
    """Print one JSON value, with null for NaN and infinity. Return the exit code 0."""
    json.dump(finite(value), sys.stdout, default=str, allow_nan=False)
    print()
    return 0


def wide_console() -> Console:
    """Return a console for the terminal, or a very wide one for a pipe, so that nothing is cut."""
    console = make_console()
    return console if console.is_terminal else make_console(width=10_000)


def terminal_width() -> int | None:
    """Return the width of the terminal, or None if standard output is a pipe or a file."""
    console = make_console()
    return console.width if console.is_terminal else None


def print_table(table: Table, console: Console) -> None:
    """Print a table on a console, without trailing blanks."""
    with console.capture() as capture:
        console.print(table)
    lines = capture.get().splitlines()
    # The console has already replaced all control characters except its own colors.
    write = getattr(sys.stdout, "write_raw", sys.stdout.write)
    write("".join(line.rstrip() + "\n" for line in lines))
    sys.stdout.flush()
