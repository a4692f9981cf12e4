"""The purpose of a forward pass, acting or learning, in a script that has both in one piece.

A training loop without functions, as in CleanRL, steps environments in some lines and runs backward
passes in others. The innermost block of the source (loop, function, branch) around a forward pass
that contains only one of the two determines its purpose. If every block around it contains both,
the order does: code before the environment step acts, and code between it and the backward pass
learns.

The operations of a loss run in the script's own lines. Lines in a block with a backward pass and no
environment step are learning. So are the lines between environment steps and the backward pass.

Assignments to elements in a loop that steps environments store data for learning.

An environment without a known base class is recognized by its methods (`is_environment`).

Lines that compute the action are acting: those before an environment step, in the same loop, that
assign its arguments or the values that the arguments depend on. So are lines that compute other
values from the same variables, such as the value and the log-probability of the action.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from hotloop.profiler.session import Frame, Stack, is_library
from hotloop.profiler.session.syntax import CodeBlock, called_name, nodes, parse_file, source_cache

_LOGS = {"log", "debug", "info", "warning", "error", "add_histogram", "add_text", "record", "dump"}
_BLOCK_NODES = (ast.For, ast.While, ast.With, ast.If, ast.FunctionDef, ast.AsyncFunctionDef)


class PurposeClassifier:
    """A classifier of code as acting or learning, by the lines that step environments or learn.

    Args:
        labeled_stacks: stacks of samples, each with its stage.
    """

    def __init__(self, labeled_stacks: Iterable[tuple[Stack, str]]) -> None:
        self._lines: dict[str, dict[str, set[int]]] = {}
        self._function_stages: dict[tuple[str, str], set[str]] = {}
        for stack, stage in labeled_stacks:
            if stage not in ("env", "update"):
                continue
            for frame, line in zip(stack.frames, stack.lines, strict=True):
                if is_library(frame) or not line:
                    continue
                self._lines.setdefault(frame.file, {}).setdefault(stage, set()).add(line)
                self._function_stages.setdefault((frame.file, frame.function), set()).add(stage)

    def is_acting(self, stack: Stack) -> bool:
        """Return whether any of the user's lines of a stack computes an action."""
        return any(
            line in _acting_lines(frame.file, frozenset(self._lines[frame.file].get("env", ())))
            for frame, line in zip(stack.frames, stack.lines, strict=True)
            if line and frame.file in self._lines
        )

    def classify_forward(self, stack: Stack) -> str:
        """Return `act` or `update` for the stack of a forward pass."""
        if self.is_acting(stack):
            return "act"
        for frame, line in self._labeled_frames(stack):
            stages = self._innermost_stages(frame, line)
            if stages.keys() == {"update"}:
                return "update"
            if stages:
                is_after_env = "update" in stages and line > max(stages["env"])
                return "update" if is_after_env else "act"
        return "act"

    def classify_user_lines(self, stack: Stack) -> str | None:
        """Return `act` or `update` for the user's own code, or None if it is unknown."""
        if self.is_acting(stack):
            return "act"
        for frame, line in self._labeled_frames(stack):
            stages = self._innermost_stages(frame, line)
            last = {stage: max(lines) for stage, lines in stages.items()}
            is_between = "update" in last and last.get("env", 0) < line <= last["update"]
            return "update" if stages.keys() == {"update"} or is_between else None
        return None

    def classify_statement(self, stack: Stack) -> str | None:
        """Return `logging` or `replay` by the kind of statement of a user's line, or None."""
        frame, line = stack.frames[-1], stack.lines[-1]
        if is_library(frame):
            return None
        if line in _statement_lines(frame.file).logging:
            return "logging"
        is_storing = line in _statement_lines(frame.file).storing
        place = next(self._labeled_frames(stack), None) if is_storing else None
        is_collecting = place is not None and self._innermost_stages(*place).keys() == {"env"}
        return "replay" if is_collecting else None

    def _labeled_frames(self, stack: Stack) -> Iterator[tuple[Frame, int]]:
        """Yield the user's frames in functions with labels, and their lines, innermost first."""
        for frame, line in zip(reversed(stack.frames), reversed(stack.lines), strict=True):
            if (frame.file, frame.function) in self._function_stages and line:
                yield frame, line

    def _innermost_stages(self, frame: Frame, line: int) -> dict[str, list[int]]:
        """Return the stages in the innermost block around a line that has any, with their lines."""
        stages = self._function_stages[frame.file, frame.function]
        if len(stages) == 1:
            return {stage: [line] for stage in stages}
        for block in _blocks_around(frame.file, line):
            lines_by_stage = {
                stage: [number for number in lines if block.first <= number <= block.last]
                for stage, lines in self._lines[frame.file].items()
            }
            present = {stage: lines for stage, lines in lines_by_stage.items() if lines}
            if present:
                return present
        return {}


