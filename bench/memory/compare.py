"""Networks with memory: do they learn what needs it, and how fast.

python -m bench memory --part learning [--only cartpole-lstm …] [--seeds 5] [--jobs 2]
python -m bench memory --part speed [--rounds 3]
"""

from __future__ import annotations

import argparse
import os

from bench.memory import learning, speed


def main() -> int:
    """Measure, print, store."""
    parser = argparse.ArgumentParser(
        prog="python -m bench memory",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--part", choices=["learning", "speed"], help="default: all")
    parser.add_argument("--only", nargs="+", choices=list(learning.TASKS), metavar="NAME")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="seeds side by side")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    code = 0
    if options.part in (None, "learning"):
        code = learning.measure(options.only, options.seeds, options.jobs)
    if options.part in (None, "speed"):
        speed.measure(options.rounds)
    return code
