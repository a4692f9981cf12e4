"""Agents, environments and their fields, as help tells of them."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any


def listing(known: Mapping[str, Any]) -> str:
    """A line for each: its name, its fields and what it does."""
    lines = []
    for name, one in known.items():
        settings = " ".join(f"{field.name}={written(field.default)}" for field in fields(one))
        about = (inspect.getdoc(one) or "").split("\n")[0]
        lines.append(f"  {name:18} {settings}" if settings else f"  {name}")
        lines.append(textwrap.fill(about, 88, initial_indent=" " * 21, subsequent_indent=" " * 21))
    return "\n".join(lines)


def written(value: Any) -> str:
    """A field's default as it is typed."""
    if value is MISSING:
        return "FILE"
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(map(written, value))
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def field_docs(known: type) -> dict[str, str]:
    """The docstring under each field, which is nowhere but in the source."""
    try:
        (body,) = ast.parse(textwrap.dedent(inspect.getsource(known))).body
    except (OSError, SyntaxError, ValueError):
        return {}
    docs, name = {}, None
    for node in getattr(body, "body", ()):
        if isinstance(node, ast.Expr) and name and isinstance(node.value, ast.Constant):
            docs[name] = " ".join(str(node.value.value).split())
        target = node.target if isinstance(node, ast.AnnAssign) else None
        name = target.id if isinstance(target, ast.Name) else None
    return docs
