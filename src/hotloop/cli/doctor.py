"""`hotloop doctor`: what this machine offers for training, and what would make it faster."""

from __future__ import annotations

from rich.text import Text

from hotloop.base.text_tables import plain_table, print_json, print_table, wide_console
from hotloop.cli.command_parser import CommandParser


def run(args: list[str]) -> int:
    """Run the command. See `hotloop doctor --help`."""
    parser = CommandParser(
        prog="hotloop doctor",
        description="Show what this machine has for training (cores and quotas, memory, libraries, "
        "compiler, instructions, GPU, extras, caches), and what would make it faster.",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON array instead")
    options = parser.parse_args(args)
    from hotloop.reports.machine import collect_findings

    findings = collect_findings()
    if options.json:
        return print_json([finding._asdict() for finding in findings])
    table = plain_table()
    table.show_header = False
    table.add_column()
    table.add_column(overflow="fold")
    for finding in findings:
        table.add_row(finding.name, Text(finding.value))
    print_table(table, wide_console())
    advice = [finding for finding in findings if finding.advice]
    print("\nto make training faster:" if advice else "\nnothing to improve was found")
    for finding in advice:
        print(f"- {finding.name}: {finding.advice}")
    return 0
