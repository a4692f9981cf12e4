"""Start profiling in every Python process that a profiled program starts."""

import contextlib
import importlib.machinery
import importlib.util
import os
import sys

_here = os.path.dirname(os.path.abspath(__file__))


def _import_shadowed_module() -> None:
    """Import the installation's own `sitecustomize`, if there is one."""
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != _here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


try:
    _import_shadowed_module()
finally:
    # An interpreter without hotloop runs unchanged, and the report lists it as not recorded.
    with contextlib.suppress(ImportError):
        from hotloop.profiler.collect.processes import begin_in_child

        begin_in_child()
