"""Command line of a benchmark with several parts."""

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
    description: str | None,
    parts: Mapping[str, Callable[[Any, int], None]],
    *,
    scale: Any,
    quick: Any,
    seconds: str,
) -> int:
    """Parse the command line and run the chosen parts.

    Args:
        name: name of the benchmark.
        description: text of `--help`.
        parts: functions of a scale and the number of rounds, by part.
        scale: sizes of the measurement, a named tuple with `seconds`.
        quick: sizes with `--quick`.
        seconds: help of `--seconds`.
    """
    parser = argparse.ArgumentParser(
        prog=f"python -m bench {name}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--part", action="append", choices=list(parts), help="repeat for more parts"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, help=seconds)
    parser.add_argument(
        "--quick", action="store_true", help="small sizes, results in a temporary folder"
    )
    options = parser.parse_args()
    if options.quick:
        scale = quick
        storage.RESULTS = Path(tempfile.mkdtemp(prefix=f"{name}-quick-"))
        print(f"quick: results are not representative and are in {storage.RESULTS}")
        options.rounds = min(options.rounds, 2)
    elif options.seconds:
        scale = scale._replace(seconds=options.seconds)
    for part in options.part or parts:
        start_s = time.perf_counter()
        print(f"{part}:")
        parts[part](scale, options.rounds)
        print(f"{part} took {time.perf_counter() - start_s:.0f} s\n", flush=True)
    return 0
