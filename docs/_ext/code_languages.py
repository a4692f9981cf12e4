"""Languages of code without one: commands are highlighted as such, all else is plain text."""

from __future__ import annotations

from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

_COMMANDS = ("hotloop", "pip", "python", "make", "ray", "py-spy", "git")


class CodeLanguages(SphinxTransform):
    """Names the language of blocks that hold commands alone, or a prompt and what it gave."""

    default_priority = 400

    def apply(self, **kwargs: Any) -> None:
        for block in self.document.findall(nodes.literal_block):
            if block.get("language", "none") not in ("none", "default"):
                continue
            lines = block.astext().replace("\\\n", "").splitlines()
            if lines and lines[0].startswith("$ "):
                block["language"] = "console"
            elif all(line.split(" ")[0] in _COMMANDS for line in lines if line and line[0] != "#"):
                block["language"] = "sh"


def setup(app: Sphinx) -> dict[str, Any]:
    """Called by Sphinx."""
    app.add_transform(CodeLanguages)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
