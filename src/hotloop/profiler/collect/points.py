"""Points in the source of a program at which a delay can be switched on while it runs.

Before each costly statement of a function or a loop, the compiled code checks a global name:

    if __hotloop_s5d1f0a2b_17__ is not None:
        __hotloop_s5d1f0a2b_17__()

The name is None in `builtins` until `delays` sets it to a function. A check takes 3 ns under
Python 3.11. Lines keep their numbers. Neither trace functions nor `sys.monitoring` are needed, so
this works in all threads, in running loops, and on every supported version of Python.
"""

from __future__ import annotations

import ast
import re
import zlib
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

# Statements without any of these take about as long as a check.
_COSTLY = (
    *(ast.Call, ast.BinOp, ast.Subscript, ast.Compare, ast.Await, ast.Yield, ast.YieldFrom),
    *(ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.JoinedStr),
)
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
# Functions that another compiler reads.
_COMPILED = re.compile(r"(^|\W)(\w*jit|pmap|vmap|vectorize|compile|kernel|script)\b")
STATEMENT, FUNCTION = "s", "f"


@dataclass
class SourcePoints:
    """Points of a file.

    Attributes:
        names: names of all checks.
        statements: first line of the statement around each line, for statements with a point. Lines
            of a loop's header belong to the loop, whose point runs in each iteration.
        loops: lines of the headers of the loops around a line, outermost first, by line.
        functions: first lines of functions, by qualified name.
        spans: lines of the statements that open a span, by its name.
    """

    names: list[str] = field(default_factory=list)
    statements: dict[int, int] = field(default_factory=dict)
    loops: dict[int, list[int]] = field(default_factory=dict)
    functions: dict[str, int] = field(default_factory=dict)
    spans: dict[str, list[int]] = field(default_factory=dict)


def point_names(kind: str, file: str, line: int) -> tuple[str, str]:
    """Return the names of a point's check in plain and in asynchronous functions."""
    number = f"{zlib.crc32(file.encode()):08x}_{line}__"
    return f"__hotloop_{kind}{number}", f"__hotloop_{kind}a{number}"


def compile_with_points(source: bytes, file: str) -> tuple[CodeType, SourcePoints]:
    """Compile a file with its points.

    Raises:
        SyntaxError: The source is not valid Python.
    """
    tree = ast.parse(source, file)
    points = insert_points(tree, file)
    return compile(tree, file, "exec", dont_inherit=True), points


def insert_points(tree: ast.Module, file: str) -> SourcePoints:
    """Insert checks into a syntax tree and return its points."""
    inserter = _Inserter(file)
    tree.body = inserter.block(tree.body, is_active=False, is_async=False, loops=[], scope=())
    ast.fix_missing_locations(tree)
    return inserter.points


