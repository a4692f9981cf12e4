"""Analysis of the source code at sampled lines."""

from __future__ import annotations

import ast
import re

from hotloop.profiler.session.catalogues import WORDS
from hotloop.profiler.session.syntax import (
    CodeBlock,
    called_name,
    nodes,
    nodes_in,
    parse_file,
    source_cache,
    source_lines,
)

_COMPILER_NAMES = re.compile(r"(^|\W)(\w*jit|pmap|njit|torch\.compile)\b")


COMPREHENSIONS = (ast.ListComp, ast.GeneratorExp, ast.SetComp, ast.DictComp)
_LOOPS = (ast.For, ast.While, *COMPREHENSIONS)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_COMPOUND = (
    *(ast.For, ast.AsyncFor, ast.While, ast.If, ast.With, ast.AsyncWith, ast.Try, ast.Match),
    *(ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef),
)


@source_cache(256)
def statements(file: str) -> dict[int, CodeBlock]:
    """Return the statement of each line. A compound statement is reduced to its header."""
    blocks: dict[int, CodeBlock] = {}
    for node in nodes(file, ast.stmt):
        block = CodeBlock.of(node)
        if isinstance(node, _COMPOUND):
            body: list[ast.stmt] = getattr(node, "body", [])
            last = min([block.last, *(statement.lineno - 1 for statement in body)])
            block = CodeBlock(block.first, max(block.first, last))
        # Inner statements come later and replace outer ones.
        blocks.update(dict.fromkeys(block.lines, block))
    return blocks


def statement_at(file: str, line: int) -> CodeBlock:
    """Return the statement of a line, or the line alone if the file is missing."""
    return statements(file).get(line, CodeBlock(line, line))


def are_consecutive(file: str, first: CodeBlock, second: CodeBlock) -> bool:
    """Return whether one block follows the other without a statement between them."""
    known = statements(file)
    return first.last < second.first and known.keys().isdisjoint(
        range(first.last + 1, second.first)
    )


@source_cache(4096)
def names_called(file: str, block: CodeBlock) -> frozenset[str]:
    """Return the names called in some lines: last parts, and full dotted names."""
    names: set[str] = set()
    for node in nodes_in(file, block, ast.Call):
        function = node.func
        if isinstance(function, ast.Attribute):
            names.update((function.attr, ast.unparse(function)))
        elif isinstance(function, ast.Name):
            names.add(function.id)
    return frozenset(names)


@source_cache(4096)
def is_plain_arithmetic(file: str, block: CodeBlock) -> bool:
    """Return whether some lines assign a plain calculation, with only simple calls."""
    assigns = bool(nodes_in(file, block, ast.Assign, ast.AugAssign, ast.AnnAssign))
    return assigns and names_called(file, block) <= WORDS["arithmetic"]


@source_cache(4096)
def multiplies_matrices(file: str, block: CodeBlock) -> bool:
    """Return whether some lines contain `@` or a call of a matrix product."""
    if names_called(file, block) & WORDS["products"]:
        return True
    operations = nodes_in(file, block, ast.BinOp, ast.AugAssign)
    return any(isinstance(node.op, ast.MatMult) for node in operations)


@source_cache(256)
def first_line_calling(file: str, names: frozenset[str]) -> int:
    """Return the first line of a file that calls one of the names, 0 if there is none.

    Names are last parts, or dotted names.
    """
    lines = (
        node.lineno
        for node in nodes(file, ast.Call)
        if called_name(node) in names or ast.unparse(node.func) in names
    )
    return min(lines, default=0)


@source_cache(256)
def compiled_names(file: str) -> frozenset[str]:
    """Return functions that a file compiles, by a decorator such as `jax.jit` or a call of it."""
    names: set[str] = set()
    for node in nodes(file, ast.FunctionDef):
        if any(_COMPILER_NAMES.search(ast.unparse(x)) for x in node.decorator_list):
            names.add(node.name)
    for node in nodes(file, ast.Assign):
        call = node.value
        if isinstance(call, ast.Call) and _COMPILER_NAMES.search(ast.unparse(call.func)):
            names.update(x.id for x in node.targets if isinstance(x, ast.Name))
            names.update(x.attr for x in node.targets if isinstance(x, ast.Attribute))
    return frozenset(names)


@source_cache(256)
def functions(file: str) -> tuple[tuple[CodeBlock, str], ...]:
    """Return all functions of a file with their names, shortest first."""
    found = [
        (CodeBlock.of(node), getattr(node, "name", "<lambda>")) for node in nodes(file, *_FUNCTIONS)
    ]
    return tuple(sorted(found, key=lambda item: len(item[0].lines)))


