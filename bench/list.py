"""List the benchmarks with purpose, approximate duration and the pages with their tables."""

from __future__ import annotations

import argparse

from rich.console import Console
from rich.table import Table

from bench.catalog import BENCHES


def main() -> int:
    """Print the list."""
    argparse.ArgumentParser(prog="python -m bench list", description=__doc__).parse_args()
    listed = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("name", "measures", "takes", "tables in"):
        listed.add_column(column, no_wrap=column != "measures")
    for name, bench in BENCHES.items():
        pages = dict.fromkeys(table.page.removeprefix("docs/") for table in bench.tables)
        listed.add_row(name, bench.summary, bench.takes, "\n".join(pages))
    console = Console()
    console.print("usage: python -m bench NAME [OPTION …], --help for its options", markup=False)
    console.print(listed)
    return 0
