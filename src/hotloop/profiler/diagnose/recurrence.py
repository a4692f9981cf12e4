"""Results of calls: recurrences, loops over networks, and values that a function returns."""

from __future__ import annotations

import ast

from hotloop.profiler.diagnose import source
from hotloop.profiler.diagnose.source import CodeBlock
from hotloop.profiler.session.catalogues import WORDS
from hotloop.profiler.session.syntax import called_name, names_in, nodes_in, source_cache


@source_cache(4096)
def calls_its_elements(file: str, loop: CodeBlock) -> bool:
    """Return whether a loop calls its elements, `net(x)` or `nets[i](x)`: networks, not states."""
    called = source.names_called(file, loop)
    for node in nodes_in(file, loop, ast.For, *source.COMPREHENSIONS):
        if CodeBlock.of(node) != loop:
            continue
        targets = [node] if isinstance(node, ast.For) else node.generators
        names = {name for part in targets for name in names_in(part.target)}
        indices = {
            name
            for call in ast.walk(node)
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Subscript)
            for name in names_in(call.func.slice)
        }
        if names & (called | indices):
            return True
    return False


@source_cache(4096)
def is_recurrent(file: str, loop: CodeBlock, line: int) -> bool:
    """Return whether a call in a loop takes its statement's result of the previous iteration.

    This holds for the hidden state of a recurrent network and for a model that predicts the next
    state. Such calls cannot be batched over the iterations.
    """
    node = _loop_at(file, loop)
    if node is None:
        return False
    statement = source.statement_at(file, line)
    assignments = [part for part in ast.walk(node) if isinstance(part, ast.Assign)]
    at_line = [assign for assign in assignments if assign.lineno == statement.first]
    results = {name for assign in at_line for name in _assigned_names(assign)}
    inputs = {name for assign in at_line for name in _argument_names(assign.value)}
    size = -1
    while len(inputs) != size:  # add the names that the inputs are computed from
        size = len(inputs)
        for assign in assignments:
            if assign not in at_line and _assigned_names(assign) & inputs:
                inputs |= _dotted_names(assign.value)
    return bool(results & inputs)


@source_cache(4096)
def returns_result(file: str, line: int) -> bool:
    """Return whether the result of a statement is part of what its function returns."""
    statement, around = source.statement_at(file, line), source.function_around(file, line)
    returns = nodes_in(file, around, ast.Return)
    if any(node.lineno == statement.first for node in returns):
        return True
    results: set[str] = set()
    for node in nodes_in(file, around, ast.Assign):
        if node.lineno == statement.first or _dotted_names(node.value) & results:
            results |= {name for target in node.targets for name in _dotted_names(target)}
    return any(_dotted_names(node) & results for node in returns)


def _loop_at(file: str, loop: CodeBlock) -> ast.For | ast.While | None:
    loops = nodes_in(file, loop, ast.For, ast.While)
    return next((node for node in loops if CodeBlock.of(node) == loop), None)


def _assigned_names(node: ast.Assign) -> set[str]:
    """Return plain and dotted targets. Array elements differ in each iteration and are skipped."""
    return {
        ast.unparse(part)
        for target in node.targets
        for part in (target.elts if isinstance(target, ast.Tuple | ast.List) else (target,))
        if isinstance(part, ast.Name | ast.Attribute)
    }


def _argument_names(node: ast.expr) -> set[str]:
    """Return the names in arguments of calls, except of calls that only store them."""
    return {
        name
        for call in ast.walk(node)
        if isinstance(call, ast.Call) and called_name(call) not in WORDS["collecting"]
        for arg in (*call.args, *(keyword.value for keyword in call.keywords))
        for name in _dotted_names(arg)
    }


def _dotted_names(node: ast.AST) -> set[str]:
    return {ast.unparse(x) for x in ast.walk(node) if isinstance(x, ast.Name | ast.Attribute)}
