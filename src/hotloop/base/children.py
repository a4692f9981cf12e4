"""Child processes that run a module of hotloop and import nothing from the working directory.

`python -m` and `python -c` search the working directory first, where another program may have its
own `json.py`. Python 3.10 has no option against that.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable

# `_run_module_as_main` is what `python -m` calls.
_PROGRAM = (
    "import sys; sys.path[:] = filter(None, sys.path); "
    "import runpy; runpy._run_module_as_main(sys.argv.pop(1))"
)


def python_command(module: str, *arguments: str) -> list[str]:
    """Return the command of a process that runs a module like `python -m`."""
    return [sys.executable, "-c", _PROGRAM, module, *arguments]


_PR_SET_PDEATHSIG = 1


def end_with_parent(parent_pid: int) -> None:
    """Let the kernel send SIGTERM to this process when its parent ends, even by SIGKILL (Linux)."""
    if not sys.platform.startswith("linux"):
        return
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent_pid:  # the parent ended before the call
        signal.raise_signal(signal.SIGTERM)


def module_paths() -> list[str]:
    """Return the directories of `sys.path`, which a child process passes to `add_module_paths`."""
    return [path or os.getcwd() for path in sys.path]


def add_module_paths(paths: Iterable[str]) -> None:
    """Add directories to the end of `sys.path`."""
    sys.path += [path for path in paths if path not in sys.path]


def search_path() -> str:
    """Return the value of PYTHONPATH with which a child finds the same modules as this process."""
    # Modules of a profiler come first in PYTHONPATH, and must stay first.
    paths = [os.environ.get("PYTHONPATH", ""), *module_paths()]
    return os.pathsep.join(filter(None, paths))


def imports_safely() -> bool:
    """Return whether Python's option -P keeps the script's directory off `sys.path`."""
    return getattr(sys.flags, "safe_path", False)
