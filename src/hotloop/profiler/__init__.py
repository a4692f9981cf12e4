"""Why is my training slow? Recorded by processes, told of all of them in one report.

    from hotloop import profiler

    session = profiler.read("profiles/train__20260101-120000")
    print(profiler.text.render(session))

`hotloop profile SCRIPT` records somebody's script, with no change to it. What records is `capture`
(`sampler`, `hooks`, `script`); what it leaves `reading` merges into a `session`; all else is
functions of that. Needs numpy and rich alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hotloop.profiler import text
    from hotloop.profiler.reading import read
    from hotloop.profiler.saving import load, save
    from hotloop.profiler.session import Process, Session

__all__ = ["Process", "Session", "load", "read", "save", "text"]


def __getattr__(name: str) -> object:
    # What records must not load what reads.
    if name not in __all__:
        raise AttributeError(f"module 'hotloop.profiler' has no attribute {name!r}")
    import importlib

    if name == "text":
        return importlib.import_module("hotloop.profiler.text")
    module = {"read": "reading", "load": "saving", "save": "saving"}.get(name, "session")
    return getattr(importlib.import_module(f"hotloop.profiler.{module}"), name)