@source_cache(256)
def _acting_lines(file: str, env_lines: frozenset[int]) -> frozenset[int]:
    """Return lines that compute the arguments of the environment steps at `env_lines`."""
    if not env_lines:
        return frozenset()
    lines: set[int] = set()
    for scope in nodes(file, ast.For, ast.While, ast.FunctionDef, ast.AsyncFunctionDef):
        assignments = [
            node for node in ast.walk(scope) if isinstance(node, (ast.Assign, ast.AnnAssign))
        ]
        for call in (node for node in ast.walk(scope) if isinstance(node, ast.Call)):
            is_step = isinstance(call.func, ast.Attribute) and call.func.attr.startswith("step")
            if is_step and call.lineno in env_lines:
                lines |= _argument_lines(call, assignments)
    for loop in nodes(file, ast.For, ast.While):
        lines |= _derived_lines(loop, env_lines, lines)
    return frozenset(lines)


def _derived_lines(
    loop: ast.For | ast.While, env_lines: frozenset[int], acting: set[int]
) -> set[int]:
    """Return lines of a loop that compute further values from the results of acting lines."""
    # They are assignments to names before the loop's steps. Heads of `with` blocks that contain
    # acting lines and no step, such as `no_grad`, belong to them.
    nodes = [*ast.walk(loop)]
    step_lines = [line for line in env_lines if line in CodeBlock.of(loop)]
    assignments = [
        node
        for node in nodes
        if isinstance(node, ast.Assign)
        and node.lineno < min(step_lines, default=0)
        and all(map(_target_names, node.targets))
    ]
    derived_names = {
        name
        for node in assignments
        if node.lineno in acting
        for target in node.targets
        for name in _target_names(target)
    }
    lines: set[int] = set()
    for node in sorted(assignments, key=lambda node: node.lineno):
        is_text = any(isinstance(child, ast.JoinedStr) for child in ast.walk(node.value))
        if node.lineno not in acting and not is_text and _read_names(node.value) & derived_names:
            lines.update(CodeBlock.of(node).lines)
            derived_names |= set().union(*map(_target_names, node.targets))
    for node in nodes:
        if not isinstance(node, (ast.With, ast.AsyncWith)):
            continue
        body_lines = range(node.body[0].lineno, (node.end_lineno or node.lineno) + 1)
        if not acting.isdisjoint(body_lines) and env_lines.isdisjoint(body_lines):
            lines.update(range(node.lineno, body_lines.start))
    return lines


def _argument_lines(call: ast.Call, assignments: list[ast.Assign | ast.AnnAssign]) -> set[int]:
    """Return the lines of the assignments that a call's arguments depend on."""
    names = set().union(*(_read_names(argument) for argument in call.args)) if call.args else set()
    lines: set[int] = set()
    for assignment in sorted(assignments, key=lambda node: -node.lineno):
        targets = assignment.targets if isinstance(assignment, ast.Assign) else [assignment.target]
        if assignment.lineno >= call.lineno or assignment.value is None:
            continue
        if names & set().union(*(_target_names(target) for target in targets)):
            lines.update(CodeBlock.of(assignment).lines)
            names |= _read_names(assignment.value)
    return lines


def _read_names(node: ast.AST) -> set[str]:
    """Return the plain and dotted names that are read, without those of called functions."""
    # The object of a conversion, such as `action.cpu().numpy()`, counts as read.
    called_ids = {
        id(function_node)
        for child in ast.walk(node)
        if isinstance(child, ast.Call) and not _is_conversion(child)
        for function_node in _attribute_chain(child.func)
    }
    return {
        ast.unparse(child)
        for child in ast.walk(node)
        if isinstance(child, (ast.Name, ast.Attribute)) and id(child) not in called_ids
    }


