"""Modules of a program that have the name of a module that hotloop has imported before.

A `queue.py` beside a script replaces Python's own. If hotloop imports Python's `queue` before the
script runs, the script would get it from `sys.modules`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from importlib.machinery import FrozenImporter, PathFinder

_STANDARD_LIBRARY = os.path.dirname(os.__file__)


def forget_shadowed_modules(last_import: str, program_directory: str | None) -> None:
    """Remove modules from `sys.modules` if the program has a module of that name.

    Modules that refer to each other keep working, and hotloop has no imports left to do.

    Args:
        last_import: module after which hotloop's modules were imported.
        program_directory: directory that Python searches first for this program, if any.
    """
    names = list(sys.modules)
    later = names[names.index(last_import) + 1 :] if last_import in names else []
    directories = [] if program_directory is None else [program_directory]
    for entry in sys.path:
        if os.path.abspath(entry or ".") == _STANDARD_LIBRARY:
            break
        directories.append(entry)
    shadowed = {
        name
        for name in {name.partition(".")[0] for name in later} - {*sys.builtin_module_names}
        if name not in ("hotloop", "__main__") and _is_shadowed(name, directories)
    }
    for name in later:
        if name.partition(".")[0] in shadowed:
            del sys.modules[name]


def program_directory() -> str | None:
    """Return the directory that Python will put first on `sys.path`, while it still starts."""
    script = sys.argv[0] if sys.argv else ""
    if getattr(sys.flags, "safe_path", False) or sys.flags.isolated:
        return None
    if script in ("", "-", "-c", "-m"):
        return os.getcwd()
    return os.path.dirname(os.path.realpath(script))


def _is_shadowed(name: str, directories: Iterable[str]) -> bool:
    spec = PathFinder.find_spec(name, list(directories))
    if spec is None or spec.loader is None or FrozenImporter.find_spec(name) is not None:
        return False
    module = sys.modules.get(name)
    return spec.origin != getattr(getattr(module, "__spec__", None), "origin", None)
