"""Recurrences, and other loops over networks whose passes can't be made one call."""

from __future__ import annotations

import ast
from functools import lru_cache

from hotloop.profiler.diagnose import source
from hotloop.profiler.diagnose.source import Block
from hotloop.profiler.session.syntax import parsed

# What only keeps its arguments.
_KEEPING = {"append", "concatenate", "cat", "stack", "hstack", "vstack", "add", "extend"}


@lru_cache(maxsize=4096)
def calls_what_it_goes_through(file: str, loop: Block) -> bool:
    """Whether a loop calls its own elements, `net(x)` or `nets[i](x)`: of networks, not states."""
    called = source.names_called(file, loop)
    tree = parsed(file)
    for node in ast.walk(tree) if tree else ():
        if isinstance(node, ast.ListComp | ast.GeneratorExp | ast.SetComp | ast.DictComp):
            targets = [one.target for one in node.generators]
        elif isinstance(node, ast.For):
            targets = [node.target]
        else:
            continue
        if Block(node.lineno, node.end_lineno or node.lineno) != loop:
            continue
        names = {part.id for one in targets for part in ast.walk(one) if isinstance(part, ast.Name)}
        indices = {
            part.id
            for call in ast.walk(node)
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Subscript)
            for part in ast.walk(call.func.slice)
            if isinstance(part, ast.Name)
        }
        if names & (called | indices):
            return True
    return False


@lru_cache(maxsize=4096)
def feeds_itself(file: str, loop: Block, line: int) -> bool:
    """Whether a call at a line of a loop is given what the same statement made a pass before.

    So a recurrent network's state comes from step to step, and a model's prediction of the next
    state. Such calls can't be made one call for all passes.
    """
    node = _loop_at(file, loop)
    if node is None:
        return False
    at = source.statement_at(file, line)
    assigned = [one for one in ast.walk(node) if isinstance(one, ast.Assign)]
    own = [one for one in assigned if one.lineno == at.first]
    made = {name for one in own for name in _assigned(one)}
    given = {name for one in own for name in _given(one.value)}
    size = -1
    while len(given) != size:  # and what that is made of, in this pass or the last
        size = len(given)
        for one in assigned:
            if one not in own and _assigned(one) & given:
                given |= _dotted_names(one.value)
    return bool(made & given)


def _loop_at(file: str, loop: Block) -> ast.For | ast.While | None:
    tree = parsed(file)
    for node in ast.walk(tree) if tree else ():
        is_loop = isinstance(node, ast.For | ast.While)
        if is_loop and Block(node.lineno, node.end_lineno or node.lineno) == loop:
            return node
    return None


def _assigned(node: ast.Assign) -> set[str]:
    """Plain and dotted names: elements of arrays are other ones in each pass."""
    return {
        ast.unparse(part)
        for target in node.targets
        for part in (target.elts if isinstance(target, ast.Tuple | ast.List) else (target,))
        if isinstance(part, ast.Name | ast.Attribute)
    }


def _given(node: ast.expr) -> set[str]:
    """Names in the arguments of calls, but for those that only keep them."""
    return {
        name
        for call in ast.walk(node)
        if isinstance(call, ast.Call) and _name_of(call) not in _KEEPING
        for one in (*call.args, *(keyword.value for keyword in call.keywords))
        for name in _dotted_names(one)
    }


def _name_of(call: ast.Call) -> str:
    return getattr(call.func, "attr", None) or getattr(call.func, "id", "")


def _dotted_names(node: ast.AST) -> set[str]:
    return {ast.unparse(one) for one in ast.walk(node) if isinstance(one, ast.Name | ast.Attribute)}
