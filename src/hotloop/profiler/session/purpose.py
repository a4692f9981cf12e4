"""The purpose of a forward pass, acting or learning, in a script that has both in one piece.

A training loop without functions, as CleanRL writes them, steps environments in some of its lines
and goes backward in others. The innermost block of the source (loop, function, branch) around a
forward pass that holds only one of the two says what it is for. Where every block around it holds
both, the order does: what stands before the step of the environments acts, what stands between it
and the backward pass learns.

A loss is made of operations that run in the script's own lines. Those in a block that goes backward
and steps no environment are learning too, and so is what stands between environments and learning.

Elements that are assigned in a loop that steps environments are stored for learning.

What the action is made of is acting: the lines before an environment's step, in the same loop, that
assign what its arguments are, and what those are made of in turn. So is what is made beside it of
the same things, as its value and its probability are.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import NamedTuple

from hotloop.profiler.session import Frame, Stack, is_library
from hotloop.profiler.session.syntax import parsed

_LOGS = {"log", "debug", "info", "warning", "error", "add_histogram", "add_text", "record", "dump"}
_BLOCKS = (ast.For, ast.While, ast.With, ast.If, ast.FunctionDef, ast.AsyncFunctionDef)


class Purpose:
    """What code is for, by the places that environments are stepped and learned at.

    Args:
        known: stacks of samples, and the stage that each is in.
    """

    def __init__(self, known: Iterable[tuple[Stack, str]]) -> None:
        self._lines: dict[str, dict[str, set[int]]] = {}
        self._functions: dict[tuple[str, str], set[str]] = {}
        for stack, stage in known:
            if stage not in ("env", "update"):
                continue
            for frame, line in zip(stack.frames, stack.lines, strict=True):
                if is_library(frame) or not line:
                    continue
                self._lines.setdefault(frame.file, {}).setdefault(stage, set()).add(line)
                self._functions.setdefault((frame.file, frame.function), set()).add(stage)

    def acts(self, stack: Stack) -> bool:
        """Whether an action is made in any of the user's lines of a stack."""
        return any(
            line in _acting_lines(frame.file, frozenset(self._lines[frame.file].get("env", ())))
            for frame, line in zip(stack.frames, stack.lines, strict=True)
            if line and frame.file in self._lines
        )

    def of(self, stack: Stack) -> str:
        """Of a forward pass: `act` or `update`."""
        if self.acts(stack):
            return "act"
        for frame, line in self._known_places(stack):
            inside = self._innermost(frame, line)
            if inside.keys() == {"update"}:
                return "update"
            if inside:
                is_behind = "update" in inside and line > max(inside["env"])
                return "update" if is_behind else "act"
        return "act"

    def of_own_lines(self, stack: Stack) -> str | None:
        """`act` or `update`, or None: nothing says so."""
        if self.acts(stack):
            return "act"
        for frame, line in self._known_places(stack):
            inside = self._innermost(frame, line)
            last = {stage: max(lines) for stage, lines in inside.items()}
            is_between = "update" in last and last.get("env", 0) < line <= last["update"]
            return "update" if inside.keys() == {"update"} or is_between else None
        return None

    def of_statement(self, stack: Stack) -> str | None:
        """`logging` or `replay`, by what kind of statement an own line is; or None."""
        frame, line = stack.frames[-1], stack.lines[-1]
        if is_library(frame):
            return None
        if line in _lines_of(frame.file).logging:
            return "logging"
        is_storing = line in _lines_of(frame.file).storing
        place = next(self._known_places(stack), None) if is_storing else None
        is_collecting = place is not None and self._innermost(*place).keys() == {"env"}
        return "replay" if is_collecting else None

    def _known_places(self, stack: Stack) -> Iterator[tuple[Frame, int]]:
        """The user's functions in which something is seen, and lines, from the innermost out."""
        for frame, line in zip(reversed(stack.frames), reversed(stack.lines), strict=True):
            if (frame.file, frame.function) in self._functions and line:
                yield frame, line

    def _innermost(self, frame: Frame, line: int) -> dict[str, list[int]]:
        """Of the innermost block around a line that holds any: the stages, and at which lines."""
        of_function = self._functions[frame.file, frame.function]
        if len(of_function) == 1:
            return {stage: [line] for stage in of_function}
        for first, last in _blocks(frame.file, line):
            inside = {
                stage: [one for one in lines if first <= one <= last]
                for stage, lines in self._lines[frame.file].items()
            }
            seen = {stage: lines for stage, lines in inside.items() if lines}
            if seen:
                return seen
        return {}


