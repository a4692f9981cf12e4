"""Calls that replace the program of this process: `os.execv` and all functions that use it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

# Called with the new program's arguments, and whether it gets the profiler's settings.
Callback = Callable[[list[str], bool], None]


class ExecCalls:
    """A callback before each call that is about to replace the program.

    Args:
        callback: function to call. The program continues if the call fails afterwards.
        variable: environment variable with the settings of the profiler.
    """

    def __init__(self, callback: Callback, variable: str) -> None:
        self._callback, self._variable = callback, variable
        self._originals = os.execv, os.execve

    def install(self) -> None:
        """Replace the two functions that all others call."""
        execv, execve = self._originals

        def call_execv(path: Any, argv: Any, /) -> Any:
            self._call_back(path, argv, os.environ)
            return execv(path, argv)

        def call_execve(path: Any, argv: Any, env: Any) -> Any:
            self._call_back(path, argv, env)
            return execve(path, argv, env)

        for wrapper, original in ((call_execv, execv), (call_execve, execve)):
            for name in ("__name__", "__qualname__", "__doc__", "__module__"):
                setattr(wrapper, name, getattr(original, name))
            setattr(os, original.__name__, wrapper)

    def remove(self) -> None:
        """Restore the two functions."""
        os.execv, os.execve = self._originals

    def _call_back(self, path: Any, argv: Any, env: Any) -> None:
        try:
            # `execvp` tries one directory after another.
            if not isinstance(path, int) and not os.access(path, os.X_OK):
                return
            # The names are texts or bytes.
            has_settings = isinstance(env, Mapping) and self._variable in map(os.fsdecode, env)
            self._callback([os.fsdecode(part) for part in argv], has_settings)
        except Exception:  # the call itself reports invalid arguments
            return
