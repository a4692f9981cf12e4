"""A benchmark of several parts, each of which can be run by itself."""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bench import storage


def run_parts(
    name: str,
    about: str | None,
    parts: Mapping[str, Callable[[Any, int], None]],
    *,
    scale: Any,
    quick: Any,
    seconds: str,
) -> int:
    """Measure, print, store.

    Args:
        name: the benchmark's.
        about: what its help says.
        parts: called with a scale and the number of rounds.
        scale: how much is measured; a named tuple with `seconds`.
        quick: how much with `--quick`.
        seconds: what `--seconds` is, for the help.
    """
    parser = argparse.ArgumentParser(
        prog=f"python -m bench {name}",
        description=about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--part", action="append", choices=list(parts), help="again for more parts")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, help=seconds)
    parser.add_argument("--quick", action="store_true", help="small sizes; results kept apart")
    options = parser.parse_args()
    if options.quick:
        scale = quick
        storage.RESULTS = Path(tempfile.mkdtemp(prefix=f"{name}-quick-"))
        print(f"quick: nothing of this counts; results in {storage.RESULTS}")
        options.rounds = min(options.rounds, 2)
    elif options.seconds:
        scale = scale._replace(seconds=options.seconds)
    for part in options.part or parts:
        began = time.perf_counter()
        print(f"{part}:")
        parts[part](scale, options.rounds)
        print(f"{part} took {time.perf_counter() - began:.0f} s\n", flush=True)
    return 0
