"""Call the functions of `hotloop.base.startup` in a Python program that has just started."""

import os
import sys

_here = os.path.dirname(os.path.abspath(__file__))
_standard_library = os.path.dirname(os.__file__)


def _import_shadowed_module() -> None:
    """Import the installation's own `sitecustomize`, if there is one."""
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


def _begin() -> None:
    """Call the functions, without importing modules of the program that lie on PYTHONPATH."""
    path = list(sys.path)
    sys.path.sort(key=lambda entry: not entry.startswith(_standard_library))
    try:
        from hotloop.base import module_names, startup

        startup.call_functions()
    except ImportError:  # without hotloop, it runs unchanged, and a profile lists it
        return
    finally:
        sys.path[:] = path
    module_names.forget_shadowed_modules("sitecustomize", module_names.program_directory())


sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != _here]
try:
    _import_shadowed_module()
finally:
    _begin()
