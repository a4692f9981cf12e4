"""The imports between the modules of a package, however they are written.

A graph has an edge from a module to each module that it imports: at its top, inside functions, for
type checkers alone, or by a string that names the module (`import_module("package.module")`, lazy
tables of a `__getattr__`, names of programs and functions for other processes).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

Graph = dict[str, set[str]]
# Functions whose argument has a module's name without importing it.
_NO_IMPORTS = ("getLogger",)


def import_graph(root: Path) -> Graph:
    """Return the modules that each module of the package in `root` imports."""
    paths = [path for suffix in ("py", "pyi") for path in root.rglob(f"*.{suffix}")]
    sources = {_module_name(path, root): path for path in paths}
    return {
        name: {target for target in _ModuleImports(name, path, sources).targets() if target != name}
        for name, path in sources.items()
    }


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Return the groups of modules that import each other, each group sorted."""
    reached = {name: _reachable(graph, name) for name in graph}
    groups = {
        tuple(sorted(other for other in reached[name] if name in reached[other]))
        for name in graph
        if name in reached[name]
    }
    return sorted(map(list, groups))


def upward_imports(graph: Mapping[str, set[str]], layers: Sequence[str]) -> list[tuple[str, str]]:
    """Return the imports that run from a room to a higher one, or to one in the same row.

    Args:
        graph: The imports.
        layers: Rows of rooms, the highest first, with ` | ` between rooms of a row.
    """
    rows = {room.strip(): number for number, row in enumerate(layers) for room in row.split("|")}
    return [
        (source, target)
        for source in sorted(graph)
        for target in sorted(graph[source])
        if (room := _room(source)) in rows
        and (target_room := _room(target)) != room
        and rows.get(target_room, -1) <= rows[room]
    ]


def _room(module: str) -> str:
    return ".".join(module.split(".")[:2])


def _reachable(graph: Mapping[str, set[str]], start: str) -> set[str]:
    """Return the modules that a module imports, directly or through others."""
    reached: set[str] = set()
    pending = [*graph[start]]
    while pending:
        name = pending.pop()
        if name not in reached:
            reached.add(name)
            pending += graph[name]
    return reached


def _module_name(path: Path, root: Path) -> str:
    parts = path.relative_to(root.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


class _ModuleImports:
    """The imports of one module.

    Args:
        name: The module's name.
        path: Its file.
        modules: All modules of the package.
    """

    def __init__(self, name: str, path: Path, modules: Mapping[str, Path]) -> None:
        self._tree = ast.parse(path.read_text(encoding="utf-8"))
        self._modules = modules
        self._package = name if path.stem == "__init__" else name.rpartition(".")[0]
        self._constants = {"__name__": name, "__package__": self._package}
        for node in self._tree.body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                text = self._text(node.value)
                if text is not None:
                    self._constants[node.targets[0].id] = text

    def targets(self) -> Iterator[str]:
        """Return the names of the imported modules."""
        ignored = {id(part) for node in self._ignored() for part in ast.walk(node)}
        is_lazy = any(getattr(node, "name", "") == "__getattr__" for node in self._tree.body)
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names if alias.name in self._modules)
            elif isinstance(node, ast.ImportFrom):
                yield from self._imported_from(node)
            elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
                yield from self._matching(node.args[0])
            elif isinstance(node, ast.Constant | ast.JoinedStr) and id(node) not in ignored:
                yield from self._named(self._text(node) or "", is_lazy=is_lazy)

    def _ignored(self) -> Iterator[ast.AST]:
        """Return the texts that import nothing: docstrings and names of loggers."""
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                yield node
            elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(_NO_IMPORTS):
                yield from node.args

    def _imported_from(self, node: ast.ImportFrom) -> Iterator[str]:
        source = node.module or ""
        if node.level:
            parents = self._package.split(".")
            above = parents[: len(parents) - node.level + 1]
            source = ".".join([*above, *([node.module] if node.module else [])])
        for alias in node.names:
            if f"{source}.{alias.name}" in self._modules:
                yield f"{source}.{alias.name}"
            elif source in self._modules:
                yield source

    def _named(self, text: str, *, is_lazy: bool) -> Iterator[str]:
        """Return the module that a text such as "package.module:function" names."""
        text = text.partition(":")[0]
        if "." in text.strip(".") and text in self._modules:
            yield text
        elif is_lazy and f"{self._package}.{text.lstrip('.')}" in self._modules:
            yield f"{self._package}.{text.lstrip('.')}"

    def _matching(self, argument: ast.expr) -> Iterator[str]:
        """Return the modules that an f-string such as f"package.algorithms.{name}" can name."""
        if not isinstance(argument, ast.JoinedStr):
            return
        parts = [self._text(part) for part in argument.values]
        if parts[0] is not None:  # else any module would match
            texts = (r"\.?\w+(\.\w+)*" if part is None else re.escape(part) for part in parts)
            pattern = re.compile("".join(texts))
            yield from (name for name in self._modules if pattern.fullmatch(name))

    def _text(self, node: ast.expr) -> str | None:
        """Return the value of a text, with the constants of the module in it, or None."""
        if isinstance(node, ast.Constant):
            return node.value if isinstance(node.value, str) else None
        if isinstance(node, ast.Name):
            return self._constants.get(node.id)
        if isinstance(node, ast.FormattedValue):
            return self._text(node.value)
        if isinstance(node, ast.JoinedStr):
            parts = [self._text(part) for part in node.values]
            return None if None in parts else "".join(part or "" for part in parts)
        return None
