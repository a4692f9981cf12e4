"""Docstrings as Markdown: what hotloop's docstrings hold, in reStructuredText for autodoc.

Single backticks are code, a fence is a block of code, an indented paragraph is shown as it stands,
and `*`, `|` and `_` mean themselves: they are equations' signs. Sections (`Args:`) are napoleon's.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform

_CODE = re.compile(r"(?<!`)`([^`]+)`(?!`)")
_SIGNS = re.compile(r"([*|\\_])")
# What may stand beside inline code in reStructuredText; elsewhere an escaped space parts them.
_BEFORE, _AFTER = " \t'\"([{<-/:", " \t'\")]}>-/:.,;!?"
_NAMES = re.compile(r"\s+\w+(?:, \w+)+:(?= )")
_SECTION = re.compile(r"\s*(Args|Attributes|Raises|Returns|Yields|Note|Example|Examples):$")


def converted(lines: list[str]) -> list[str]:
    """The docstring in reStructuredText, sections left to napoleon."""
    return list(_blocks(lines))


def _blocks(lines: list[str]) -> Iterator[str]:
    fence: int | None = None  # its indentation
    section: int | None = None
    of_attributes = returns = False
    literal: int | None = None
    after_blank = True
    for line in lines:
        indent = len(line) - len(line.lstrip())
        stripped = line.strip()
        if fence is not None:
            if stripped == "```":
                fence = None
                yield ""
            else:
                yield f"    {line}"
            continue
        if stripped.startswith("```"):
            fence = indent
            language = stripped[3:] or "none"
            yield ""
            yield f"{' ' * indent}.. code-block:: {language}"
            yield ""
            continue
        if not stripped:
            after_blank = True
            yield ""
            continue
        if literal is not None and indent < literal:
            literal = None
        if section is not None and indent <= section:
            section = None
        if found := _SECTION.match(line):
            section, of_attributes = indent, found[1] == "Attributes"
            returns = found[1] in ("Returns", "Yields")
        elif literal is None and section is None and indent >= 4 and after_blank:
            literal = indent
            yield ".. code-block:: none"
            yield ""
        after_blank = False
        if literal is not None:
            yield f"    {line}"
            continue
        if section is not None and of_attributes:
            # Sphinx would take the first of several names for a type.
            line = _NAMES.sub(lambda names: names[0].replace(", ", ","), line)
        elif section is not None and returns and not found:
            # What stands before a colon is no type: the type is in the signature.
            line = f"{line[:indent]}: {line[indent:]}"
            returns = False
        yield _prose(line)


def _prose(line: str) -> str:
    """A line with its code in double backticks and its signs escaped."""
    parts = _CODE.split(line)
    out = []
    for index, part in enumerate(parts):
        if not index % 2:
            out.append(_SIGNS.sub(r"\\\1", part))
            continue
        before, after = parts[index - 1][-1:], parts[index + 1][:1]
        out.append("" if not before or before in _BEFORE else "\\ ")
        out.append(f"``{part}``")
        out.append("" if not after or after in _AFTER else "\\ ")
    return "".join(out)


_WITHOUT_SECTIONS = ("attribute", "data", "property")
_kept: dict[str, list[str]] = {}


def _convert(app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    if what in _WITHOUT_SECTIONS:
        # Napoleon would take what stands before a colon for a type.
        _kept[name], lines[:] = lines[:], []
    else:
        lines[:] = converted(lines)


def _give_back(
    app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]
) -> None:
    if what in _WITHOUT_SECTIONS:
        lines[:] = converted(_kept.pop(name))


def _skip(app: Sphinx, what: str, name: str, thing: Any, skip: bool, options: Any) -> bool | None:
    """Leave out what a named tuple says of its fields."""
    described = inspect.getdoc(thing) or ""
    return True if described.startswith("Alias for field number") else None


class Types(SphinxPostTransform):
    """Types in signatures: links to public names, of the same room where there are several.

    What is not public, and what is not ours, is plain text.
    """

    default_priority = 5  # before Sphinx looks for them by their last part alone

    def run(self, **kwargs: Any) -> None:
        objects = self.env.domains.python_domain.objects
        for node in list(self.document.findall(pending_xref)):
            if node.get("refdomain") != "py":
                continue
            name = node["reftarget"].rpartition(".")[2]
            room = ".".join((node.get("py:module") or "").split(".")[:2])
            public = [full for full in objects if full.rpartition(".")[2] == name]
            public = [full for full in public if not objects[full].aliased]
            near = [full for full in public if full.startswith(f"{room}.")] or public
            ours = node["reftarget"].startswith("hotloop.") or "." not in node["reftarget"]
            if node["reftype"] != "obj" and ours and len(near) == 1:
                node["reftarget"], node["refspecific"] = near[0], False
            else:
                node.replace_self(node.children)


def setup(app: Sphinx) -> dict[str, Any]:
    """Called by Sphinx."""
    app.connect("autodoc-process-docstring", _convert, priority=400)  # before napoleon
    app.connect("autodoc-process-docstring", _give_back, priority=600)
    app.connect("autodoc-skip-member", _skip)
    app.add_post_transform(Types)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
