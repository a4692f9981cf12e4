"""The public names: those in an `__all__`. Modules load some of them when they are first used.

autodoc looks at what a module has, so here each name is asked for once.
"""

from __future__ import annotations

import importlib
import re
from typing import Any

from project import ROOT
from sphinx.application import Sphinx

_SOURCE = ROOT / "src"


def modules() -> list[str]:
    """Every module of hotloop that declares an `__all__`."""
    found = []
    for path in sorted((_SOURCE / "hotloop").rglob("*.py")):
        if re.search(r"^__all__ = ", path.read_text(encoding="utf-8"), re.MULTILINE):
            parts = path.relative_to(_SOURCE).with_suffix("").parts
            found.append(".".join(part for part in parts if part != "__init__"))
    return found


def names() -> list[str]:
    """Every public name, with its module."""
    return [
        f"{name}.{public}" for name in modules() for public in importlib.import_module(name).__all__
    ]


def _load(app: Sphinx) -> None:
    for module in map(importlib.import_module, modules()):
        for name in module.__all__:
            setattr(module, name, getattr(module, name))


def setup(app: Sphinx) -> dict[str, Any]:
    """Called by Sphinx."""
    app.connect("builder-inited", _load)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
