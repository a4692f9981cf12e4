"""Data structures that persist or grow over a loop, and the lines that traverse them."""

from __future__ import annotations

import ast

from hotloop.profiler.diagnose import source
from hotloop.profiler.diagnose.source import CodeBlock
from hotloop.profiler.session.catalogues import WORDS
from hotloop.profiler.session.syntax import called_name, nodes, nodes_in, parse_file, source_cache

# Number of callers through which a parameter is traced.
_MAX_CALLERS = 2


@source_cache(4096)
def passes_growing_structure(file: str, block: CodeBlock) -> bool:
    """Return whether a call in some lines receives a whole structure that only grows."""
    growing = _growing_names(file)
    if not growing:
        return False
    return any(
        _dotted_name(arg) in growing
        for node in nodes_in(file, block, ast.Call)
        for arg in node.args
    )


@source_cache(4096)
def passes_persistent_structure(file: str, block: CodeBlock) -> bool:
    """Return whether a call in some lines receives a whole persistent structure.

    Such a structure is an attribute that only `__init__` and the like assign, or a name assigned
    outside the innermost loop or function around the lines. A structure created in the same
    iteration is new and must be traversed once. List displays, `[x, y]`, and selected elements,
    `table[rows]`, do not count. The object of a method call counts as an argument.
    """
    return any(
        _persists(file, operand, call.lineno, _MAX_CALLERS)
        for call in nodes_in(file, block, ast.Call)
        for operand in _operands(call)
    )


def _operands(call: ast.Call) -> list[ast.expr]:
    """Return a call's arguments and, for a method, its object."""
    operands = [*call.args, *(keyword.value for keyword in call.keywords)]
    return [*operands, call.func.value] if isinstance(call.func, ast.Attribute) else operands


def _persists(file: str, node: ast.expr, line: int, callers: int) -> bool:
    """Return whether an expression is a whole structure that outlives an iteration at a line."""
    if isinstance(node, ast.Starred):
        return _persists(file, node.value, line, callers)
    if isinstance(node, ast.UnaryOp):
        return _persists(file, node.operand, line, callers)
    if isinstance(node, ast.BinOp):  # all of it: `scale * obs` is new
        sides = [x for x in (node.left, node.right) if not isinstance(x, ast.Constant)]
        return bool(sides) and all(_persists(file, x, line, callers) for x in sides)
    if isinstance(node, ast.Subscript):
        return not _is_selection(node.slice) and _persists(file, node.value, line, callers)
    if isinstance(node, ast.ListComp | ast.GeneratorExp | ast.SetComp | ast.DictComp):
        return any(_persists(file, part.iter, line, callers) for part in node.generators)
    if isinstance(node, ast.Call):
        return called_name(node) in WORDS["views"] and any(
            _persists(file, x, line, callers) for x in _operands(node)
        )
    if isinstance(node, ast.Attribute):
        name = _dotted_name(node)
        is_attribute = bool(name) and name.partition(".")[0] not in _imported_names(file)
        initializers = [
            block for block, known in source.functions(file) if known in WORDS["initializers"]
        ]
        lines = _assignment_lines(file, name)
        return is_attribute and all(any(x in block for block in initializers) for x in lines)
    return isinstance(node, ast.Name) and _name_persists(file, node.id, line, callers)


def _is_selection(index: ast.expr) -> bool:
    """Return whether an index selects elements, or a fixed number from one end, `[-9:]`."""
    if not isinstance(index, ast.Slice):
        return True
    bounds = [bound for bound in (index.lower, index.upper) if bound is not None]
    return any(isinstance(bound, ast.Constant | ast.UnaryOp) for bound in bounds)


