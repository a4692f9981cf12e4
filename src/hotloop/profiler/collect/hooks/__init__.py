"""Hooks that time the code of other libraries, from the import of their modules on.

The hooks import no library. They replace a function, in the class or module that defines it, by one
that calls it within a span. `functools.wraps` preserves its name, signature and source. Instances
are still pickled by their class.
"""

from __future__ import annotations

from collections.abc import Mapping

from hotloop.base.import_hooks import Callback, ImportHooks
from hotloop.profiler.collect.hooks import environments, learning, stable_baselines3


def make_hooks(extra: Mapping[str, Callback] | None = None) -> ImportHooks:
    """Return the hooks for all supported libraries, plus `extra` callbacks by module name."""
    callbacks = {**environments.CALLBACKS, **stable_baselines3.CALLBACKS, **learning.CALLBACKS}
    return ImportHooks({**callbacks, **(extra or {})})