def _is_conversion(call: ast.Call) -> bool:
    """Return whether a method of a plain name is called without arguments or with constants."""
    return (
        isinstance(call.func, ast.Attribute)
        and isinstance(call.func.value, ast.Name)
        and all(isinstance(argument, ast.Constant | ast.UnaryOp) for argument in call.args)
        and not call.keywords
    )


def _attribute_chain(node: ast.expr) -> Iterator[ast.expr]:
    while isinstance(node, ast.Attribute):
        yield node
        node = node.value
    yield node


def _target_names(node: ast.expr) -> set[str]:
    if isinstance(node, (ast.Tuple, ast.List)):
        return set().union(*(_target_names(element) for element in node.elts))
    return {ast.unparse(node)} if isinstance(node, (ast.Name, ast.Attribute)) else set()


# Parameter names of an environment's step, of an agent's step only, and names of classes.
_ACTION = re.compile(r"action|^_?(a|u|acs?|acts?|moves?|arm|cmd|commands?|controls?|torques?)$")
_RESULT = re.compile(r"reward|next|done|loss|terminat|truncat")
_ENVIRONMENT = re.compile(r"(?i)env|world|bandit|game|maze|grid|simulat")


def is_environment(frame: Frame) -> bool:
    """Return whether a function is a step or reset of an environment written by hand.

    If the source is missing, every method of such a name counts.
    """
    if is_library(frame):
        return False
    if parse_file(frame.file) is None:
        return "." in frame.function and frame.function.endswith((".step", ".reset", ".step_wait"))
    return frame.first_line in _environment_methods(frame.file)


@source_cache(256)
def _environment_methods(file: str) -> frozenset[int]:
    """Return the first lines of steps and resets of environments in a file.

    An environment's step takes an action and returns something. An agent's step takes results of an
    environment's step, and a trainer's step takes no action.
    """
    lines: set[int] = set()
    for owner in nodes(file, ast.ClassDef):
        methods = {node.name: node for node in owner.body if isinstance(node, ast.FunctionDef)}
        steps = [node for name, node in methods.items() if name in ("step", "step_wait")]
        known = [node for node in steps if _is_environment_step(node, owner.name)]
        resets = [methods["reset"]] if "reset" in methods and known else []
        for node in (*known, *resets):
            lines.add(min([node.lineno, *(x.lineno for x in node.decorator_list)]))
    return frozenset(lines)


def _is_environment_step(step: ast.FunctionDef, owner: str) -> bool:
    names = [arg.arg for arg in (*step.args.posonlyargs, *step.args.args)]
    returns = any(isinstance(x, ast.Return) and x.value is not None for x in ast.walk(step))
    has_action = step.name == "step_wait" or any(map(_ACTION.search, names))
    is_result = any(map(_RESULT.search, names))
    return has_action and not is_result and (returns or bool(_ENVIRONMENT.search(owner)))


class _StatementLines(NamedTuple):
    """Lines of a file with statements that log or print, and that assign to elements."""

    logging: frozenset[int]
    storing: frozenset[int]


@source_cache(256)
def _statement_lines(file: str) -> _StatementLines:
    logging: set[int] = set()
    storing: set[int] = set()
    for node in nodes(file, ast.Expr):
        name = called_name(node.value) if isinstance(node.value, ast.Call) else ""
        if name == "print" or name in _LOGS or name.startswith("add_scalar"):
            logging.update(CodeBlock.of(node).lines)
    for node in nodes(file, ast.Assign):
        if all(isinstance(target, ast.Subscript) for target in node.targets):
            storing.update(CodeBlock.of(node).lines)
    return _StatementLines(frozenset(logging), frozenset(storing))


@source_cache(65536)
def _blocks_around(file: str, line: int) -> tuple[CodeBlock, ...]:
    return tuple(block for block in _blocks(file) if line in block)


@source_cache(256)
def _blocks(file: str) -> tuple[CodeBlock, ...]:
    """Return the blocks of a file, shortest first, and last the whole file."""
    blocks = map(CodeBlock.of, nodes(file, *_BLOCK_NODES))
    return (*sorted(blocks, key=lambda block: len(block.lines)), CodeBlock(0, 2**31))
