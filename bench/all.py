"""Run all benchmarks that have runs in the catalog, each in its own process.

Failed runs are listed at the end.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys

from bench.catalog import BENCHES


def main() -> int:
    """Run the benchmarks."""
    parser = argparse.ArgumentParser(prog="python -m bench all", description=__doc__)
    parser.parse_args()
    runs = [
        f"{name} {options}".strip() for name, bench in BENCHES.items() for options in bench.runs
    ]
    failed: list[str] = []
    for run in runs:
        print(f"\npython -m bench {run}", flush=True)
        if subprocess.run([sys.executable, "-m", "bench", *shlex.split(run)]).returncode:
            failed.append(run)
    for run in failed:
        print(f"failed: python -m bench {run}", file=sys.stderr)
    return int(bool(failed))
