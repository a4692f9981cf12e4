"""`python -m bench matrix`: make the environments, run the checks, print and store the results."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench import matrix, storage
from bench.matrix.cells import CELLS, Cell
from bench.matrix.checks import CHECKS
from bench.matrix.environment import CheckFailed, Environment, Untested

RESULT = "versions"


def run_cell(cell: Cell, folder: Path) -> Iterator[dict[str, Any]]:
    """Make a cell's environment and run its checks; yield the result so far after each check."""
    result: dict[str, Any] = {"python": cell.python, "date": time.strftime("%Y-%m-%d")}
    try:
        env = Environment(cell, folder)
    except Untested as error:
        yield result | {"untested": str(error)}
        return
    except CheckFailed as error:
        yield result | {"versions": {}, "checks": {"wheel": f"no: {error}"}}
        return
    checks: dict[str, str] = {}
    result |= {"versions": env.versions(), "checks": checks}
    for name, check in CHECKS.items():
        if not check.runs_in(cell):
            continue
        start_s = time.monotonic()
        try:
            checks[name] = f"yes: {note}" if (note := check.run(env)) else "yes"
        except CheckFailed as error:
            checks[name] = f"no: {error}"
        print(f"  {name}: {checks[name]} ({time.monotonic() - start_s:.0f} s)", flush=True)
        yield result


def main() -> int:
    """Run the cells; return 1 if a check failed."""
    parser = argparse.ArgumentParser(
        prog="python -m bench matrix",
        description=matrix.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--cells", nargs="+", choices=CELLS, default=list(CELLS), metavar="NAME")
    parser.add_argument("--store", action="store_true", help="write bench/results/versions.json")
    parser.add_argument("--keep", type=Path, help="keep and reuse environments here")
    options = parser.parse_args()
    failed = False
    for name in options.cells:
        print(name, flush=True)
        kept_folder = options.keep / name if options.keep else None
        folder = kept_folder or Path(tempfile.mkdtemp(prefix="hotloop-matrix-"))
        result: dict[str, Any] = {}
        try:
            for result in run_cell(CELLS[name], folder):
                if options.store:  # after each check: a long run may be interrupted
                    store(name, result)
        finally:
            if kept_folder is None:
                shutil.rmtree(folder, ignore_errors=True)
        if "untested" in result:
            print(f"  untested: {result['untested']}")
        failed |= any(outcome.startswith("no") for outcome in result.get("checks", {}).values())
    return int(failed)


def store(name: str, result: dict[str, Any]) -> None:
    """Write a cell's result beside those of the other cells."""
    stored: dict[str, Any] = {}
    if (storage.RESULTS / f"{RESULT}.json").exists():
        stored = storage.load(RESULT)
    results = {cell: stored[cell] for cell in CELLS if cell in stored} | {name: result}
    storage.save(RESULT, {cell: results[cell] for cell in CELLS if cell in results})


if __name__ == "__main__":
    sys.exit(main())
