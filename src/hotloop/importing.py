"""Objects by name, `module:name`, names of objects, and errors for names that lead nowhere."""

from __future__ import annotations

import importlib
import sys
import traceback
from functools import partial, reduce
from pathlib import Path
from typing import Any

from hotloop.errors import ConfigError, UnknownNameError, nearest


def import_object(name: str, *, kind: str, example: str) -> Any:
    """Return what `module:name` names; names with dots lead into classes.

    Args:
        name: the module and, after a colon, the name of something in it.
        kind: what errors call it, such as "network".
        example: a name as it should be written.

    Raises:
        UnknownNameError: there is no such module, or it has no such name.
        ConfigError: importing the module raised.
    """
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise UnknownNameError(
            f"there is no {kind} '{name}': write `module:name`, such as `{example}`"
        )
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is None or not f"{module_name}.".startswith(f"{missing}."):
            raise ConfigError(
                f"{kind} '{name}': importing it raised {describe_exception(error)}"
            ) from error
        raise UnknownNameError(
            f"{kind} '{name}': there is no module '{module_name}' (no '{missing}'): check its "
            "spelling, and that it is installed or on PYTHONPATH"
        ) from error
    try:
        return reduce(getattr, attribute.split("."), module)
    except AttributeError as error:
        raise UnknownNameError(
            f"{kind} '{name}': '{module_name}' has no '{attribute}'"
            f"{nearest(attribute, vars(module))}"
        ) from error


def name_of(named: Any) -> str:
    """Return `module:name` of a class or function.

    The names of those that can't be imported by them (lambdas, functions in functions, partials)
    have a `<` in them.
    """
    if isinstance(named, partial):
        module, _, name = name_of(named.func).rpartition(":")
        return f"{module}:<partial {name}>"
    if not (hasattr(named, "__qualname__") and hasattr(named, "__module__")):
        return f"{type(named).__module__}:<{type(named).__qualname__}>"
    return f"{named.__module__}:{named.__qualname__}"


def importable(module: str) -> str:
    """Return the name that a module is imported by: of a script, what it is called as a module."""
    main = sys.modules.get("__main__")
    if module != "__main__" or main is None:
        return module
    spec, path = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    return spec.name if spec is not None else Path(path).stem if path else module


def describe_exception(error: BaseException, *, skip: tuple[str, ...] = ()) -> str:
    """Return `ValueError: its message (my_env.py:12)`: its first line, and where it was raised.

    Args:
        error: one that was caught by who calls this.
        skip: beginnings of files' paths that are not where the user looks, such as a library's.
    """
    text = str(error).strip().split("\n")[0]
    frames = traceback.extract_tb(error.__traceback__)[1:]
    lines = [frame for frame in frames if not frame.filename.startswith(skip)]
    where = f" ({Path(lines[-1].filename).name}:{lines[-1].lineno})" if lines else ""
    return f"{type(error).__name__}{': ' if text else ''}{text}{where}"
