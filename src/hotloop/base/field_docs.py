"""Docstrings of the fields of dataclasses."""

from __future__ import annotations

import ast
import inspect
import textwrap


def field_docs(cls: type) -> dict[str, str]:
    """Return the docstring under each field, which only the source code contains."""
    try:
        (body,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    except (OSError, SyntaxError, ValueError):
        return {}
    docs, name = {}, None
    for node in getattr(body, "body", ()):
        if isinstance(node, ast.Expr) and name and isinstance(node.value, ast.Constant):
            docs[name] = " ".join(str(node.value.value).split())
        target = node.target if isinstance(node, ast.AnnAssign) else None
        name = target.id if isinstance(target, ast.Name) else None
    return docs
