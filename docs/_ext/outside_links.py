"""Links from pages to files outside docs/: on the site they lead to the repository.

`[the file](../src/hotloop/types.py)` works on GitHub as it stands. Here such a link is turned into
the file's address there, and one to a file that does not exist is a warning.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from docutils import nodes
from project import REPOSITORY, ROOT
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform
from sphinx.util import logging

_LOGGER = logging.getLogger(__name__)


class OutsideLinks(SphinxTransform):
    """Turns links to files outside docs/ into links to the repository."""

    default_priority = 400

    def apply(self, **kwargs: Any) -> None:
        page = Path(self.env.doc2path(self.env.docname))
        docs = Path(self.app.srcdir)
        for kind in (addnodes.download_reference, addnodes.pending_xref):
            for node in list(self.document.findall(kind)):
                target, _, anchor = node.get("reftarget", "").partition("#")
                if node.get("reftype") != "myst" or "://" in target:
                    continue
                if node.get("refdomain") == "doc":  # a page, by its path without the suffix
                    target, anchor = f"{docs / target}.md", node.get("reftargetid") or ""
                path = Path(os.path.normpath(page.parent / target))
                if not target or path.is_relative_to(docs):
                    continue
                if not path.exists():
                    _LOGGER.warning("no such file: %s", target, location=node, type="outside")
                    continue
                what = "tree" if path.is_dir() else "blob"
                url = f"{REPOSITORY}{what}/main/{path.relative_to(ROOT).as_posix()}"
                link = nodes.reference("", "", refuri=url + (f"#{anchor}" if anchor else ""))
                link += node.children
                node.replace_self(link)


def setup(app: Sphinx) -> dict[str, Any]:
    """Called by Sphinx."""
    app.add_transform(OutsideLinks)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
