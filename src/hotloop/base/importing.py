"""Import objects by `module:name`, name objects, check libraries, describe exceptions."""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.util
import os
import re
import sys
import traceback
from collections.abc import Iterator
from contextvars import ContextVar
from functools import partial, reduce
from pathlib import Path
from types import ModuleType
from typing import Any

from hotloop.errors import (
    ConfigError,
    MissingExtraError,
    UnknownNameError,
    install_command,
    nearest,
)

# Name of the object whose module is being imported, "" if there is none.
_imported_name: ContextVar[str] = ContextVar("_imported_name", default="")
# `module:name`, where the module is none of the words that begin other values with a colon.
_WORDS = "linear|cosine|constant|piecewise|steps|lag|lstm|gru|log|lin|int|cuda|minari|hf|https?|"
_WORDS += "envpool|hotloop|gymnax|brax|playground"
_MODULE_NAME = re.compile(rf"(?<![\w.])(?!(?:{_WORDS}):)[^\W\d][\w.]*:(?!\s)")


@contextlib.contextmanager
def long_imports() -> Iterator[None]:
    """Run the body, which imports torch, without garbage collection, and skip its objects later.

    torch's modules are about 400,000 objects, none of them garbage. Collections during their import
    take 0.1 s, and those at the exit of the process 0.25 s.
    """
    if not gc.isenabled() or "torch" in sys.modules:
        yield
        return
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        gc.enable()


def import_object(name: str, *, kind: str, example: str) -> Any:
    """Return the object at `module:name`. The name may contain dots, as in `Class.method`.

    Args:
        name: The module and, after a colon, the name of an object in it.
        kind: The kind of object for error messages, such as "network".
        example: A valid name for error messages.

    Raises:
        UnknownNameError: The module does not exist, or has no such name.
        ConfigError: Importing the module raised an exception.
    """
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise UnknownNameError(
            f"there is no {kind} '{name}': write `module:name`, such as `{example}`"
        )
    file_note = file_name_note(module_name, attribute)
    if file_note:
        raise UnknownNameError(f"{kind} '{name}' names a file: {file_note}")
    script = sys.modules.get("__main__")
    try:
        if module_name == importable("__main__") and hasattr(script, attribute.split(".")[0]):
            module: Any = script  # importing the script again would run it again
        else:
            module = import_module_of(name)
    except (Exception, SystemExit) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is None or not f"{module_name}.".startswith(f"{missing}."):
            raise ConfigError(
                f"{kind} '{name}': importing it raised {describe_exception(error)}"
            ) from error
        raise missing_module_error(f"{kind} '{name}'", module_name, missing) from error
    try:
        return reduce(getattr, attribute.split("."), module)
    except AttributeError as error:
        if module_name == "__main__":
            raise script_object_error(name, kind=kind) from error
        raise UnknownNameError(
            f"{kind} '{name}': '{module_name}' has no '{attribute}'"
            f"{hidden_file_note(module) or nearest(attribute, vars(module))}"
        ) from error


def import_module_of(name: str) -> ModuleType:
    """Import and return the module of `module:name`, which must not train while it is imported.

    Raises:
        Exception: any exception of the module.
    """
    token = _imported_name.set(name)
    try:
        return importlib.import_module(name.rpartition(":")[0])
    finally:
        _imported_name.reset(token)


def check_not_imported() -> None:
    """Check that a training does not start because a script is imported for one of its objects.

    Raises:
        ConfigError: it does.
    """
    module, _, attribute = _imported_name.get().partition(":")
    if module:
        raise ConfigError(
            f"importing '{module}' for its `{attribute}` would train again: put the training under "
            '`if __name__ == "__main__":`'
        )


def script_object_error(name: str, *, kind: str) -> UnknownNameError:
    """Return an error about an object of a script that another process has run."""
    attribute = name.rpartition(":")[2]
    return UnknownNameError(
        f"{kind} '{name}' is defined in the script that trained, which does not run now: move "
        f"`{attribute}` to a module beside the script, such as my_module.py, import it there, and "
        f"train again; its name is then 'my_module:{attribute}'"
    )


