"""Thresholds of the diagnosis: `LIMITS.name`, with values and reasons in `limits.json`.

A share is one of the program's duration, and a time is in nanoseconds, unless the reason differs.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from hotloop.profiler.session.catalogues import read_catalogue

_ROWS = read_catalogue(Path(__file__).with_name("limits.json"))
LIMITS = SimpleNamespace(**{name: value for name, (value, _) in _ROWS.items()})
