"""The profiler: recorded by every process of a program, told in one report.

    from hotloop import profiler

    session = profiler.read("profiles/train__20260101-120000")
    print(profiler.text.render(session))

`hotloop profile SCRIPT` records somebody's script, with no change to it. Data goes through four
rooms: `collect` runs within the program and leaves files, `session` merges them on one clock,
`diagnose` says what could be removed, `render` tells it. Needs numpy and rich alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hotloop.profiler.render import text
    from hotloop.profiler.session import Process, Session
    from hotloop.profiler.session.reading import read
    from hotloop.profiler.session.saving import load, save

__all__ = ["Process", "Session", "load", "read", "save", "text"]


def __getattr__(name: str) -> object:
    # What records must not load what reads.
    if name not in __all__:
        raise AttributeError(f"module 'hotloop.profiler' has no attribute {name!r}")
    import importlib

    if name == "text":
        return importlib.import_module("hotloop.profiler.render.text")
    module = {"read": ".reading", "load": ".saving", "save": ".saving"}.get(name, "")
    return getattr(importlib.import_module(f"hotloop.profiler.session{module}"), name)