def missing_module_error(subject: str, module_name: str, missing: str) -> UnknownNameError:
    """Return an error about a module that does not exist.

    Args:
        subject: The name that the user wrote and its kind, such as "network 'my_nets:Net'".
        module_name: The module that it names.
        missing: This module, or a package of it.
    """
    package = f" (no package '{missing}')" if missing != module_name else ""
    return UnknownNameError(
        f"{subject}: there is no module '{module_name}'{package}: check its spelling, and that it "
        "is in this directory, installed or on PYTHONPATH"
    )


def file_name_note(module_name: str, attribute: str) -> str:
    """Return the advice on a file's path in place of a module's name, or ""."""
    if not module_name.endswith(".py") and os.sep not in module_name:
        return ""
    name = f"{Path(module_name).stem}:{attribute}"
    return f"name the module instead, `{name}`, and run this in the directory of the file"


def hidden_file_note(module: ModuleType) -> str:
    """Return a note if a file of the current directory has the name of another module."""
    file, local = getattr(module, "__file__", None), Path(f"{module.__name__}.py").absolute()
    if not local.is_file() or (file is not None and local.samefile(file)):
        return ""
    return f": {local.name} here has the name of another module ({file}): rename it"


def name_of(target: Any) -> str:
    """Return `module:name` of a class or function.

    The name contains a `<` if it can't be imported: lambdas, nested functions, partials.
    """
    if isinstance(target, partial):
        module, _, name = name_of(target.func).rpartition(":")
        return f"{module}:<partial {name}>"
    if not (hasattr(target, "__qualname__") and hasattr(target, "__module__")):
        return f"{type(target).__module__}:<{type(target).__qualname__}>"
    return f"{target.__module__}:{target.__qualname__}"


def importable_name(target: Any) -> str:
    """Return `name_of` a class or function, with the script's module name instead of `__main__`."""
    module, _, name = name_of(target).partition(":")
    return f"{importable(module)}:{name}"


def importable(module: str) -> str:
    """Return the name to import a module by. For the running script, this is its file's name."""
    main = sys.modules.get("__main__")
    if module != "__main__" or main is None:
        return module
    spec, path = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    return spec.name if spec is not None else Path(path).stem if path else module


def describe_exception(error: BaseException, *, skip: tuple[str, ...] = ()) -> str:
    """Return `ValueError: message (my_env.py:12)`: the first line, and the place of the error.

    Args:
        error: An exception that the caller has caught.
        skip: Prefixes of file paths to leave out of the place, such as a library's directory.
    """
    try:
        text = str(error).strip().split("\n")[0]
    except Exception:  # its own `__str__` fails
        text = "without a message"
    frames = traceback.extract_tb(error.__traceback__)[1:]
    lines = [frame for frame in frames if not frame.filename.startswith(skip)]
    where = f" ({Path(lines[-1].filename).name}:{lines[-1].lineno})" if lines else ""
    return f"{type(error).__name__}{': ' if text else ''}{text}{where}"


def import_matplotlib() -> None:
    """Import matplotlib with the user's settings, but without those of the working directory.

    matplotlib would first read a `matplotlibrc` there, which may come with another user's run, be a
    pipe or start LaTeX, which reads any file.

    Raises:
        ImportError: It is not installed.
    """
    if "matplotlib" in sys.modules:
        return
    exists = os.path.exists

    def exists_elsewhere(path: Any) -> bool:
        return path != "matplotlibrc" and exists(path)

    os.path.exists = exists_elsewhere  # no variable or function of matplotlib changes its choice
    try:
        importlib.import_module("matplotlib")
    finally:
        os.path.exists = exists


def names_module(text: str) -> bool:
    """Return whether a text has a `module:name`, unlike `linear:3e-4,0`, `lstm:64` or `cuda:0`."""
    return _MODULE_NAME.search(text) is not None


def enable_local_imports() -> None:
    """Add the current directory to the end of `sys.path`, for modules that the user names.

    A file there that has the name of a library does not replace the library.
    """
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())


def require_module(module: str, *, extra: str, purpose: str) -> None:
    """Check that an optional library is installed.

    Raises:
        MissingExtraError: The library is missing. The message names the extra that installs it.
    """
    if importlib.util.find_spec(module) is None:
        raise MissingExtraError(f"{purpose} needs {module}: {install_command(extra)}")