def _name_persists(file: str, name: str, line: int, callers: int) -> bool:
    if name in _imported_names(file):
        return False
    around = source.function_around(file, line)
    definitions = nodes(file, ast.FunctionDef, ast.AsyncFunctionDef)
    functions = [node for node in definitions if node.lineno == around.first]
    for function in functions:
        parameters = [arg.arg for arg in (*function.args.posonlyargs, *function.args.args)]
        if name in parameters:
            index = parameters.index(name) - (parameters[0] in ("self", "cls"))
            return callers > 0 and _receives_persistent_argument(
                file, function.name, name, index, callers - 1
            )
    lines = _assignment_lines(file, name)
    if not any(x in around for x in lines):  # a global, or a variable of an outer function
        return bool(lines)
    loop = source.loop_in_function(file, line)
    while loop is not None and source.is_comprehension(file, loop):
        outer = (x for x in source.loops_around(file, line) if len(x.lines) > len(loop.lines))
        loop = next((x for x in outer if x.first >= around.first), None)
    return loop is not None and not any(x in loop for x in lines)


def _receives_persistent_argument(
    file: str, function: str, name: str, index: int, callers: int
) -> bool:
    """Return whether some call of a function passes a persistent structure for a parameter."""
    for call in _calls_by_name(file).get(function, ()):
        values = [x.value for x in call.keywords if x.arg == name] + call.args[index : index + 1]
        if any(_persists(file, value, call.lineno, callers) for value in values):
            return True
    return False


@source_cache(256)
def _calls_by_name(file: str) -> dict[str, list[ast.Call]]:
    calls: dict[str, list[ast.Call]] = {}
    for call in nodes(file, ast.Call):
        calls.setdefault(called_name(call), []).append(call)
    return calls


@source_cache(4096)
def _assignment_lines(file: str, name: str) -> tuple[int, ...]:
    """Return the lines that assign a new value to a name, unlike `log = np.append(log, row)`."""
    updates = {
        id(part)
        for node in nodes(file, ast.Assign)
        if name in map(_dotted_name, ast.walk(node.value))
        for target in node.targets
        for part in ast.walk(target)
    }
    updates |= {id(node.target) for node in nodes(file, ast.AugAssign)}
    return tuple(
        node.lineno
        for node in nodes(file, ast.Name, ast.Attribute)
        if isinstance(node.ctx, ast.Store)
        and _dotted_name(node) == name
        and id(node) not in updates
    )


@source_cache(256)
def _imported_names(file: str) -> frozenset[str]:
    return frozenset(
        (alias.asname or alias.name).partition(".")[0]
        for node in nodes(file, ast.Import, ast.ImportFrom)
        for alias in node.names
    )


@source_cache(256)
def _growing_names(file: str) -> frozenset[str]:
    """Return names and attributes that are created once, appended to, and never shortened."""
    tree = parse_file(file)
    if tree is None:
        return frozenset()
    grown: set[str] = set()
    excluded: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            name = _dotted_name(node.func.value)
            if node.func.attr in WORDS["growing"]:
                grown.add(name)
            elif node.func.attr in WORDS["shrinking"]:
                excluded.add(name)
        elif isinstance(node, ast.Delete | ast.Assign):
            # `del x[:9]` and `x[:] = []` remove elements.
            excluded.update(
                _dotted_name(x.value) for x in node.targets if isinstance(x, ast.Subscript)
            )
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name != "__init__":
            excluded |= _assigned_names(node)
    once = _assigned_once(tree)
    return frozenset((grown & once) - excluded - {""})


def _assigned_names(function: ast.AST) -> set[str]:
    """Return names and attributes assigned in a function, and its parameters."""
    names: set[str] = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            targets = [part for target in node.targets for part in ast.walk(target)]
        elif isinstance(node, ast.AnnAssign | ast.For | ast.comprehension):
            targets = [*ast.walk(node.target)]
        elif isinstance(node, ast.arg):
            names.add(node.arg)
            continue
        else:
            continue
        names |= {
            _dotted_name(part) for part in targets if isinstance(part, ast.Name | ast.Attribute)
        }
    return names


def _assigned_once(tree: ast.Module) -> set[str]:
    """Return names and attributes that one statement assigns, to something of unlimited length."""
    counts: dict[str, int] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            has_limit = "maxlen" in ast.unparse(node.value)
            for target in targets:
                name = _dotted_name(target)
                counts[name] = counts.get(name, 0) + (2 if has_limit else 1)
    return {name for name, count in counts.items() if count == 1}


def _dotted_name(node: ast.AST) -> str:
    """Return `name` or `name.attribute`, or an empty string for another expression."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return f"{node.value.id}.{node.attr}"
    return ""
