"""Timers of stages, placed by hand: laps in a script's own loop, and calls of methods."""

from __future__ import annotations

import atexit
import json
import sys
import time
from pathlib import Path
from typing import Any

_spent: dict[str, float] = {}
# Stages of calls that are open, and since when each counts.
_open: list[list[Any]] = []
_began = _last = time.perf_counter()


def begin() -> None:
    """Count from here: starting is over. At exit, times go to the file of the last argument."""
    global _began, _last
    _began = _last = time.perf_counter()
    atexit.register(_tell)


def lap(stage: str) -> None:
    """Add the time since the last lap to a stage."""
    global _last
    now = time.perf_counter()
    _add(stage, now - _last)
    _last = now


def timed(owner: Any, name: str, stage: str) -> None:
    """Add all calls of a method of one object to a stage, without what is another one's in them."""
    function = getattr(owner, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        now = time.perf_counter()
        if _open:
            _add(_open[-1][0], now - _open[-1][1])
        _open.append([stage, now])
        try:
            return function(*args, **kwargs)
        finally:
            now = time.perf_counter()
            _add(stage, now - _open.pop()[1])
            if _open:
                _open[-1][1] = now

    setattr(owner, name, call)


def _add(stage: str, seconds: float) -> None:
    _spent[stage] = _spent.get(stage, 0.0) + seconds


def _tell() -> None:
    whole = time.perf_counter() - _began
    Path(sys.argv[-1]).write_text(json.dumps({**_spent, "whole": whole}), encoding="utf-8")
