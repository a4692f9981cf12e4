"""Formulas as MathML, which browsers show by themselves: no script, no network.

Pages hold formulas as GitHub takes them, `$…$` and `$$…$$`; docutils translates their LaTeX.
"""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx

# Sizes of brackets, which docutils does not know and browsers choose by themselves.
_SIZE = re.compile(r"\\[bB]igg?[lr]?(?![a-z])")


def translated(formula: str, *, as_block: bool = False) -> str:
    """A formula in LaTeX as MathML."""
    return tex2mathml(_SIZE.sub("", formula), as_block=as_block)


def _inline(writer: Any, node: nodes.math) -> None:
    writer.body.append(translated(node.astext()))
    raise nodes.SkipNode


def _block(writer: Any, node: nodes.math_block) -> None:
    writer.body.append(f'<div class="math">{translated(node.astext(), as_block=True)}</div>')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, Any]:
    """Called by Sphinx."""
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
