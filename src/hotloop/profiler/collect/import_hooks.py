"""Calls a function as soon as a module has been imported, by whoever imports it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Callback = Callable[[ModuleType], None]


class ImportHooks(MetaPathFinder):
    """Sees the imports of some modules, which are imported as they would be without it.

    Args:
        callbacks: by module. What one raises is kept, and the import goes on.

    Attributes:
        called: modules whose callback was called.
        problems: what callbacks raised, by module; a report tells of it.
    """

    def __init__(self, callbacks: Mapping[str, Callback]) -> None:
        self._callbacks = dict(callbacks)
        self.called: set[str] = set()
        self.problems: dict[str, str] = {}

    def install(self) -> None:
        """See imports from now on; modules that are there already are called at once."""
        sys.meta_path.insert(0, self)
        for name in self._callbacks:
            module = sys.modules.get(name)
            if module is not None and not is_being_imported(module):
                self.call(module, name)

    def remove(self) -> None:
        """See no more."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        """See `MetaPathFinder.find_spec`: what those behind find, with a loader that calls."""
        if fullname not in self._callbacks:
            return None
        finders = list(sys.meta_path)
        behind = finders[finders.index(self) + 1 :] if self in finders else []
        for finder in behind:
            if not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):
                    spec.loader = _Loader(spec.loader, self)
                return spec
        return None

    def call(self, module: ModuleType, name: str) -> None:
        """Call a module's callback: after its import, and again when it is reloaded."""
        self.called.add(name)
        try:
            self._callbacks[name](module)
        except Exception as error:  # a library of another version than was thought of
            self.problems[name] = f"{type(error).__name__}: {error}"


class _Loader(Loader):
    """A module's own loader; when the module is there, nothing shows that this stood in for it."""

    def __init__(self, own: Any, hooks: ImportHooks) -> None:
        self._own = own
        self._hooks = hooks

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """See `Loader`."""
        return self._own.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """See `Loader`."""
        module.__loader__ = self._own
        if module.__spec__ is not None:
            module.__spec__.loader = self._own
        self._own.exec_module(module)
        self._hooks.call(module, module.__name__)

    def __getattr__(self, name: str) -> Any:
        if name == "_own":  # while this is being copied
            raise AttributeError(name)
        return getattr(self._own, name)


def is_being_imported(module: ModuleType) -> bool:
    """Whether a module is there, and has not run to its end."""
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))
