"""The profiler: it records every process of a program and merges the records into one report.

    from hotloop import profiler

    session = profiler.read("profiles/train__20260101-120000")
    print(profiler.text.render(session))

`hotloop profile SCRIPT` records an unmodified script. Data goes through four packages: `collect`
runs in the program and writes files, `session` merges them on one clock, `diagnose` finds time that
could be saved, `render` displays the result. The profiler needs only numpy and rich.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hotloop.profiler.render import text
    from hotloop.profiler.session import ProfiledProcess, Session
    from hotloop.profiler.session.reading import read
    from hotloop.profiler.session.saving import load, save

__all__ = ["ProfiledProcess", "Session", "load", "read", "save", "text"]


def __getattr__(name: str) -> object:
    # The recording part must not load the reading part.
    if name not in __all__:
        raise AttributeError(f"module 'hotloop.profiler' has no attribute {name!r}")
    import importlib

    if name == "text":
        return importlib.import_module("hotloop.profiler.render.text")
    module = {"read": ".reading", "load": ".saving", "save": ".saving"}.get(name, "")
    return getattr(importlib.import_module(f"hotloop.profiler.session{module}"), name)
