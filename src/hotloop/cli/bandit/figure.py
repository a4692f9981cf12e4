"""`hotloop bandit figure NUMBER`: a figure of the book, computed and drawn."""

from __future__ import annotations

import sys
from pathlib import Path

from hotloop.cli import need
from hotloop.cli.bandit.options import add_json, add_sizes, parsed, parser_of, sizes_of
from hotloop.cli.bandit.progress import ProgressLine
from hotloop.cli.bandit.tables import print_figure, print_json, print_speed


def run(args: list[str]) -> int:
    """See `hotloop bandit figure --help`."""
    from hotloop.bandits.book import FIGURES, plan_of

    parser = parser_of(
        "figure",
        "Compute a figure of chapter 2 of Sutton & Barto's Reinforcement Learning (2nd edition, "
        "2018), draw it with 95 % confidence, and print its table.",
    )
    lines = []
    for plan in FIGURES.values():
        sizes = f" ({plan.num_runs:,} runs of {plan.num_steps:,} steps)" if plan.settings else ""
        lines.append(f"  {plan.number:5} {plan.title}{sizes}")
    parser.epilog = "figures:\n" + "\n".join(lines)
    parser.add_argument("number", metavar="NUMBER", help="2.1 … 2.6, or 2.11 (exercise 2.11)")
    add_sizes(parser, runs=None, steps=None)
    parser.add_argument(
        "--output",
        metavar="FILE",
        type=Path,
        help="where to: .png, .svg or .pdf (default: figure_NUMBER.png)",
    )
    add_json(parser)
    options = parsed(parser, args)
    need("numba", extra="bandit", purpose="playing bandits")

    from hotloop.bandits.figures import book_figure
    from hotloop.bandits.pictures import check_picture

    plan = plan_of(options.number)
    output = options.output or Path(f"figure_{plan.number}.png")
    check_picture(output, option="--output")
    need("matplotlib", extra="bandit", purpose="drawing a figure")
    without_effect = [
        f"--{name}" for name in ("runs", "steps", "threads") if getattr(options, name) is not None
    ]
    if without_effect and not plan.settings:
        print(
            f"hotloop: figure {plan.number} shows one task, in which nobody plays: "
            f"{', '.join(without_effect)} without effect",
            file=sys.stderr,
        )
    with ProgressLine() as progress:
        figure = book_figure(plan.number, **sizes_of(options), on_progress=progress.show)
    if not options.json:  # first what was computed: drawing may fail
        print_figure(figure)
    figure.draw(output)
    if options.json:
        return print_json(figure.to_dict() | {"output": str(output)})
    print(f"\npicture: {output}")
    if figure.comparison is not None:
        print_speed(figure.results, figure.elapsed_s)
    return 0
