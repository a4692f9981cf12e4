"""Help texts about agents, environments and their fields."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any


def list_fields(classes: Mapping[str, Any]) -> str:
    """Return the name, fields and description of each agent or environment as lines."""
    lines = []
    for name, cls in classes.items():
        settings = " ".join(f"{f.name}={format_default(f.default)}" for f in fields(cls))
        text = (inspect.getdoc(cls) or "").split("\n")[0]
        head = f"  {name:18} {settings}" if settings else f"  {name}"
        lines.append(textwrap.fill(head, 80, subsequent_indent=" " * 21))
        lines.append(textwrap.fill(text, 80, initial_indent=" " * 21, subsequent_indent=" " * 21))
    return "\n".join(lines)


def format_default(value: Any) -> str:
    """Return a field's default as a user types it."""
    if value is MISSING:
        return "FILE"
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(map(format_default, value))
    return f"{value:.6g}" if isinstance(value, float) else str(value)
