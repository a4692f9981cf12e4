"""Tables and numbers in Markdown."""

from __future__ import annotations

import math
from pathlib import Path


def table(*rows: list[str]) -> str:
    """Return a Markdown table; the first row is the header."""
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])


def format_figure(figure: dict[str, float] | None, unit: float) -> str:
    """Return median and range, or a dash."""
    if figure is None or math.isnan(figure["median"]):  # the measurement was too short
        return "–"

    def digits(value: float) -> str:
        return f"{value * unit:,.{0 if value * unit >= 100 else 1 if value * unit >= 10 else 2}f}"

    return f"{digits(figure['median'])} ({digits(figure['min'])}–{digits(figure['max'])})"


def format_ratio(ratio: float) -> str:
    if math.isnan(ratio):
        return "–"
    return f"{ratio:,.{0 if ratio >= 20 else 1 if ratio >= 2 else 2}f}"


def short_reason(missing: str) -> str:
    """Return the reason for a missing figure without its details."""
    return missing.split(":")[0]


def replace(page: Path, name: str, content: str) -> None:
    """Replace the part of `page` between the markers of `name`."""
    before, start, remainder = page.read_text(encoding="utf-8").partition(f"<!-- {name} -->")
    _, end, after = remainder.partition(f"<!-- end {name} -->")
    if not (start and end):
        raise ValueError(f"{page} has no part between <!-- {name} --> and <!-- end {name} -->")
    page.write_text(f"{before}{start}\n{content}\n{end}{after}", encoding="utf-8")
