"""Callbacks that run as soon as a module has been imported."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Callback = Callable[[ModuleType], None]


class ImportHooks(MetaPathFinder):
    """An import finder that calls back after the import of some modules.

    Args:
        callbacks: by module name. An exception in one is stored, and the import continues.

    Attributes:
        called: modules whose callback was called.
        problems: exceptions of callbacks as text, by module, for a report.
    """

    def __init__(self, callbacks: Mapping[str, Callback]) -> None:
        self._callbacks = dict(callbacks)
        self.called: set[str] = set()
        self.problems: dict[str, str] = {}

    def install(self) -> None:
        """Watch imports from now on, and call back at once for modules already imported."""
        sys.meta_path.insert(0, self)
        for name in self._callbacks:
            module = sys.modules.get(name)
            if module is not None and not is_being_imported(module):
                self.call(module, name)

    def remove(self) -> None:
        """Stop watching imports."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        """Return the spec that the finders behind this one find, with a loader that calls back."""
        if fullname not in self._callbacks:
            return None
        finders = list(sys.meta_path)
        later_finders = finders[finders.index(self) + 1 :] if self in finders else []
        for finder in later_finders:
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
        except Exception as error:  # a library version that differs from the expected one
            self.problems[name] = f"{type(error).__name__}: {error}"


class _Loader(Loader):
    """A wrapper of a module's loader. The module itself refers to the original loader."""

    def __init__(self, loader: Any, hooks: ImportHooks) -> None:
        self._loader = loader
        self._hooks = hooks

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._hooks.call(module, module.__name__)

    def __getattr__(self, name: str) -> Any:
        if name == "_loader":  # while this object is being copied
            raise AttributeError(name)
        return getattr(self._loader, name)


def is_being_imported(module: ModuleType) -> bool:
    """Return whether a module has started and not finished its import."""
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))
