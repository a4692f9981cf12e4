"""Hooks that time other libraries' code, from the moment their modules are imported.

No library is imported here. A function is replaced by one that calls it within a span, in the class
or module that defines it; `functools.wraps` leaves its name, signature and source as they were, and
instances are pickled as ever, by their class.
"""

from __future__ import annotations

from collections.abc import Mapping

from hotloop.profiler.collect.hooks import environments, learning, stable_baselines3
from hotloop.profiler.collect.import_hooks import Callback, ImportHooks


def make_hooks(more: Mapping[str, Callback] | None = None) -> ImportHooks:
    """For all libraries that are known, and some more modules."""
    known = {**environments.CALLBACKS, **stable_baselines3.CALLBACKS, **learning.CALLBACKS}
    return ImportHooks({**known, **(more or {})})
