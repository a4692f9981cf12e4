"""The public names: those in an `__all__`. Modules load some of them when they are first used.

autodoc looks at what a module has, so here each name is asked for once. What it would leave out or
show badly are names that are no class and no function (constants, types): they are described by the
docstring below their assignment, wherever that stands, and constrained types by their constraint.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import importlib
import inspect
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from docutils import nodes
from project import ROOT
from sphinx.application import Sphinx
from sphinx.pycode import ModuleAnalyzer

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


def _told(thing: Any) -> str:
    """What a constraint, a mark or a type says of a value; of others nothing."""
    kind, *marks = get_args(thing) if get_origin(thing) is Annotated else (thing,)
    told = " and ".join(getattr(mark, "expected", "") for mark in marks or (thing,))
    if marks or isinstance(thing, UnionType):
        name = kind.__name__ if inspect.isclass(kind) and not get_args(kind) else str(kind)
        name = re.sub(r"[a-z_.]+\.(?=[A-Z])", "", name)
        return f"`{name}`" + (f" that must {told}." if told else ".")
    return f"Must {told}." if told else getattr(thing, "meaning", "")


def _load(app: Sphinx) -> None:
    described = _described()
    for module in map(importlib.import_module, modules()):
        analyzer = ModuleAnalyzer.for_module(module.__name__)
        analyzer.analyze()
        for name in module.__all__:
            thing = getattr(module, name)
            setattr(module, name, thing)
            if inspect.isclass(thing) or inspect.isroutine(thing):
                continue
            texts = [
                text
                for (where, assigned), text in described.items()
                if assigned == name and getattr(importlib.import_module(where), name) is thing
            ]
            lines = (texts[0] if texts else _told(thing)).splitlines()
            if not isinstance(thing, str | int | tuple) or len(repr(thing)) > 100:
                lines += ["", ":meta hide-value:"]
            analyzer.attr_docs["", name] = [*lines, ""]


def _plain_types(app: Sphinx, what: str, name: str, thing: Any, *rest: Any) -> None:
    """Give the fields of a dataclass types without their constraints."""
    if inspect.isclass(thing) and dataclasses.is_dataclass(thing):
        with contextlib.suppress(NameError):  # what is imported for type checking alone
            hints = get_type_hints(thing)
            own = inspect.get_annotations(thing)
            thing.__annotations__ = {field: hints[field] for field in own}


def _without_empty(app: Sphinx, document: nodes.document) -> None:
    """Leave out that a class inherits from `object`, and what constrained types are made of."""
    for paragraph in list(document.findall(nodes.paragraph)):
        text = paragraph.astext()
        if text == "Bases: object" or text.startswith("alias of Annotated["):
            paragraph.parent.remove(paragraph)


def setup(app: Sphinx) -> dict[str, Any]:
    """Called by Sphinx."""
    app.connect("builder-inited", _load)
    app.connect("autodoc-process-docstring", _plain_types)
    app.connect("doctree-read", _without_empty)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
