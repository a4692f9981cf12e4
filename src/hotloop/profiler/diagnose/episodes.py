"""Functions that play episodes, and methods that step another environment."""

from __future__ import annotations

import ast

from hotloop.profiler.diagnose import source
from hotloop.profiler.session.catalogues import WORDS
from hotloop.profiler.session.syntax import called_name, names_in, nodes_in, source_cache

_YIELDS = (ast.Yield, ast.YieldFrom)


@source_cache(4096)
def unpacks_step(file: str, block: source.CodeBlock) -> bool:
    """Return whether some lines unpack the result of a step: at least four parts."""
    return any(map(_is_unpacked_step, nodes_in(file, block, ast.Assign)))


def _is_unpacked_step(node: ast.Assign) -> bool:
    target = node.targets[0]
    return (
        isinstance(node.value, ast.Call)
        and called_name(node.value) == "step"
        and isinstance(target, ast.Tuple)
        and len(target.elts) >= 4
    )


@source_cache(4096)
def only_scores_episodes(file: str, first_line: int) -> bool:
    """Return whether the function at a line plays episodes and only keeps their returns.

    Such a function resets an environment and steps it in a loop. It neither learns nor stores or
    returns observations, actions or single rewards.
    """
    function = source.function_at(file, first_line)
    if function is None or any(isinstance(x, _YIELDS) for x in ast.walk(function)):
        return False
    calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
    if WORDS["learning"] & {called_name(call) for call in calls} or "reset" not in map(
        called_name, calls
    ):
        return False
    steps = [
        node
        for loop in ast.walk(function)
        if isinstance(loop, ast.For | ast.While)
        for node in ast.walk(loop)
        if isinstance(node, ast.Assign) and _is_unpacked_step(node)
    ]
    # Names of observations, rewards and actions.
    transition = {
        name
        for node in steps
        for part in (*node.targets[0].elts[:2], *node.value.args)  # pyright: ignore
        for name in names_in(part)
    }
    return bool(steps) and not any(_stores_any(node, transition) for node in ast.walk(function))


def _stores_any(node: ast.AST, names: set[str]) -> bool:
    if isinstance(node, ast.Call):
        return called_name(node) in WORDS["storing"] and any(
            names & names_in(arg) for arg in node.args
        )
    if isinstance(node, ast.Return):
        return node.value is not None and bool(names & names_in(node.value))
    if isinstance(node, ast.Assign):
        is_stored = any(isinstance(x, ast.Subscript | ast.Attribute) for x in node.targets)
        return is_stored and bool(names & names_in(node.value))
    if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Subscript):
        return bool(names & names_in(node.target.slice))
    return False
