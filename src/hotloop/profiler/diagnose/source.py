"""The source at the lines that time was spent at."""

from __future__ import annotations

import ast
import linecache
import re
from functools import lru_cache
from typing import NamedTuple

from hotloop.profiler.session.syntax import parsed

_LOG_METHODS = {"debug", "info", "warning", "error", "critical", "exception", "log", "trace"}
# Where the host waits for a device, or takes single numbers out of tensors.
_SYNC_METHODS = {"item", "cpu", "numpy", "tolist"}
# What only tensors have, beside methods that end with an underscore.
_TENSORS = {
    *("backward", "clone", "data", "detach", "device", "grad", "item", "no_grad", "requires_grad"),
    *("permute", "squeeze", "unsqueeze", "view"),
}
# What may be called within a message: it costs no more than that.
_FORMATTING = {
    *("str", "repr", "round", "len", "int", "float", "format", "join", "item", "tolist", "numpy"),
    *("mean", "std", "min", "max", "time", "perf_counter"),
}
# Products of matrices and what is made of them.
_PRODUCTS = {
    *("dot", "matmul", "einsum", "tensordot", "inner", "outer", "vdot", "solve", "inv", "lstsq"),
    *("svd", "eigh", "eig", "qr", "cholesky", "pinv", "conv2d", "convolve", "fft"),
}
_ARITHMETIC = {
    "min",
    "max",
    "abs",
    "float",
    "int",
    "bool",
    "exp",
    "log",
    "sqrt",
    "np.exp",
    "np.log",
}
_COMPILES = re.compile(r"(^|\W)(\w*jit|pmap|njit|torch\.compile)\b")
_LARGEST = {"argmax", "amax", "nanmax", "max", "nanargmax"}
_AMONG_EQUALS = {"choice", "choices", "integers", "randint", "randrange", "shuffle", "permutation"}
_OF_LISTS = {"list", "tolist", "append", "index", "enumerate", "sorted", "array", "items"}
_EQUALS = {"argwhere", "flatnonzero", "nonzero", "where", "isclose", "append"}


# What goes through lists and other structures, or makes arrays of them.
_MAKING = {
    *("array", "asarray", "stack", "vstack", "hstack", "concatenate", "append", "list", "tuple"),
    *("dict", "set", "pop", "insert", "remove", "index", "count", "copy", "clone", "zip", "repeat"),
    *("tile", "roll", "delete", "deque", "sorted", "map", "filter", "enumerate"),
}
_HANDS_ON = (ast.Yield, ast.YieldFrom)
_KEEPING = {
    *("append", "add", "push", "store", "put", "insert", "extend", "remember", "observe", "send"),
    *("save", "write", "record", "put_nowait", "appendleft", "add_transition", "store_transition"),
}
_LEARNING = {"learn", "update", "train", "fit", "backward", "partial_fit", "zero_grad"}


class Block(NamedTuple):
    """First and last line of a statement, loop or function, both its own."""

    first: int
    last: int

    @property
    def num_lines(self) -> int:
        """Of both ends and between."""
        return self.last - self.first + 1

    def __contains__(self, line: object) -> bool:
        return isinstance(line, int) and self.first <= line <= self.last


_LOOPS = (ast.For, ast.While, ast.ListComp, ast.GeneratorExp, ast.SetComp, ast.DictComp)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_COMPOUND = (
    *(ast.For, ast.AsyncFor, ast.While, ast.If, ast.With, ast.AsyncWith, ast.Try, ast.Match),
    *(ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef),
)


@lru_cache(maxsize=256)
def statements(file: str) -> dict[int, Block]:
    """The simple statement that each line is of; of a compound one, its head alone."""
    found: dict[int, Block] = {}
    tree = parsed(file)
    for node in ast.walk(tree) if tree else ():
        if not isinstance(node, ast.stmt):
            continue
        block = Block(node.lineno, node.end_lineno or node.lineno)
        if isinstance(node, _COMPOUND):
            body: list[ast.stmt] = getattr(node, "body", [])
            last = min([block.last, *(one.lineno - 1 for one in body)])
            block = Block(block.first, max(block.first, last))
        for line in range(block.first, block.last + 1):
            # The innermost: they come from the outside in.
            found[line] = block
    return found


def statement_at(file: str, line: int) -> Block:
    """The statement that a line is of; the line itself where the file is not there."""
    return statements(file).get(line, Block(line, line))


