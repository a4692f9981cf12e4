"""The public names: those in an `__all__`. Modules load some of them when they are first used.

autodoc looks at what a module has, so here each name is asked for once. What it would leave out or
show badly are names that are no class and no function (constants, types): they are described by the
docstring below their assignment, wherever that stands, and constrained types by their constraint.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

from project import ROOT
from sphinx.application import Sphinx

_SOURCE = ROOT / "src"


def modules() -> list[str]:
    """Every module of hotloop that declares an `__all__`."""
    return [module for module, text in _sources() if re.search(r"^__all__ = ", text, re.MULTILINE)]


def names() -> list[str]:
    """Every public name, with its module."""
    return [
        f"{name}.{public}" for name in modules() for public in importlib.import_module(name).__all__
    ]


def _sources() -> Iterator[tuple[str, str]]:
    for path in sorted((_SOURCE / "hotloop").rglob("*.py")):
        parts = path.relative_to(_SOURCE).with_suffix("").parts
        yield ".".join(part for part in parts if part != "__init__"), Path(path).read_text("utf-8")


def _described() -> dict[tuple[str, str], str]:
    """Docstrings of assignments, by module and name."""
    found = {}
    for module, text in _sources():
        body = ast.parse(text).body
        for one, after in itertools.pairwise(body):
            target = getattr(one, "target", None) or getattr(one, "targets", [None])[0]
            if (
                isinstance(one, (ast.Assign, ast.AnnAssign))
                and isinstance(target, ast.Name)
                and isinstance(after, ast.Expr)
                and isinstance(after.value, ast.Constant)
            ):
                found[module, target.id] = inspect.cleandoc(after.value.value)
    return found


def _is_data(thing: Any) -> bool:
    return not (inspect.isclass(thing) or inspect.isroutine(thing) or inspect.ismodule(thing))


def _constraints(thing: Any) -> str:
    """What a type's values must satisfy; empty: it has no constraint."""
    told = [getattr(thing, "expected", "")]
    if get_origin(thing) is Annotated:
        told = [getattr(mark, "expected", "") for mark in get_args(thing)[1:]]
    return " and ".join(filter(None, told))


class _Data:
    """What is said of public names that are no class and no function."""

    def __init__(self) -> None:
        self._public = {name: set(importlib.import_module(name).__all__) for name in modules()}
        self._described = _described()

    def keep(
        self, app: Sphinx, what: str, name: str, thing: Any, skip: bool, options: Any
    ) -> bool | None:
        """Keep public names that have no docstring of their own."""
        module = app.env.temp_data.get("autodoc:module")
        excluded = name in (options.get("exclude-members") or ())
        is_public = what == "module" and name in self._public.get(module, ())
        return False if is_public and not excluded and _is_data(thing) else None

    def describe(
        self, app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]
    ) -> None:
        """Give a name its docstring in place of that of its type."""
        module, _, last = name.rpartition(".")
        if last not in self._public.get(module, ()) or not _is_data(thing):
            return
        for (where, assigned), text in self._described.items():
            if assigned == last and getattr(importlib.import_module(where), last) is thing:
                lines[:] = text.splitlines()
                return
        lines[:] = [f"Must {told}."] if (told := _constraints(thing)) else []


def _load(app: Sphinx) -> None:
    for module in map(importlib.import_module, modules()):
        for name in module.__all__:
            setattr(module, name, getattr(module, name))
    data = _Data()
    app.connect("autodoc-skip-member", data.keep)
    app.connect("autodoc-process-docstring", data.describe, priority=300)  # then as all others


def setup(app: Sphinx) -> dict[str, Any]:
    """Called by Sphinx."""
    app.connect("builder-inited", _load)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