class _Inserter:
    """Inserts checks into blocks of statements, from the outside in."""

    def __init__(self, file: str) -> None:
        self._file = file
        self.points = SourcePoints()

    def block(self, body: list[ast.stmt], **context: Any) -> list[ast.stmt]:
        """Return a block with checks before its costly statements."""
        checked: list[ast.stmt] = []
        for statement in body:
            has_point = context["is_active"] and _needs_point(statement)
            if has_point:
                checked.append(self._check(STATEMENT, statement, context["is_async"]))
            self._note_lines(statement, has_point, context["loops"])
            self._enter(statement, context)
            checked.append(statement)
        return checked

    def _enter(self, statement: ast.stmt, context: dict[str, Any]) -> None:
        """Insert checks into the blocks of a statement."""
        if isinstance(statement, _FUNCTIONS):
            self._enter_function(statement, context)
            return
        if isinstance(statement, ast.ClassDef):
            scope = (*context["scope"], statement.name)
            statement.body = self.block(
                statement.body, **context | {"is_active": False, "scope": scope}
            )
            return
        inner = context
        if isinstance(statement, _LOOPS):
            loops = [*context["loops"], statement.lineno]
            inner = context | {"is_active": True, "loops": loops}
        for name in ("body", "orelse", "finalbody"):
            block = getattr(statement, name, None)
            if isinstance(block, list) and block:
                in_loop = inner if name == "body" else context
                setattr(statement, name, self.block(block, **in_loop))
        for branch in (*getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
            branch.body = self.block(branch.body, **context)
        if isinstance(statement, _LOOPS):
            statement.body.insert(0, self._check(STATEMENT, statement, context["is_async"]))

    def _enter_function(
        self, function: ast.FunctionDef | ast.AsyncFunctionDef, context: dict[str, Any]
    ) -> None:
        decorators = [ast.unparse(decorator) for decorator in function.decorator_list]
        if any(_COMPILED.search(decorator) for decorator in decorators):
            return
        scope = (*context["scope"], function.name)
        first_line = min([function.lineno, *(node.lineno for node in function.decorator_list)])
        self.points.functions[".".join(scope)] = first_line
        is_async = isinstance(function, ast.AsyncFunctionDef)
        body = function.body
        has_docstring = (
            isinstance(body[0], ast.Expr)
            and isinstance(body[0].value, ast.Constant)
            and isinstance(body[0].value.value, str)
        )
        docstring = body[:1] if has_docstring else []
        inner = {
            "is_active": True,
            "is_async": is_async,
            "loops": [],
            "scope": (*scope, "<locals>"),
        }
        entry = self._check(FUNCTION, function, is_async, first_line)
        function.body = [*docstring, entry, *self.block(body[len(docstring) :], **inner)]

    def _check(
        self, kind: str, statement: ast.stmt, is_async: bool, line: int | None = None
    ) -> ast.stmt:
        """Return the statement that calls a point's function, if there is one."""
        line = statement.lineno if line is None else line
        name = point_names(kind, self._file, line)[is_async]
        self.points.names.append(name)
        call: ast.expr = ast.Call(ast.Name(name, ast.Load()), [], [])
        test = ast.Compare(ast.Name(name, ast.Load()), [ast.IsNot()], [ast.Constant(None)])
        check = ast.If(test, [ast.Expr(ast.Await(call) if is_async else call)], [])
        for node in ast.walk(check):  # without lines, a sample here would count for a neighbor
            if isinstance(node, ast.stmt | ast.expr):
                node.lineno = node.end_lineno = statement.lineno
                node.col_offset = node.end_col_offset = statement.col_offset
        return check

    def _note_lines(self, statement: ast.stmt, has_point: bool, loops: list[int]) -> None:
        """Store the statement and the loops around each line of a statement."""
        is_loop = isinstance(statement, _LOOPS)
        around = [*loops, statement.lineno] if is_loop else loops
        body = getattr(statement, "body", None)
        last = body[0].lineno - 1 if body else statement.end_lineno or statement.lineno
        for line in range(statement.lineno, max(last, statement.lineno) + 1):
            self.points.loops[line] = around
            if has_point or is_loop:
                self.points.statements[line] = statement.lineno
        if isinstance(statement, ast.With | ast.AsyncWith):
            for item in statement.items:
                name = _span_name(item.context_expr)
                if name is not None and has_point:
                    self.points.spans.setdefault(name, []).append(statement.lineno)


def _needs_point(statement: ast.stmt) -> bool:
    """Return whether the statement itself, without its blocks, may take long."""
    if isinstance(statement, (*_LOOPS, *_FUNCTIONS, ast.ClassDef, ast.Try, ast.Import)):
        return False
    if isinstance(statement, ast.If):
        return _is_costly(statement.test)
    if isinstance(statement, ast.Match):
        return _is_costly(statement.subject)
    if isinstance(statement, ast.With | ast.AsyncWith):
        return True
    return _is_costly(statement)


def _is_costly(node: ast.AST) -> bool:
    return any(isinstance(inner, _COSTLY) for inner in ast.walk(node))


def _span_name(node: ast.expr) -> str | None:
    """Return the name of a span that an expression opens."""
    if not isinstance(node, ast.Call) or not node.args:
        return None
    function, name = node.func, node.args[0]
    called = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    is_name = isinstance(name, ast.Constant) and isinstance(name.value, str)
    return name.value if called == "span" and is_name else None  # pyright: ignore
