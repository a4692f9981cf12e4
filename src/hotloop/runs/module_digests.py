"""Digests of the modules that a run names, to detect a different module of the same name."""

from __future__ import annotations

import ast
import contextlib
import hashlib
import os
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

from hotloop.base.files import read_regular
from hotloop.base.importing import importable

_LIBRARY_PATHS = tuple(
    os.path.realpath(path) + os.sep
    for name, path in sysconfig.get_paths().items()
    if name in ("stdlib", "platstdlib", "purelib", "platlib")
)
# hotloop may run from anywhere, such as a clone. Updating it does not change the user's modules.
_OWN_PATH = str(Path(__file__).resolve().parents[1]) + os.sep


def digests(modules: Iterable[str]) -> dict[str, dict[str, str]]:
    """Return the file and the SHA-256 of each module, without those that cannot be found.

    The digest of a user's module includes the user's modules that it imports. Nothing is imported.
    """
    found: dict[str, dict[str, str]] = {}
    for name in modules:
        file = find_file(name)
        if file is not None and not str(file).startswith(_OWN_PATH):
            with contextlib.suppress(OSError):
                found[name] = {"file": str(file), "sha256": _digest(name, file)}
    return found


def find_file(module: str) -> Path | None:
    """Return the file that `import module` would run, also from the current directory."""
    main = sys.modules.get("__main__")
    for loaded in (sys.modules.get(module), main if importable("__main__") == module else None):
        file = getattr(loaded, "__file__", None)
        if file:
            return Path(file).resolve()
    path: Any = [*sys.path, os.getcwd()]
    spec, name = None, ""
    for part in module.split("."):
        name = f"{name}.{part}" if name else part
        spec = None if path is None else _find_spec(name, path)
        if spec is None:
            return None
        path = spec.submodule_search_locations
    return Path(spec.origin).resolve() if spec is not None and spec.has_location else None  # pyright: ignore[reportArgumentType]


def _find_spec(name: str, path: Any) -> ModuleSpec | None:
    for finder in sys.meta_path:
        # Finders of editable installs know the paths of packages.
        own_path = None if finder is not PathFinder and "." not in name else path
        with contextlib.suppress(Exception):
            spec = finder.find_spec(name, own_path)
            if spec is not None:
                return spec
    return None


def imported_from(modules: Iterable[str]) -> set[str]:
    """Return these modules and the user's modules that they import. Nothing is imported."""
    files = ((name, find_file(name)) for name in modules)
    return {x for name, file in files if file is not None for x in _contents(name, file)}


def _digest(name: str, file: Path) -> str:
    result = hashlib.sha256()
    for module, content in sorted(_contents(name, file).items()):
        result.update(f"{module} {len(content)}\n".encode() + content)
    return result.hexdigest()


def _contents(name: str, file: Path) -> dict[str, bytes]:
    """Return the source of a module, and of the user's modules that it imports, by name."""
    contents: dict[str, bytes] = {}
    pending, libraries = {name: file}, (*_LIBRARY_PATHS, _OWN_PATH)
    while pending:
        module, path = pending.popitem()
        contents[module] = read_regular(path)
        if str(path).startswith(libraries):
            continue
        for imported in _imported_modules(module, path, contents[module]):
            if imported in contents or imported in pending:
                continue
            imported_file = find_file(imported)
            if imported_file is not None and not str(imported_file).startswith(libraries):
                pending[imported] = imported_file
    return contents


def _imported_modules(module: str, path: Path, source: bytes) -> Iterator[str]:
    """Yield the names in a module's import statements, with their packages."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            parents = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*parents, *filter(None, [node.module])])
            names = [base, *(f"{base}.{alias.name}" for alias in node.names)]
        for name in names:
            parts = name.split(".")
            if parts[0] and parts[0] not in sys.stdlib_module_names:
                yield from (".".join(parts[:count]) for count in range(1, len(parts) + 1))
