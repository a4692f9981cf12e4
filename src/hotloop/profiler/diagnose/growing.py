"""Structures that stay or grow while a loop runs, and the lines that go through all of them."""

from __future__ import annotations

import ast
from functools import lru_cache

from hotloop.profiler.diagnose import source
from hotloop.profiler.diagnose.source import Block
from hotloop.profiler.session.syntax import parsed

_GROWING = {"append", "extend", "insert"}
_SHRINKING = {"pop", "popleft", "popitem", "clear", "remove"}
# What hands on the whole of something.
_VIEWS = {"values", "keys", "items", "copy", "astype", "tolist", "numpy", "flatten", "ravel"}
_VIEWS |= {"list", "tuple", "enumerate", "reversed", "len", "zip", "array", "asarray", "sorted"}
# Where what stays is made.
_BEGINNINGS = {"__init__", "__post_init__", "setup", "reset", "clear"}
# How many callers up a parameter is followed.
_CALLERS = 2


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


@lru_cache(maxsize=4096)
def goes_through_what_stays(file: str, block: Block) -> bool:
    """Whether a call in some lines is given, or asked of, the whole of what was there before.

    That is an attribute that only `__init__` and the like make, or a name that is assigned outside
    of the innermost loop or function that the lines are in. What was made in the same pass is new:
    somebody has to go through it. Neither is a list that is written out, `[x, y]`, nor a choice of
    elements, `table[rows]`.
    """
    tree = parsed(file)
    return tree is not None and any(
        _stays(file, one, call.lineno, _CALLERS)
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and call.lineno in block
        for one in _handed(call)
    )


def _handed(call: ast.Call) -> list[ast.expr]:
    """What a call is given, and what it is a method of."""
    handed = [*call.args, *(one.value for one in call.keywords)]
    return [*handed, call.func.value] if isinstance(call.func, ast.Attribute) else handed


def _stays(file: str, node: ast.expr, line: int, callers: int) -> bool:
    """Whether an expression is the whole of something that outlasts the loop's pass at a line."""
    if isinstance(node, ast.Starred):
        return _stays(file, node.value, line, callers)
    if isinstance(node, ast.Subscript):
        return not _is_part(node.slice) and _stays(file, node.value, line, callers)
    if isinstance(node, ast.ListComp | ast.GeneratorExp | ast.SetComp | ast.DictComp):
        return any(_stays(file, one.iter, line, callers) for one in node.generators)
    if isinstance(node, ast.Call):
        name = getattr(node.func, "attr", None) or getattr(node.func, "id", "")
        return name in _VIEWS and any(_stays(file, one, line, callers) for one in _handed(node))
    if isinstance(node, ast.Attribute):
        name = _dotted(node)
        is_own = bool(name) and name.partition(".")[0] not in _modules(file)
        begins = [block for block, named in source.functions(file) if named in _BEGINNINGS]
        lines = _assigned_at(file, name)
        return is_own and all(any(line in block for block in begins) for line in lines)
    return isinstance(node, ast.Name) and _name_stays(file, node.id, line, callers)


def _is_part(index: ast.expr) -> bool:
    """Whether it chooses elements, or so many from an end as are written out, `[-9:]`."""
    if not isinstance(index, ast.Slice):
        return True
    bounds = [one for one in (index.lower, index.upper) if one is not None]
    return any(isinstance(one, ast.Constant | ast.UnaryOp) for one in bounds)


def _name_stays(file: str, name: str, line: int, callers: int) -> bool:
    tree = parsed(file)
    if tree is None or name in _modules(file):
        return False
    around = source.function_around(file, line)
    functions = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.lineno == around.first
    ]
    for function in functions:
        parameters = [one.arg for one in (*function.args.posonlyargs, *function.args.args)]
        if name in parameters:
            at = parameters.index(name) - (parameters[0] in ("self", "cls"))
            return callers > 0 and _is_given_what_stays(file, function.name, name, at, callers - 1)
    lines = _assigned_at(file, name)
    if not any(one in around for one in lines):  # global, or of a function around
        return bool(lines)
    loop = source.own_loop_around(file, line)
    while loop is not None and source.is_comprehension(file, loop):
        outer = (one for one in source.loops_around(file, line) if one.num_lines > loop.num_lines)
        loop = next((one for one in outer if one.first >= around.first), None)
    return loop is not None and not any(one in loop for one in lines)


def _is_given_what_stays(file: str, function: str, name: str, at: int, callers: int) -> bool:
    """Whether a call of a function gives a parameter something that stays."""
    tree = parsed(file)
    for call in ast.walk(tree) if tree else ():
        if not isinstance(call, ast.Call):
            continue
        if (getattr(call.func, "attr", None) or getattr(call.func, "id", "")) != function:
            continue
        given = [one.value for one in call.keywords if one.arg == name] + call.args[at : at + 1]
        if any(_stays(file, one, call.lineno, callers) for one in given):
            return True
    return False


@lru_cache(maxsize=4096)
def _assigned_at(file: str, name: str) -> tuple[int, ...]:
    """Lines at which a name, or an attribute of one, is given something new.

    What is made of itself, as by `log = np.append(log, row)`, is no new one.
    """
    tree = parsed(file)
    nodes = [*ast.walk(tree)] if tree else []
    of_itself = {
        id(part)
        for node in nodes
        if isinstance(node, ast.Assign) and name in map(_dotted, ast.walk(node.value))
        for target in node.targets
        for part in ast.walk(target)
    }
    of_itself |= {id(node.target) for node in nodes if isinstance(node, ast.AugAssign)}
    return tuple(
        node.lineno
        for node in nodes
        if isinstance(node, ast.Name | ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and _dotted(node) == name
        and id(node) not in of_itself
    )


@lru_cache(maxsize=256)
def _modules(file: str) -> frozenset[str]:
    tree = parsed(file)
    return frozenset(
        (alias.asname or alias.name).partition(".")[0]
        for node in (ast.walk(tree) if tree else ())
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
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
