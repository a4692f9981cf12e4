"""`hotloop cache`: show or delete the cached compiled code."""

from __future__ import annotations

import argparse
import time

from hotloop.base import cache
from hotloop.base.text_tables import plain_table, print_table, wide_console
from hotloop.cli import notify
from hotloop.errors import OutputError


def run(args: list[str]) -> int:
    """Run the command. See `hotloop cache --help`."""
    parser = argparse.ArgumentParser(
        prog="hotloop cache",
        description="Show the cached compiled code: updates of trainings, and functions of custom "
        "bandits. The next process that needs it loads it in milliseconds. The cache is "
        "$HOTLOOP_CACHE, else $XDG_CACHE_HOME/hotloop, else ~/.cache/hotloop.",
    )
    parser.add_argument("--clear", action="store_true", help="delete all cached files")
    options = parser.parse_args(args)
    if options.clear:
        try:
            removed = cache.clear()
        except OSError as error:
            raise OutputError(
                f"{cache.directory()} can't be cleared ({error.strerror}): delete it by hand"
            ) from error
        print(f"removed {_format_total(removed)} from {cache.directory()}")
        return 0
    files, reason = cache.entries(), cache.unusable_reason()
    if reason:
        notify(f"the cache is not used, since {reason}")
    print(f"{cache.directory()}: {_format_total(files)}")
    if files:
        table = plain_table()
        for column in ("key", "size", "used"):
            table.add_column(column)
        for file in files:
            table.add_row(
                file.path.name[:12], f"{file.size_bytes / 1e6:.1f} MB", _format_last_use(file)
            )
        print_table(table, wide_console())
    return 0


def _format_total(files: list[cache.CacheEntry]) -> str:
    total_bytes = sum(file.size_bytes for file in files)
    return f"{len(files)} compiled file{'' if len(files) == 1 else 's'}, {total_bytes / 1e6:.1f} MB"


def _format_last_use(file: cache.CacheEntry) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(file.used_s))
