"""The command `hotloop bandit figure NUMBER`: compute and draw a figure of the book."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

from hotloop.base.importing import require_module
from hotloop.base.text_tables import print_json
from hotloop.cli.bandit.options import add_json, add_sizes, new_parser, parse_options, run_sizes
from hotloop.cli.bandit.progress import ProgressLine
from hotloop.cli.bandit.tables import print_figure, print_speed


def run(args: list[str]) -> int:
    """Run the command. See `hotloop bandit figure --help`."""
    from hotloop.bandits.figure_plans import FIGURES, get_figure_plan

    parser = new_parser(
        "figure",
        "Compute a figure of chapter 2 of Sutton & Barto's Reinforcement Learning (2nd edition, "
        "2018), draw it with 95 % confidence, and print its table.",
    )
    lines = []
    for plan in FIGURES.values():
        sizes = f" ({plan.num_runs:,} runs of {plan.num_steps:,} steps)" if plan.settings else ""
        text = f"  {plan.number:5} {plan.title}{sizes}"
        lines.append(textwrap.fill(text, 80, subsequent_indent=" " * 8))
    parser.epilog = "figures:\n" + "\n".join(lines)
    parser.add_argument("number", metavar="NUMBER", help="2.1 … 2.6, or 2.11 (exercise 2.11)")
    add_sizes(parser, runs=None, steps=None)
    parser.add_argument(
        "--output",
        metavar="FILE",
        type=Path,
        help="the file to write: .png, .svg or .pdf (default: figure_NUMBER.png)",
    )
    add_json(parser)
    # Read the options, and find the figure.
    options = parse_options(parser, args)
    require_module("numba", extra="bandit", purpose="playing bandits")

    from hotloop.bandits.figures import book_figure
    from hotloop.bandits.plots import check_plot_path

    plan = get_figure_plan(options.number)
    output = options.output or Path(f"figure_{plan.number}.png")
    check_plot_path(output, option="--output")
    require_module("matplotlib", extra="bandit", purpose="drawing a figure")
    ignored = [
        f"--{name}" for name in ("runs", "steps", "threads") if getattr(options, name) is not None
    ]
    if ignored and not plan.settings:
        print(
            f"hotloop: figure {plan.number} shows one task without an agent, so that "
            f"these options have no effect: {', '.join(ignored)}",
            file=sys.stderr,
        )
    # Compute and draw the figure.
    with ProgressLine() as progress:
        figure = book_figure(plan.number, **run_sizes(options), on_progress=progress.show_steps)
    if not options.json:  # print results first, because drawing may fail
        print_figure(figure)
    figure.draw(output)
    if options.json:
        return print_json(figure.to_dict() | {"output": str(output)})
    print(f"\npicture: {output}")
    if figure.comparison is not None:
        print_speed(figure.results, figure.elapsed_s)
    return 0
