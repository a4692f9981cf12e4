"""Languages of code without one: commands are highlighted as such, all else is plain text."""

from __future__ import annotations

from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

_COMMANDS = ("hotloop", "pip", "python", "make", "ray", "py-spy", "git")


class CodeLanguages(SphinxTransform):
    """Names the language of blocks whose first word is a command."""

    default_priority = 400

    def apply(self, **kwargs: Any) -> None:
        for block in self.document.findall(nodes.literal_block):
            if block.get("language", "none") not in ("none", "default"):
                continue
            words = block.astext().split(maxsplit=2)
            if words[:1] == ["$"]:
                block["language"] = "console"
            elif words and words[0] in _COMMANDS and not words[1].startswith(("=", "→")):
                block["language"] = "sh"


def setup(app: Sphinx) -> dict[str, Any]:
    """Called by Sphinx."""
    app.add_transform(CodeLanguages)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