@lru_cache(maxsize=4096)
def names_called(file: str, block: Block) -> frozenset[str]:
    """What is called within some lines: the last part of each name, and dotted names in whole."""
    found: set[str] = set()
    for node in _calls(file):
        if block.first <= node.lineno <= block.last:
            function = node.func
            if isinstance(function, ast.Attribute):
                found.update((function.attr, ast.unparse(function)))
            elif isinstance(function, ast.Name):
                found.add(function.id)
    return frozenset(found)


@lru_cache(maxsize=4096)
def is_plain_arithmetic(file: str, block: Block) -> bool:
    """Whether some lines assign what numbers and elements make, and call next to nothing."""
    assigns = any(
        isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign) and node.lineno in block
        for node in _assignments(file)
    )
    return assigns and names_called(file, block) <= _ARITHMETIC


@lru_cache(maxsize=4096)
def multiplies_matrices(file: str, block: Block) -> bool:
    """Whether some lines hold `@`, or a call that is one: those are arithmetic's own time."""
    if names_called(file, block) & _PRODUCTS:
        return True
    tree = parsed(file)
    return any(
        isinstance(node, ast.BinOp | ast.AugAssign)
        and isinstance(node.op, ast.MatMult)
        and node.lineno in block
        for node in (ast.walk(tree) if tree else ())
    )


@lru_cache(maxsize=256)
def line_calling(file: str, names: frozenset[str]) -> int:
    """The first line of a file that calls one of some names; 0: there is none."""
    lines = (
        node.lineno
        for node in _calls(file)
        if (getattr(node.func, "attr", None) or getattr(node.func, "id", None)) in names
    )
    return min(lines, default=0)


@lru_cache(maxsize=256)
def compiled_names(file: str) -> frozenset[str]:
    """Functions that a file has compiled: decorated with `jax.jit` or the like, or made by it."""
    tree = parsed(file)
    found: set[str] = set()
    for node in ast.walk(tree) if tree else ():
        if isinstance(node, ast.FunctionDef):
            if any(_COMPILES.search(ast.unparse(one)) for one in node.decorator_list):
                found.add(node.name)
        elif (
            isinstance(node, ast.Assign)
            and isinstance(node.value, ast.Call)
            and _COMPILES.search(ast.unparse(node.value.func))
        ):
            found.update(one.id for one in node.targets if isinstance(one, ast.Name))
            found.update(one.attr for one in node.targets if isinstance(one, ast.Attribute))
    return frozenset(found)


@lru_cache(maxsize=256)
def functions(file: str) -> tuple[tuple[Block, str], ...]:
    """All functions of a file with their names, the shortest first."""
    tree = parsed(file)
    found = [
        (Block(node.lineno, node.end_lineno or node.lineno), getattr(node, "name", "<lambda>"))
        for node in (ast.walk(tree) if tree else ())
        if isinstance(node, _FUNCTIONS)
    ]
    return tuple(sorted(found, key=lambda one: one[0].num_lines))


@lru_cache(maxsize=4096)
def function_around(file: str, line: int) -> Block:
    """The innermost function around a line; where there is none, the file as far as it goes."""
    return next((block for block, _ in functions(file) if line in block), Block(1, 2**31))


def text_at(file: str, line: int) -> str:
    """One line; empty where there is none."""
    return linecache.getline(file, line).strip()


@lru_cache(maxsize=256)
def eager_lines(file: str) -> frozenset[int]:
    """Lines of calls of a logger whose message is made before the logger is asked."""
    found: set[int] = set()
    for node in _calls(file):
        function = node.func
        if not (isinstance(function, ast.Attribute) and function.attr in _LOG_METHODS):
            continue
        if "log" not in ast.unparse(function.value).lower():
            continue
        if any(_is_made_here(argument) for argument in node.args):
            found.update(_lines(node))
    return frozenset(found)


def _is_made_here(argument: ast.expr) -> bool:
    """An f-string with something in it, `"…" % x`, `"…" + x`, `"…".format(x)`, `str(x)`."""
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


@lru_cache(maxsize=256)
def print_lines(file: str) -> frozenset[int]:
    """Lines of calls of `print` that write: what they are given is worked out elsewhere."""
    return frozenset(
        line
        for node in _calls(file)
        if isinstance(node.func, ast.Name) and node.func.id == "print"
        if all(_is_cheap(part) for argument in node.args for part in ast.walk(argument))
        for line in _lines(node)
    )


