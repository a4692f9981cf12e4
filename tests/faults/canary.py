"""A watch on this process: does reading a file run code of it, or start a process?"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

# Events of Python that reading data never needs.
_EVENTS = {
    *("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork"),
    *("os.forkpty", "pty.spawn", "pickle.find_class", "ctypes.dlopen", "socket.connect"),
    *("socket.bind", "webbrowser.open", "code.__new__", "sys.setprofile", "sys.settrace"),
}
# Module that damaged files name. No module of this name exists, but an import asks `_Finder`.
STRANGER = "hotloop_faults_stranger"

_is_watching = False
_seen: list[str] = []


def _record(event: str, arguments: tuple[Any, ...]) -> None:
    if not _is_watching:
        return
    if event in _EVENTS:
        _seen.append(f"{event} {str(arguments[:1])[:100]}")


sys.addaudithook(_record)


class _Finder:
    """A finder that notices imports of `STRANGER`.

    `importlib.import_module` raises no audit event.
    """

    @staticmethod
    def find_spec(name: str, _path: object = None, _target: object = None) -> None:
        if name.startswith(STRANGER):
            _seen.append(f"import {name}")


@contextlib.contextmanager
def watch() -> Iterator[list[str]]:
    """Yield the list of events that run code or start a process, which the body should leave empty.

    Errors of the body do not hide them: look at the list afterwards.
    """
    global _is_watching
    _seen.clear()
    _is_watching = True
    sys.meta_path.insert(0, _Finder)
    try:
        yield _seen
    finally:
        sys.meta_path.remove(_Finder)
        _is_watching = False