@lru_cache(maxsize=256)
def _acting_lines(file: str, env_lines: frozenset[int]) -> frozenset[int]:
    """Lines that make the arguments of the steps that were seen at some lines."""
    tree = parsed(file)
    if tree is None or not env_lines:
        return frozenset()
    found: set[int] = set()
    for scope in ast.walk(tree):
        if not isinstance(scope, (ast.For, ast.While, ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        simple = [one for one in ast.walk(scope) if isinstance(one, (ast.Assign, ast.AnnAssign))]
        for call in (one for one in ast.walk(scope) if isinstance(one, ast.Call)):
            is_step = isinstance(call.func, ast.Attribute) and call.func.attr.startswith("step")
            if is_step and call.lineno in env_lines:
                found |= _made_before(call, simple)
    for loop in ast.walk(tree):
        if isinstance(loop, (ast.For, ast.While)):
            found |= _made_beside(loop, env_lines, found)
    return frozenset(found)


def _made_beside(
    loop: ast.For | ast.While, env_lines: frozenset[int], acting: set[int]
) -> set[int]:
    """Lines of a loop that make something else of what acting lines of it make.

    They stand before its steps, and assign names. Heads of `with` around acting lines alone, as of
    `no_grad`, go with them.
    """
    nodes = [*ast.walk(loop)]
    steps = [line for line in env_lines if loop.lineno <= line <= (loop.end_lineno or 0)]
    assigned = [
        one
        for one in nodes
        if isinstance(one, ast.Assign)
        and one.lineno < min(steps, default=0)
        and all(map(_targets, one.targets))
    ]
    made = {
        name
        for one in assigned
        if one.lineno in acting
        for target in one.targets
        for name in _targets(target)
    }
    beside: set[int] = set()
    for one in sorted(assigned, key=lambda node: node.lineno):
        is_text = any(isinstance(part, ast.JoinedStr) for part in ast.walk(one.value))
        if one.lineno not in acting and not is_text and _names(one.value) & made:
            beside.update(range(one.lineno, (one.end_lineno or one.lineno) + 1))
            made |= set().union(*map(_targets, one.targets))
    for one in nodes:
        if not isinstance(one, (ast.With, ast.AsyncWith)):
            continue
        inside = range(one.body[0].lineno, (one.end_lineno or one.lineno) + 1)
        if not acting.isdisjoint(inside) and env_lines.isdisjoint(inside):
            beside.update(range(one.lineno, inside.start))
    return beside


def _made_before(call: ast.Call, assignments: list[ast.Assign | ast.AnnAssign]) -> set[int]:
    """Lines of the assignments that a call's arguments come from."""
    wanted = set().union(*(_names(one) for one in call.args)) if call.args else set()
    lines: set[int] = set()
    for one in sorted(assignments, key=lambda node: -node.lineno):
        targets = one.targets if isinstance(one, ast.Assign) else [one.target]
        if one.lineno >= call.lineno or one.value is None:
            continue
        if wanted & set().union(*(_targets(target) for target in targets)):
            lines.update(range(one.lineno, (one.end_lineno or one.lineno) + 1))
            wanted |= _names(one.value)
    return lines


def _names(node: ast.AST) -> set[str]:
    """Plain and dotted names that are read, but for what is called: that is made elsewhere.

    What is asked for another form of itself, as by `action.cpu().numpy()`, is read.
    """
    called = {
        id(part)
        for one in ast.walk(node)
        if isinstance(one, ast.Call) and not _is_form_of(one)
        for part in _chain(one.func)
    }
    return {
        ast.unparse(one)
        for one in ast.walk(node)
        if isinstance(one, (ast.Name, ast.Attribute)) and id(one) not in called
    }


def _is_form_of(call: ast.Call) -> bool:
    """Whether a method of a plain name is called with nothing, or with numbers alone."""
    return (
        isinstance(call.func, ast.Attribute)
        and isinstance(call.func.value, ast.Name)
        and all(isinstance(one, ast.Constant | ast.UnaryOp) for one in call.args)
        and not call.keywords
    )


def _chain(node: ast.expr) -> Iterator[ast.expr]:
    """A name with what stands before its dots, as long as these are names."""
    while isinstance(node, ast.Attribute):
        yield node
        node = node.value
    yield node


def _targets(node: ast.expr) -> set[str]:
    """Names that are assigned; of a tuple each."""
    if isinstance(node, (ast.Tuple, ast.List)):
        return set().union(*(_targets(one) for one in node.elts))
    return {ast.unparse(node)} if isinstance(node, (ast.Name, ast.Attribute)) else set()


class _Lines(NamedTuple):
    """Lines of a file: of statements that log or print, and that assign elements."""

    logging: frozenset[int]
    storing: frozenset[int]


@lru_cache(maxsize=256)
def _lines_of(file: str) -> _Lines:
    logging: set[int] = set()
    storing: set[int] = set()
    tree = parsed(file)
    for node in ast.walk(tree) if tree else ():
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            function = node.value.func
            name = getattr(function, "attr", None) or getattr(function, "id", "")
            if name == "print" or name in _LOGS or name.startswith("add_scalar"):
                logging.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        elif isinstance(node, ast.Assign) and all(
            isinstance(target, ast.Subscript) for target in node.targets
        ):
            storing.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return _Lines(frozenset(logging), frozenset(storing))


def _blocks(file: str, line: int) -> list[tuple[int, int]]:
    """First and last lines of the blocks around a line, from the innermost out."""
    return [(first, last) for first, last in _all_blocks(file) if first <= line <= last]


@lru_cache(maxsize=256)
def _all_blocks(file: str) -> tuple[tuple[int, int], ...]:
    tree = parsed(file)
    if tree is None:
        return ((0, 2**31),)
    found: list[tuple[int, int]] = []
    for node in ast.walk(tree):
        if isinstance(node, _BLOCKS):
            found.append((node.lineno, node.end_lineno or node.lineno))
    found.append((0, 2**31))
    return tuple(sorted(found, key=lambda block: block[1] - block[0]))
