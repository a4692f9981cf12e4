"""Products of matrices that are made row by row, where one product would do."""

from __future__ import annotations

import ast
from functools import lru_cache

from hotloop.profiler.diagnose.source import Block
from hotloop.profiler.session.syntax import parsed

_PRODUCTS = {"dot", "matmul", "inner", "mv", "mm"}
# As many products take no longer than stacking what they are of.
_FEW = 4


@lru_cache(maxsize=4096)
def are_made_row_by_row(file: str, loop: Block) -> bool:
    """Whether a comprehension multiplies each of its elements with one and the same matrix.

    Rows on the left and weights on the right: the other way round they may be layers, or members of
    a population, each of which is a matrix of its own.
    """
    tree = parsed(file)
    for node in ast.walk(tree) if tree else ():
        if not isinstance(node, ast.ListComp | ast.GeneratorExp | ast.SetComp):
            continue
        if Block(node.lineno, node.end_lineno or node.lineno) != loop:
            continue
        if any(_is_short(one.iter) for one in node.generators):
            continue
        elements = {name for one in node.generators for name in _names(one.target)}
        for left, right in _factors(node.elt):
            if _names(left) & elements and not _names(right) & elements:
                return True
    return False


def _is_short(iterated: ast.expr) -> bool:
    """Whether it is a range of a few numbers that are written out: actions, and no states."""
    if not isinstance(iterated, ast.Call) or getattr(iterated.func, "id", "") != "range":
        return False
    values = [one.value for one in iterated.args if isinstance(one, ast.Constant)]
    numbers = [one for one in values if isinstance(one, int)]
    if len(numbers) != len(iterated.args) or len(numbers) not in (1, 2):
        return False
    return numbers[-1] - (numbers[0] if len(numbers) == 2 else 0) <= _FEW


def _factors(tree: ast.AST) -> list[tuple[ast.AST, ast.AST]]:
    """What is multiplied with what."""
    found: list[tuple[ast.AST, ast.AST]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
            found.append((node.left, node.right))
        elif isinstance(node, ast.Call):
            name = getattr(node.func, "attr", None) or getattr(node.func, "id", None)
            if name in _PRODUCTS and len(node.args) == 2:
                found.append((node.args[0], node.args[1]))
            elif name in _PRODUCTS and len(node.args) == 1 and isinstance(node.func, ast.Attribute):
                found.append((node.func.value, node.args[0]))
    return found


def _names(node: ast.AST) -> set[str]:
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
