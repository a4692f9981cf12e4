"""Python programs that run in this process like `python SCRIPT` or `python -m MODULE`.

The program is `__main__`, with its own arguments, path and exit code. Its exceptions are printed as
Python prints them.
"""

from __future__ import annotations

import builtins
import importlib.util
import os
import sys
import traceback
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import Any

from hotloop.base.children import imports_safely
from hotloop.base.module_names import forget_shadowed_modules

# The code of a program that Ctrl-C has ended, which exits with no code of its own.
INTERRUPTED = 130


def run_program(arguments: list[str], hidden_files: tuple[str, ...] = ()) -> int:
    """Run a program and return its exit code, unless it exits by itself.

    Args:
        arguments: `SCRIPT [ARGUMENT ...]` or `-m MODULE [ARGUMENT ...]`.
        hidden_files: beginnings of file names. Printed tracebacks leave out their frames.
    """
    # Programs start themselves again by these arguments.
    sys.orig_argv[1:] = arguments
    try:
        if arguments[0] == "-m":
            _run_module(arguments[1], arguments[2:])
        else:
            _run_file(arguments[0], arguments[1:])
    except SystemExit:
        raise
    except BaseException as error:
        _print_exception(error, (__file__, "<frozen importlib", *hidden_files))
        return INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1
    return 0


def _run_file(path: str, arguments: list[str]) -> None:
    sys.argv = [path, *arguments]
    _add_directory(str(Path(path).resolve().parent))
    path = os.path.abspath(path)  # like `__file__` since Python 3.9
    # The `__future__` imports of this file must not apply.
    code = compile(Path(path).read_bytes(), path, "exec", dont_inherit=True)
    loader = SourceFileLoader("__main__", path)
    _run_as_main(code, __file__=path, __loader__=loader, __spec__=None, __cached__=None)


def _add_directory(directory: str) -> None:
    """Search a directory first, as Python does, also for modules that are imported already."""
    if not imports_safely():
        sys.path.insert(0, directory)
        forget_shadowed_modules("site", directory)


def _run_module(name: str, arguments: list[str]) -> None:
    sys.argv = ["-m", *arguments]
    if name != "hotloop":  # its own commands never search the working directory first
        _add_directory(os.getcwd())
    spec = _find_spec(name)
    if spec is not None and spec.submodule_search_locations is not None:
        package, spec = name, _find_spec(f"{name}.__main__")
        if spec is None:
            sys.exit(
                f"{sys.executable}: No module named {package}.__main__; {package!r} is a package "
                "and cannot be directly executed"
            )
    code: CodeType | None = None
    if spec is not None and hasattr(spec.loader, "get_code"):
        code = spec.loader.get_code(spec.name)  # pyright: ignore
    if spec is None or code is None:
        sys.exit(f"{sys.executable}: No module named {name}")
    sys.argv[0] = spec.origin or name
    _run_as_main(
        code,
        __file__=spec.origin,
        __loader__=spec.loader,
        __spec__=spec,
        __package__=spec.parent,
        __cached__=spec.cached,
    )


def _find_spec(name: str) -> ModuleSpec | None:
    try:
        return importlib.util.find_spec(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            return None  # the module, or a package that should contain it
        raise


def _run_as_main(code: CodeType, **attributes: Any) -> None:
    """Run code in a new `__main__` module, which remains for pickle and child processes."""
    module = ModuleType("__main__")
    vars(module).update(attributes, __builtins__=builtins, __annotations__={})
    sys.modules["__main__"] = module
    exec(code, vars(module))


def _print_exception(error: BaseException, hidden_files: tuple[str, ...]) -> None:
    """Print an uncaught exception like Python does, without the frames of some files."""
    _hide_frames(error, hidden_files, set())
    # Functions of `atexit` see by these whether the program has failed.
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
    if sys.version_info >= (3, 12):
        sys.last_exc = error
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except SystemExit:
        raise
    except BaseException:
        print("Error in sys.excepthook:", file=sys.stderr)
        traceback.print_exc()
        print("\nOriginal exception was:", file=sys.stderr)
        sys.__excepthook__(type(error), error, error.__traceback__)


def _hide_frames(
    error: BaseException, hidden_files: tuple[str, ...], visited_ids: set[int]
) -> None:
    """Remove frames from an exception, its causes and its sub-exceptions."""
    visited_ids.add(id(error))
    error.__traceback__ = _without_frames(error.__traceback__, hidden_files)
    related = [error.__cause__, error.__context__, *getattr(error, "exceptions", ())]
    for other in related:
        if isinstance(other, BaseException) and id(other) not in visited_ids:
            _hide_frames(other, hidden_files, visited_ids)


def _without_frames(
    traceback: TracebackType | None, hidden_files: tuple[str, ...]
) -> TracebackType | None:
    kept_entries: list[TracebackType] = []
    while traceback is not None:
        if not traceback.tb_frame.f_code.co_filename.startswith(hidden_files):
            kept_entries.append(traceback)
        traceback = traceback.tb_next
    result: TracebackType | None = None
    for entry in reversed(kept_entries):
        result = TracebackType(result, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return result