def _is_cheap(part: ast.AST) -> bool:
    if isinstance(part, ast.Call):
        function = part.func
        return (getattr(function, "attr", None) or getattr(function, "id", None)) in _FORMATTING
    return not isinstance(part, ast.comprehension | ast.Await)


@lru_cache(maxsize=256)
def sync_lines(file: str) -> dict[int, str]:
    """Lines on which numbers are taken out of tensors, and the call that does it.

    Of files alone that import torch: other libraries have an `item` too.
    """
    if not imports(file, "torch"):
        return {}
    found: dict[int, str] = {}
    for node in _calls(file):
        function, call = node.func, ""
        if isinstance(function, ast.Attribute) and function.attr in _SYNC_METHODS:
            call = f".{function.attr}()"
        elif isinstance(function, ast.Name) and function.id == "float" and node.args:
            call = "" if isinstance(node.args[0], ast.Constant) else "float()"
        if call:
            for line in _lines(node):
                # The inner call of a chain, `.cpu().numpy()`, is the one that waits.
                found[line] = call
    return found


@lru_cache(maxsize=256)
def imports(file: str, library: str) -> bool:
    """Whether a file imports a library."""
    tree = parsed(file)
    for node in ast.walk(tree) if tree else ():
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        else:
            continue
        if any(name.split(".")[0] == library for name in names):
            return True
    return False


@lru_cache(maxsize=4096)
def handles_tensors(file: str, line: int) -> bool:
    """Whether the innermost function around a line, or else the file, does something with tensors.

    It names torch, or takes attributes that only tensors have: a loop over a list of Python's, in a
    file that imports torch for something else, is none over tensors.
    """
    tree = parsed(file)
    if tree is None or not imports(file, "torch"):
        return False
    functions = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.lineno <= line <= (node.end_lineno or node.lineno)
    ]
    around = min(functions, key=lambda one: (one.end_lineno or 0) - one.lineno, default=tree)
    for node in ast.walk(around):
        if isinstance(node, ast.Name) and node.id in ("torch", "th", "F"):
            return True
        if isinstance(node, ast.Attribute):
            name = node.attr
            in_place = name.endswith("_") and not name.startswith("_")
            if name in _TENSORS or in_place:
                return True
    return False


@lru_cache(maxsize=256)
def _loops(file: str) -> tuple[Block, ...]:
    """All loops and comprehensions of a file, the shortest first."""
    tree = parsed(file)
    return tuple(
        sorted(
            (
                Block(node.lineno, node.end_lineno or node.lineno)
                for node in (ast.walk(tree) if tree else ())
                if isinstance(node, _LOOPS)
            ),
            key=lambda block: block.num_lines,
        )
    )


@lru_cache(maxsize=4096)
def works_on_answers(file: str, block: Block) -> bool:
    """Whether some lines, of a file that imports torch or JAX, make nothing of lists."""
    if not (imports(file, "torch") or imports(file, "jax")):
        return False
    return not names_called(file, block) & _MAKING


@lru_cache(maxsize=4096)
def awaits(file: str, block: Block) -> bool:
    """Whether anything is awaited within some lines."""
    tree = parsed(file)
    nodes = ast.walk(tree) if tree else ()
    return any(isinstance(node, ast.Await) and node.lineno in block for node in nodes)


def is_comprehension(file: str, loop: Block) -> bool:
    """Whether a loop is one within an expression."""
    return bool(_comprehensions(file, loop))


def makes_by_calling(file: str, loop: Block, names: frozenset[str]) -> bool:
    """Whether a comprehension calls one of some names for each of its elements."""
    return any(
        isinstance(call, ast.Call) and _name_of(call) in names
        for node in _comprehensions(file, loop)
        for part in ((node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,))
        for call in ast.walk(part)
    )


_Comprehension = ast.ListComp | ast.GeneratorExp | ast.SetComp | ast.DictComp


@lru_cache(maxsize=4096)
def _comprehensions(file: str, loop: Block) -> tuple[_Comprehension, ...]:
    tree = parsed(file)
    return tuple(
        node
        for node in (ast.walk(tree) if tree else ())
        if isinstance(node, _Comprehension)
        and Block(node.lineno, node.end_lineno or node.lineno) == loop
    )


