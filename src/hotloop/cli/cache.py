"""`hotloop cache`: show or delete the cached compiled code."""

from __future__ import annotations

import time

from hotloop.base import cache
from hotloop.base.streams import notify
from hotloop.base.text_tables import print_json, print_rows
from hotloop.cli.command_parser import CommandParser
from hotloop.errors import OutputError


def run(args: list[str]) -> int:
    """Run the command. See `hotloop cache --help`."""
    parser = CommandParser(
        prog="hotloop cache",
        description="Show the cached compiled code: updates of trainings, and functions of custom "
        "bandits. The next process that needs it loads it in milliseconds. The cache is "
        "$HOTLOOP_CACHE, else $XDG_CACHE_HOME/hotloop, else ~/.cache/hotloop.",
    )
    parser.add_argument("--clear", action="store_true", help="delete all cached files")
    parser.add_argument("--json", action="store_true", help="print one JSON array of these files")
    options = parser.parse_args(args)
    if options.clear:
        try:
            removed = cache.clear()
        except OSError as error:
            raise OutputError(
                f"{cache.directory()} can't be cleared ({error.strerror}): delete it by hand"
            ) from error
        if options.json:
            return print_json([vars(file) for file in removed])
        print(f"removed {_format_total(removed)} from {cache.directory()}")
        return 0
    files, reason = cache.entries(), cache.unusable_reason()
    if reason:
        notify(f"the cache is not used, since {reason}")
    if options.json:
        return print_json([vars(file) for file in files])
    print(f"{cache.directory()}: {_format_total(files)}")
    if files:
        rows = [(x.path.name[:12], f"{x.size_bytes / 1e6:.1f} MB", _last_use(x)) for x in files]
        print_rows(("key", "size", "used"), rows, num_texts=2)
    return 0


def _format_total(files: list[cache.CacheEntry]) -> str:
    total_bytes = sum(file.size_bytes for file in files)
    return f"{len(files)} compiled file{'' if len(files) == 1 else 's'}, {total_bytes / 1e6:.1f} MB"


def _last_use(file: cache.CacheEntry) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(file.used_s))
