"""`hotloop compare`: compare the speed of two profiles or runs, with significance."""

from __future__ import annotations

import argparse


def run(args: list[str]) -> int:
    """Compare; see `hotloop compare --help`."""
    parser = argparse.ArgumentParser(
        prog="hotloop compare",
        description="What takes more or less time in B than in A, per environment step, with 95 % "
        "intervals.",
    )
    what = "a profile's or a run's directory, or a saved session"
    parser.add_argument("a", metavar="A", help=what)
    parser.add_argument("b", metavar="B", help=what)
    options = parser.parse_args(args)
    from hotloop.profiler.diagnose.comparison import compare
    from hotloop.profiler.render.comparison import render
    from hotloop.profiler.session.reading import read

    print(render(compare(read(options.a), read(options.b))))
    return 0
