"""Run the benchmarks that have runs in the catalogue, each in a process of its own.

One that fails is named in the end, and the others go on.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys

from bench.catalog import BENCHES


def main() -> int:
    """Run them all."""
    parser = argparse.ArgumentParser(prog="python -m bench all", description=__doc__)
    parser.parse_args()
    runs = [f"{name} {options}".strip() for name, one in BENCHES.items() for options in one.runs]
    failed: list[str] = []
    for run in runs:
        print(f"\npython -m bench {run}", flush=True)
        if subprocess.run([sys.executable, "-m", "bench", *shlex.split(run)]).returncode:
            failed.append(run)
    for run in failed:
        print(f"failed: python -m bench {run}", file=sys.stderr)
    return int(bool(failed))
