"""Modules with import hooks are the same as without them."""

from __future__ import annotations

import copy
import importlib
import importlib.util
import inspect
import pkgutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from hotloop.base.import_hooks import ImportHooks

MODULE = '''"""A module."""
VALUE = 3
COUNT = globals().get("COUNT", 0) + 1


def double(x):
    return 2 * x
'''


@pytest.fixture
def module_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Create a folder of modules that can be imported."""
    (tmp_path / "hooked_module.py").write_text(MODULE)
    (tmp_path / "plain_module.py").write_text(MODULE)
    package = tmp_path / "hooked_package"
    package.mkdir()
    (package / "__init__.py").write_text("from hooked_package.inner import VALUE\nREADY = True\n")
    (package / "inner.py").write_text("VALUE = 7\n")
    (package / "text.txt").write_text("hello")
    (tmp_path / "broken_module.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    finders = list(sys.meta_path)
    yield tmp_path
    sys.meta_path[:] = finders
    for name in set(sys.modules) - before:
        del sys.modules[name]


def hooked(*names: str) -> tuple[ImportHooks, list[tuple[str, ModuleType]]]:
    calls: list[tuple[str, ModuleType]] = []
    hooks = ImportHooks(
        {name: lambda module, name=name: calls.append((name, module)) for name in names}
    )
    hooks.install()
    return hooks, calls


def test_the_hook_is_called_after_the_import(module_folder: Path) -> None:
    values: list[int] = []
    hooks = ImportHooks({"hooked_module": lambda module: values.append(module.VALUE)})
    hooks.install()
    module = importlib.import_module("hooked_module")
    assert values == [3]
    assert importlib.import_module("hooked_module") is module
    assert values == [3]
    assert hooks.called == {"hooked_module"}


def test_a_hooked_module_looks_unchanged(module_folder: Path) -> None:
    hooked("hooked_module")
    module = importlib.import_module("hooked_module")
    other = importlib.import_module("plain_module")
    assert type(module.__loader__) is type(other.__loader__)
    assert module.__spec__ is not None
    assert other.__spec__ is not None
    assert module.__spec__.loader is module.__loader__
    assert type(module.__spec__) is type(other.__spec__)
    assert set(vars(module)) == set(vars(other))
    assert module.__file__ == str(module_folder / "hooked_module.py")
    assert module.__spec__.cached == module.__cached__
    assert inspect.getsource(module) == MODULE
    assert inspect.getsource(module.double) == "def double(x):\n    return 2 * x\n"
    assert inspect.getmodule(module.double) is module


def test_a_package_and_its_modules(module_folder: Path) -> None:
    _, calls = hooked("hooked_package", "hooked_package.inner")
    package = importlib.import_module("hooked_package")
    # The inner module is imported first.
    assert [name for name, _ in calls] == ["hooked_package.inner", "hooked_package"]
    assert calls[1][1] is package
    assert package.READY
    assert package.__path__ == [str(module_folder / "hooked_package")]
    assert [entry.name for entry in pkgutil.iter_modules(package.__path__)] == ["inner"]
    resources = importlib.import_module("importlib.resources")
    assert resources.files("hooked_package").joinpath("text.txt").read_text() == "hello"


def test_the_hook_of_an_imported_module_is_called_at_once(module_folder: Path) -> None:
    module = importlib.import_module("hooked_module")
    _, calls = hooked("hooked_module", "never_imported")
    assert calls == [("hooked_module", module)]


def test_a_failing_callback_is_recorded(module_folder: Path) -> None:
    def fail(module: ModuleType) -> None:
        raise AttributeError("no such thing")

    hooks = ImportHooks({"hooked_module": fail})
    hooks.install()
    assert importlib.import_module("hooked_module").VALUE == 3
    assert hooks.problems == {"hooked_module": "AttributeError: no such thing"}


def test_import_errors_are_unchanged(module_folder: Path) -> None:
    _, calls = hooked("broken_module", "missing_module")
    with pytest.raises(ZeroDivisionError):
        importlib.import_module("broken_module")
    assert "broken_module" not in sys.modules
    with pytest.raises(ModuleNotFoundError, match="No module named 'missing_module'"):
        importlib.import_module("missing_module")
    assert calls == []


def test_reloading_calls_again(module_folder: Path) -> None:
    _, calls = hooked("hooked_module")
    module = importlib.import_module("hooked_module")
    assert importlib.reload(module) is module
    assert module.COUNT == 2
    assert [name for name, _ in calls] == ["hooked_module", "hooked_module"]
    assert module.__spec__ is not None
    assert type(module.__spec__.loader).__name__ == "SourceFileLoader"


def test_find_spec_imports_nothing(module_folder: Path) -> None:
    _, calls = hooked("hooked_module")
    spec = importlib.util.find_spec("hooked_module")
    assert spec is not None
    assert spec.loader is not None
    assert calls == []
    assert spec.origin == str(module_folder / "hooked_module.py")
    assert spec.loader.get_source("hooked_module") == MODULE  # pyright: ignore
    assert copy.copy(spec.loader) is not spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert [called_with for _, called_with in calls] == [module]


def test_two_hooks_of_one_module(module_folder: Path) -> None:
    _, first = hooked("hooked_module")
    _, second = hooked("hooked_module")
    importlib.import_module("hooked_module")
    assert len(first) == len(second) == 1


def test_removed_hooks_are_not_called(module_folder: Path) -> None:
    hooks, calls = hooked("hooked_module")
    hooks.remove()
    hooks.remove()
    assert hooks not in sys.meta_path
    assert hooks.find_spec("hooked_module", None) is None
    importlib.import_module("hooked_module")
    assert calls == []
