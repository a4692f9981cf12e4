"""Matrix products that are computed row by row instead of as one product."""

from __future__ import annotations

import ast

from hotloop.profiler.diagnose.source import CodeBlock
from hotloop.profiler.session.catalogues import WORDS
from hotloop.profiler.session.syntax import called_name, names_in, nodes_in, source_cache

# Up to this many products take no longer than stacking their operands.
_FEW = 4


@source_cache(4096)
def multiplies_row_by_row(file: str, loop: CodeBlock) -> bool:
    """Return whether a comprehension multiplies each of its elements by the same matrix.

    Only elements on the left and a fixed matrix on the right count. In the other order the elements
    may be layers, or members of a population, each of which has its own matrix.
    """
    for node in nodes_in(file, loop, ast.ListComp, ast.GeneratorExp, ast.SetComp):
        if CodeBlock.of(node) != loop:
            continue
        if any(_is_short_range(generator.iter) for generator in node.generators):
            continue
        elements = {name for generator in node.generators for name in names_in(generator.target)}
        for left_operand, right_operand in _factors(node.elt):
            if names_in(left_operand) & elements and not names_in(right_operand) & elements:
                return True
    return False


def _is_short_range(iterable: ast.expr) -> bool:
    """Return whether it is a `range` of a few literal numbers: actions rather than states."""
    if not isinstance(iterable, ast.Call) or getattr(iterable.func, "id", "") != "range":
        return False
    values = [arg.value for arg in iterable.args if isinstance(arg, ast.Constant)]
    numbers = [value for value in values if isinstance(value, int)]
    if len(numbers) != len(iterable.args) or len(numbers) not in (1, 2):
        return False
    return numbers[-1] - (numbers[0] if len(numbers) == 2 else 0) <= _FEW


def _factors(tree: ast.AST) -> list[tuple[ast.AST, ast.AST]]:
    found: list[tuple[ast.AST, ast.AST]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
            found.append((node.left, node.right))
        elif isinstance(node, ast.Call) and called_name(node) in WORDS["plain_products"]:
            if len(node.args) == 2:
                found.append((node.args[0], node.args[1]))
            elif len(node.args) == 1 and isinstance(node.func, ast.Attribute):
                found.append((node.func.value, node.args[0]))
    return found
