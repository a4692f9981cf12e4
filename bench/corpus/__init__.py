"""A corpus of programs with planted causes: does a diagnosis name them in what it never saw?

See bench/corpus/run.py for how to call it, bench/corpus/plant.py for how a case is made.
"""

from __future__ import annotations


def main() -> int:
    """Measure, print and store."""
    from bench.corpus.run import main as run

    return run()
