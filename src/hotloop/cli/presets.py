"""`hotloop presets`: environments that have options of their own, and which."""

from __future__ import annotations

import argparse
import json
import sys

from hotloop.cli import need
from hotloop.cli.tables import plain_table, print_table, wide_console
from hotloop.errors import UnknownNameError, nearest


def run(args: list[str]) -> int:
    """List; see `hotloop presets --help`."""
    parser = argparse.ArgumentParser(
        prog="hotloop presets",
        description="List the environments that `hotloop train` has options for, which stand in "
        "for those that are not given.",
    )
    parser.add_argument(
        "environment",
        nargs="?",
        metavar="ENV",
        help="an environment, such as Pendulum-v1: show its options one a line",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON array instead")
    options = parser.parse_args(args)
    need("torch", extra="train", purpose="training")

    from hotloop.algorithms import ALGORITHMS, find
    from hotloop.training.algorithm import preset_of

    each = {name: find(name).presets for name in ALGORITHMS}
    found = [
        {"algorithm": name, "env_id": env_id, "options": dict(values)}
        for name, presets in each.items()
        for env_id, values in presets.items()
    ]
    if options.environment is not None:
        wanted = options.environment
        known = sorted({one["env_id"] for one in found})
        found = [
            {"algorithm": name, "env_id": wanted, "options": dict(preset_of(presets, wanted))}
            for name, presets in each.items()
            if preset_of(presets, wanted)
        ]
        if not found:
            hint = nearest(wanted, known) or ": the defaults of the algorithm are taken"
            raise UnknownNameError(f"'{wanted}' has no preset ({', '.join(known)} have one){hint}")
    if options.json:
        json.dump(found, sys.stdout, default=str)
        print()
        return 0
    from rich.text import Text

    table = plain_table()
    for column in ("algorithm", "environment", "options"):
        table.add_column(column, overflow="fold")
    for one in found:
        values = [f"{name}={value}" for name, value in one["options"].items()]
        told = ("\n" if options.environment else ", ").join(values)
        table.add_row(one["algorithm"], one["env_id"], Text(told))
    print_table(table, wide_console())
    for one in found:
        if not one["env_id"].endswith(("/", ":")):  # what ids begin with
            print(f"\nnext: hotloop train {one['algorithm']} --env-id {one['env_id']}")
            break
    return 0
