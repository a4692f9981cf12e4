"""`hotloop presets`: list environments with tuned options."""

from __future__ import annotations

from hotloop.base.importing import require_module
from hotloop.base.text_tables import print_json, print_rows
from hotloop.cli.command_parser import CommandParser
from hotloop.errors import UnknownNameError, nearest


def run(args: list[str]) -> int:
    """Run the command. See `hotloop presets --help`."""
    parser = CommandParser(
        prog="hotloop presets",
        description="List the environments with a preset: options that `hotloop train` uses "
        "instead of the defaults.",
    )
    parser.add_argument(
        "environment",
        nargs="?",
        metavar="ENV",
        help="an environment, such as Pendulum-v1: show its options, one per line",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON array instead")
    options = parser.parse_args(args)
    require_module("torch", extra="train", purpose="training")

    from hotloop.algorithms import ALGORITHMS, find
    from hotloop.training.algorithm import preset_of

    # Collect all presets, or those of one environment.
    groups = {name: find(name).presets for name in ALGORITHMS}
    rows = [
        {"algorithm": name, "env_id": env_id, "options": dict(values)}
        for name, presets in groups.items()
        for env_id, values in presets.items()
    ]
    if options.environment is not None:
        env_id = options.environment
        known = sorted({row["env_id"] for row in rows})
        rows = [
            {"algorithm": name, "env_id": env_id, "options": dict(preset_of(presets, env_id))}
            for name, presets in groups.items()
            if preset_of(presets, env_id)
        ]
        if not rows:
            hint = nearest(env_id, known) or (
                ": `hotloop train` uses the algorithm's defaults for it; `hotloop presets` lists "
                "the environments that have one"
            )
            raise UnknownNameError(f"'{env_id}' has no preset{hint}")
    # Print the presets, and a command that uses the first one.
    if options.json:
        return print_json(rows)
    separator = "\n" if options.environment else ", "
    texts = [separator.join(f"{k}={v}" for k, v in row["options"].items()) for row in rows]
    cells = [(x["algorithm"], x["env_id"], text) for x, text in zip(rows, texts, strict=True)]
    print_rows(("algorithm", "environment", "options"), cells, num_labels=2, num_texts=1)
    for row in rows:
        if not row["env_id"].endswith(("/", ":")):  # otherwise it is a prefix of ids
            print(f"\nnext: hotloop train {row['algorithm']} --env-id {row['env_id']}")
            break
    return 0