@lru_cache(maxsize=4096)
def plays_for_a_score(file: str, first_line: int) -> bool:
    """Whether the function that begins at a line plays episodes, and keeps of them their sums.

    It resets an environment, steps it in a loop, and hands on neither what it sees nor what it does
    nor single rewards: to no list, array, attribute or caller, and to nothing that learns.
    """
    function = function_at(file, first_line)
    if function is None or any(isinstance(one, _HANDS_ON) for one in ast.walk(function)):
        return False
    calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
    if _LEARNING & {_name_of(call) for call in calls} or "reset" not in map(_name_of, calls):
        return False
    steps = [
        node
        for loop in ast.walk(function)
        if isinstance(loop, ast.For | ast.While)
        for node in ast.walk(loop)
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Call)
        and _name_of(node.value) == "step"
        and isinstance(node.targets[0], ast.Tuple)
        and len(node.targets[0].elts) >= 4
    ]
    # What it sees, gets and does.
    seen = {
        name
        for node in steps
        for part in (*node.targets[0].elts[:2], *node.value.args)  # pyright: ignore
        for name in _names(part)
    }
    return bool(steps) and not any(_keeps(node, seen) for node in ast.walk(function))


def _keeps(node: ast.AST, seen: set[str]) -> bool:
    """Whether some names are kept, or handed on."""
    if isinstance(node, ast.Call):
        return _name_of(node) in _KEEPING and any(seen & _names(one) for one in node.args)
    if isinstance(node, ast.Return):
        return node.value is not None and bool(seen & _names(node.value))
    if isinstance(node, ast.Assign):
        kept = any(isinstance(one, ast.Subscript | ast.Attribute) for one in node.targets)
        return kept and bool(seen & _names(node.value))
    if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Subscript):
        return bool(seen & _names(node.target.slice))
    return False


def _names(node: ast.AST) -> set[str]:
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}


def _name_of(call: ast.Call) -> str:
    return getattr(call.func, "attr", None) or getattr(call.func, "id", "")


@lru_cache(maxsize=4096)
def enters(file: str, line: int) -> bool:
    """Whether a `with` begins at a line."""
    tree = parsed(file)
    nodes = ast.walk(tree) if tree else ()
    return any(isinstance(node, ast.With) and node.lineno == line for node in nodes)


def loops_around(file: str, line: int) -> tuple[Block, ...]:
    """All loops that a line is in, the innermost first."""
    return tuple(loop for loop in _loops(file) if line in loop)


def loop_around(file: str, line: int) -> Block | None:
    """The innermost loop that a line is in."""
    return next((loop for loop in _loops(file) if loop.first <= line <= loop.last), None)


def own_loop_around(file: str, line: int) -> Block | None:
    """The innermost loop that a line is in, if it stands in the same function."""
    loop, function = loop_around(file, line), function_around(file, line)
    is_own = loop is not None and loop.first >= function.first and loop.last <= function.last
    return loop if is_own else None


def function_at(file: str, first_line: int) -> ast.FunctionDef | None:
    """The function whose code begins at a line: its own, or that of its first decorator."""
    tree = parsed(file)
    for node in ast.walk(tree) if tree else ():
        if isinstance(node, ast.FunctionDef):
            begins = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            if first_line in (begins, node.lineno):
                return node
    return None


def is_argmax(function: ast.FunctionDef) -> bool:
    """Whether a function looks for the largest in lists, and draws among equals.

    Of an array alone, `flatnonzero(values == values.max())` is what one would write instead.
    """
    names = {
        getattr(node, "attr", None) or getattr(node, "id", None) for node in ast.walk(function)
    }
    goes_through = any(isinstance(node, _LOOPS) for node in ast.walk(function))
    if not names & _LARGEST or not (goes_through or names & _OF_LISTS):
        return False
    return "argmax" in function.name.lower() or bool(names & _AMONG_EQUALS and names & _EQUALS)


@lru_cache(maxsize=256)
def _assignments(file: str) -> tuple[ast.AST, ...]:
    tree = parsed(file)
    kinds = ast.Assign | ast.AugAssign | ast.AnnAssign
    return tuple(node for node in ast.walk(tree) if isinstance(node, kinds)) if tree else ()


@lru_cache(maxsize=256)
def _calls(file: str) -> tuple[ast.Call, ...]:
    tree = parsed(file)
    return tuple(node for node in ast.walk(tree) if isinstance(node, ast.Call)) if tree else ()


def _lines(node: ast.Call) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)
