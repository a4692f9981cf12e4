"""Structures that only ever grow, and the lines that go through all of them."""

from __future__ import annotations

import ast
from functools import lru_cache

from hotloop.profiler.diagnose.source import Block
from hotloop.profiler.session.syntax import parsed

_GROWING = {"append", "extend", "insert"}
_SHRINKING = {"pop", "popleft", "popitem", "clear", "remove"}


@lru_cache(maxsize=4096)
def is_walked(file: str, block: Block) -> bool:
    """Whether a call in some lines is given a whole structure that only grows."""
    growing = _growing(file)
    if not growing:
        return False
    tree = parsed(file)
    return any(
        isinstance(node, ast.Call)
        and node.lineno in block
        and any(_dotted(one) in growing for one in node.args)
        for node in (ast.walk(tree) if tree else ())
    )


@lru_cache(maxsize=256)
def _growing(file: str) -> frozenset[str]:
    """Names and attributes that are appended to, made once, and never made smaller."""
    tree = parsed(file)
    if tree is None:
        return frozenset()
    grown: set[str] = set()
    others: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            name = _dotted(node.func.value)
            if node.func.attr in _GROWING:
                grown.add(name)
            elif node.func.attr in _SHRINKING:
                others.add(name)
        elif isinstance(node, ast.Delete | ast.Assign):
            # `del x[:9]`, `x[:] = []`: some of it goes.
            others.update(
                _dotted(one.value) for one in node.targets if isinstance(one, ast.Subscript)
            )
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name != "__init__":
            others |= _assigned(node)
    once = _assigned_once(tree)
    return frozenset((grown & once) - others - {""})


def _assigned(function: ast.AST) -> set[str]:
    """Names and attributes that are given values in a function; arguments are."""
    found: set[str] = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            targets = [part for one in node.targets for part in ast.walk(one)]
        elif isinstance(node, ast.AnnAssign | ast.For | ast.comprehension):
            targets = [*ast.walk(node.target)]
        elif isinstance(node, ast.arg):
            found.add(node.arg)
            continue
        else:
            continue
        found |= {_dotted(one) for one in targets if isinstance(one, ast.Name | ast.Attribute)}
    return found


def _assigned_once(tree: ast.Module) -> set[str]:
    """Names and attributes that one statement of a file makes, of something without a limit."""
    counts: dict[str, int] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            has_limit = "maxlen" in ast.unparse(node.value)
            for one in targets:
                name = _dotted(one)
                counts[name] = counts.get(name, 0) + (2 if has_limit else 1)
    return {name for name, count in counts.items() if count == 1}


def _dotted(node: ast.AST) -> str:
    """`name` or `name.attribute`; empty: something else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return f"{node.value.id}.{node.attr}"
    return ""
