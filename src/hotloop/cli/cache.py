"""`hotloop cache`: show, build or delete the cached compiled code."""

from __future__ import annotations

import time

from hotloop.base import cache
from hotloop.base.importing import long_imports, require_module
from hotloop.base.streams import notify
from hotloop.base.text_tables import print_json, print_rows
from hotloop.cli.command_parser import CommandParser
from hotloop.errors import OutputError

_BUILD_HELP = """usage: hotloop cache build [ALGORITHM [options of train]]

Compile the updates of trainings with these options, so that their first run
is as fast as later ones. This takes about 20 s for each update. Networks,
observations, actions and batches of other sizes need updates of their own.

Without an algorithm, the updates of the default options are compiled:
{defaults}

examples:
  hotloop cache build
  hotloop cache build sac --env-id HalfCheetah-v5 --precision bfloat16
"""
_DEFAULTS = (
    ("ppo", "--env-id", "CartPole-v1"),
    ("dqn", "--env-id", "CartPole-v1"),
    ("sac", "--env-id", "Pendulum-v1"),
    ("td3", "--env-id", "Pendulum-v1"),
)


def run(args: list[str]) -> int:
    """Run the command. See `hotloop cache --help`."""
    if args[:1] == ["build"]:
        return _build(args[1:])
    parser = CommandParser(
        prog="hotloop cache",
        description="Show the cached compiled code: updates of trainings, and functions of replay "
        "buffers and bandits. Later processes load it in milliseconds. The cache is "
        "$HOTLOOP_CACHE, else $XDG_CACHE_HOME/hotloop, else ~/.cache/hotloop. `hotloop cache build "
        "ALGORITHM` compiles the updates of a training before its first run.",
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


def _build(args: list[str]) -> int:
    """Compile the updates of a configuration, or those of the default ones."""
    if args[:1] in (["-h"], ["--help"]):
        print(_BUILD_HELP.format(defaults="\n".join(f"  {' '.join(x)}" for x in _DEFAULTS)), end="")
        return 0
    for module in ("torch", "gymnasium", "tyro", "safetensors"):
        require_module(module, extra="train", purpose="training")
    with long_imports():
        from hotloop.algorithms import find
        from hotloop.cli.train_options import build_config
        from hotloop.training.precompile import precompile
    for name, *options in [args] if args else _DEFAULTS:
        algorithm = find(name)
        config = build_config(algorithm, options, name)
        print(f"{name} on {config.env_id}: {precompile(algorithm, config)}", flush=True)
    return 0


def _format_total(files: list[cache.CacheEntry]) -> str:
    total_bytes = sum(file.size_bytes for file in files)
    return f"{len(files)} compiled file{'' if len(files) == 1 else 's'}, {total_bytes / 1e6:.1f} MB"


def _last_use(file: cache.CacheEntry) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(file.used_s))
