"""Recurrent networks: learning of tasks that need memory, and speed.

python -m bench memory --part learning [--only cartpole-lstm …] [--seeds 5] [--jobs 2]
python -m bench memory --part scale [--only ppo-cartpole-raw …] [--seeds 5] [--jobs 2]
python -m bench memory --part speed [--rounds 3]
python -m bench memory --part doom --sample-factory PATH/TO/python [--rounds 3]
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from bench.memory import doom, learning, speed


def main() -> int:
    """Run the chosen parts."""
    parser = argparse.ArgumentParser(
        prog="python -m bench memory",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--part", choices=[*learning.PARTS, "speed", "doom"], help="default: all")
    names = [name for tasks in learning.PARTS.values() for name in tasks]
    parser.add_argument("--only", nargs="+", choices=names, metavar="NAME")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="concurrent seeds")
    parser.add_argument("--sample-factory", type=Path, help="Python with Sample Factory, for doom")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    code = 0
    for part in learning.PARTS:
        if options.part in (None, part):
            code |= learning.measure(part, options.only, options.seeds, options.jobs)
    if options.part in (None, "speed"):
        speed.measure(options.rounds)
    if options.part == "doom" and options.sample_factory is None:
        parser.error("--part doom needs --sample-factory PATH/TO/python")
    if options.part in (None, "doom") and options.sample_factory is not None:
        doom.measure(options.rounds, options.sample_factory)
    return code
