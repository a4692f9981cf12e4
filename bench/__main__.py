"""Entry point of `python -m bench NAME …`. Without a name it lists the benchmarks."""

from __future__ import annotations

import importlib
import sys


def main() -> int:
    """Run a benchmark."""
    name = sys.argv.pop(1) if len(sys.argv) > 1 else "list"
    if name == "accelerate":
        # The GPU machine may lack libraries that other benchmarks of the catalog import.
        from bench.accelerate import stages

        return stages.main()
    from bench.catalog import BENCHES

    if name in BENCHES:
        return importlib.import_module(BENCHES[name].module).main() or 0
    importlib.import_module(BENCHES["list"].module).main()
    return 0 if name in ("-h", "--help") else 2


if __name__ == "__main__":
    sys.exit(main())
