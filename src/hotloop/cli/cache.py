"""`hotloop cache`: what was compiled before and is kept, and how to be rid of it."""

from __future__ import annotations

import argparse
import time

from hotloop import cache
from hotloop.cli.tables import plain_table, print_table, wide_console
from hotloop.errors import OutputError


def run(args: list[str]) -> int:
    """Show or clear; see `hotloop cache --help`."""
    parser = argparse.ArgumentParser(
        prog="hotloop cache",
        description="Show the compiled code that is kept: updates of trainings, and functions of "
        "your own bandits. What needs it next loads it in milliseconds. It lies in "
        "$HOTLOOP_CACHE, else in $XDG_CACHE_HOME/hotloop, else in ~/.cache/hotloop.",
    )
    parser.add_argument("--clear", action="store_true", help="remove all of them")
    options = parser.parse_args(args)
    if options.clear:
        try:
            gone = cache.clear()
        except OSError as error:
            raise OutputError(
                f"{cache.directory()} can't be cleared ({error.strerror}): remove it by hand"
            ) from error
        print(f"removed {_told(gone)} from {cache.directory()}")
        return 0
    kept = cache.kept()
    print(f"{cache.directory()}: {_told(kept)}")
    if kept:
        table = plain_table()
        for column in ("key", "size", "used"):
            table.add_column(column)
        for one in kept:
            table.add_row(one.path.name[:12], f"{one.size / 1e6:.1f} MB", _when(one))
        print_table(table, wide_console())
    return 0


def _told(some: list[cache.Kept]) -> str:
    whole = sum(one.size for one in some)
    return f"{len(some)} compiled file{'' if len(some) == 1 else 's'}, {whole / 1e6:.1f} MB"


def _when(one: cache.Kept) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(one.used_s))