def function_around(file: str, line: int) -> CodeBlock:
    """Return the innermost function around a line, or the whole file if there is none."""
    return _function_by_line(file).get(line, CodeBlock(1, 2**31))


@source_cache(256)
def _function_by_line(file: str) -> dict[int, CodeBlock]:
    blocks: dict[int, CodeBlock] = {}
    for block, _ in reversed(functions(file)):  # inner functions replace outer ones
        blocks.update(dict.fromkeys(block.lines, block))
    return blocks


def source_line(file: str, line: int) -> str:
    """Return one line of a file, empty if it is missing."""
    lines = source_lines(file)
    return lines[line - 1].strip() if 0 < line <= len(lines) else ""


@source_cache(256)
def eager_log_lines(file: str) -> frozenset[int]:
    """Return the lines of logger calls that format the message before the level check."""
    numbers: set[int] = set()
    for node in nodes(file, ast.Call):
        function = node.func
        if not (isinstance(function, ast.Attribute) and function.attr in WORDS["log_methods"]):
            continue
        if "log" not in ast.unparse(function.value).lower():
            continue
        if any(_is_formatted_eagerly(argument) for argument in node.args):
            numbers.update(CodeBlock.of(node).lines)
    return frozenset(numbers)


def _is_formatted_eagerly(argument: ast.expr) -> bool:
    """Return whether it is an f-string, `"…" % x`, `"…" + x`, `"…".format(x)` or `str(x)`."""
    if isinstance(argument, ast.JoinedStr):
        return any(isinstance(part, ast.FormattedValue) for part in argument.values)
    if isinstance(argument, ast.BinOp):
        return isinstance(argument.op, (ast.Mod, ast.Add))
    if isinstance(argument, ast.Call):
        function = argument.func
        if isinstance(function, ast.Attribute):
            return function.attr == "format"
        return isinstance(function, ast.Name) and function.id in ("str", "repr")
    return False


@source_cache(256)
def print_lines(file: str) -> frozenset[int]:
    """Return the lines of `print` calls whose arguments are cheap to compute."""
    return frozenset(
        line
        for node in nodes(file, ast.Call)
        if isinstance(node.func, ast.Name) and node.func.id == "print"
        if all(_is_cheap(part) for argument in node.args for part in ast.walk(argument))
        for line in CodeBlock.of(node).lines
    )


def _is_cheap(part: ast.AST) -> bool:
    if isinstance(part, ast.Call):
        return called_name(part) in WORDS["formatting"]
    return not isinstance(part, ast.comprehension | ast.Await)


@source_cache(256)
def sync_lines(file: str) -> dict[int, str]:
    """Return the lines that extract numbers from tensors, with the call that does so.

    Only files that import torch count, since other libraries also have an `item` method.
    """
    if not imports(file, "torch"):
        return {}
    calls: dict[int, str] = {}
    for node in nodes(file, ast.Call):
        function, call = node.func, ""
        if isinstance(function, ast.Attribute) and function.attr in WORDS["sync_methods"]:
            call = f".{function.attr}()"
        elif isinstance(function, ast.Name) and function.id == "float" and node.args:
            call = "" if isinstance(node.args[0], ast.Constant) else "float()"
        if call:  # in a chain such as `.cpu().numpy()` the inner call waits
            calls.update(dict.fromkeys(CodeBlock.of(node).lines, call))
    return calls


@source_cache(256)
def imports(file: str, library: str) -> bool:
    """Return whether a file imports a library."""
    names = [alias.name for node in nodes(file, ast.Import) for alias in node.names]
    names += [node.module or "" for node in nodes(file, ast.ImportFrom)]
    return any(name.split(".")[0] == library for name in names)


@source_cache(4096)
def handles_tensors(file: str, line: int) -> bool:
    """Return whether the innermost function around a line, or else the file, uses tensors.

    It must refer to torch or use attributes that only tensors have. A file may import torch and
    also loop over Python lists, which is no loop over tensors.
    """
    tree = parse_file(file)
    if tree is None or not imports(file, "torch"):
        return False
    return _uses_tensors(file, _definition_by_line(file).get(line, tree))


@source_cache(256)
def _definition_by_line(file: str) -> dict[int, ast.FunctionDef | ast.AsyncFunctionDef]:
    """Return the innermost function around each line, without lambdas."""
    definitions = nodes(file, ast.FunctionDef, ast.AsyncFunctionDef)
    by_line: dict[int, ast.FunctionDef | ast.AsyncFunctionDef] = {}
    for node in sorted(definitions, key=lambda node: -len(CodeBlock.of(node).lines)):
        by_line.update(dict.fromkeys(CodeBlock.of(node).lines, node))
    return by_line


@source_cache(4096)
def _uses_tensors(file: str, around: ast.AST) -> bool:
    for node in ast.walk(around):
        if isinstance(node, ast.Name) and node.id in ("torch", "th", "F"):
            return True
        if isinstance(node, ast.Attribute):
            name = node.attr
            is_in_place = name.endswith("_") and not name.startswith("_")
            if name in WORDS["tensor_attributes"] or is_in_place:
                return True
    return False


@source_cache(256)
def _loops(file: str) -> tuple[CodeBlock, ...]:
    """Return all loops and comprehensions of a file, shortest first."""
    loops = map(CodeBlock.of, nodes(file, *_LOOPS))
    return tuple(sorted(loops, key=lambda block: len(block.lines)))


@source_cache(4096)
def builds_no_lists(file: str, block: CodeBlock) -> bool:
    """Return whether some lines build no lists, in a file that imports torch or JAX."""
    if not (imports(file, "torch") or imports(file, "jax")):
        return False
    return not names_called(file, block) & WORDS["list_building"]


@source_cache(4096)
def awaits(file: str, block: CodeBlock) -> bool:
    """Return whether some lines contain an `await`."""
    return bool(nodes_in(file, block, ast.Await))


def is_comprehension(file: str, loop: CodeBlock) -> bool:
    """Return whether a loop is a comprehension."""
    return bool(_comprehensions(file, loop))


def calls_per_element(file: str, loop: CodeBlock, names: frozenset[str]) -> bool:
    """Return whether a comprehension calls one of the names for each of its elements."""
    return any(
        isinstance(call, ast.Call) and called_name(call) in names
        for node in _comprehensions(file, loop)
        for part in ((node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,))
        for call in ast.walk(part)
    )


_Comprehension = ast.ListComp | ast.GeneratorExp | ast.SetComp | ast.DictComp


@source_cache(4096)
def _comprehensions(file: str, loop: CodeBlock) -> tuple[_Comprehension, ...]:
    return tuple(
        node for node in nodes_in(file, loop, *COMPREHENSIONS) if CodeBlock.of(node) == loop
    )


@source_cache(4096)
def enters_context(file: str, line: int) -> bool:
    """Return whether a `with` statement starts at a line."""
    return bool(nodes_in(file, CodeBlock(line, line), ast.With))


def loops_around(file: str, line: int) -> tuple[CodeBlock, ...]:
    """Return all loops around a line, innermost first."""
    return tuple(_loops_by_line(file).get(line, ()))


@source_cache(256)
def _loops_by_line(file: str) -> dict[int, list[CodeBlock]]:
    by_line: dict[int, list[CodeBlock]] = {}
    for loop in _loops(file):
        for line in loop.lines:
            by_line.setdefault(line, []).append(loop)
    return by_line


def loop_around(file: str, line: int) -> CodeBlock | None:
    """Return the innermost loop around a line."""
    return next(iter(loops_around(file, line)), None)


def loop_in_function(file: str, line: int) -> CodeBlock | None:
    """Return the innermost loop around a line within the same function."""
    loop, function = loop_around(file, line), function_around(file, line)
    is_inside = loop is not None and loop.first >= function.first and loop.last <= function.last
    return loop if is_inside else None


def function_at(file: str, first_line: int) -> ast.FunctionDef | None:
    """Return the function that starts at a line, its `def` line or its first decorator."""
    return _functions_by_first_line(file).get(first_line)


@source_cache(256)
def _functions_by_first_line(file: str) -> dict[int, ast.FunctionDef]:
    functions: dict[int, ast.FunctionDef] = {}
    for node in nodes(file, ast.FunctionDef):
        first = min([node.lineno, *(x.lineno for x in node.decorator_list)])
        functions.setdefault(first, node)
        functions.setdefault(node.lineno, node)
    return functions


def is_argmax(function: ast.FunctionDef) -> bool:
    """Return whether a function finds a maximum in lists and breaks ties at random.

    An array needs only `flatnonzero(values == values.max())`, so such functions do not count.
    """
    names = {
        getattr(node, "attr", None) or getattr(node, "id", None) for node in ast.walk(function)
    }
    has_loop = any(isinstance(node, _LOOPS) for node in ast.walk(function))
    if not names & WORDS["maximum_functions"] or not (has_loop or names & WORDS["list_operations"]):
        return False
    return "argmax" in function.name.lower() or bool(
        names & WORDS["tie_breaks"] and names & WORDS["tie_searches"]
    )
