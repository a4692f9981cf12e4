"""Modules whose import is seen are as they would be without."""

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

from hotloop.profiler.collect.import_hooks import ImportHooks

MODULE = '''"""A module."""
VALUE = 3
COUNT = globals().get("COUNT", 0) + 1


def double(x):
    return 2 * x
'''


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of modules that can be imported."""
    (tmp_path / "seen_module.py").write_text(MODULE)
    (tmp_path / "plain_module.py").write_text(MODULE)
    package = tmp_path / "seen_package"
    package.mkdir()
    (package / "__init__.py").write_text("from seen_package.inner import VALUE\nREADY = True\n")
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


def test_a_module_is_called_once_it_is_there(made: Path) -> None:
    seen: list[int] = []
    hooks = ImportHooks({"seen_module": lambda module: seen.append(module.VALUE)})
    hooks.install()
    module = importlib.import_module("seen_module")
    assert seen == [3]
    assert importlib.import_module("seen_module") is module
    assert seen == [3]
    assert hooks.called == {"seen_module"}


def test_nothing_shows_on_the_module(made: Path) -> None:
    hooked("seen_module")
    module = importlib.import_module("seen_module")
    other = importlib.import_module("plain_module")
    assert type(module.__loader__) is type(other.__loader__)
    assert module.__spec__ is not None
    assert other.__spec__ is not None
    assert module.__spec__.loader is module.__loader__
    assert type(module.__spec__) is type(other.__spec__)
    assert set(vars(module)) == set(vars(other))
    assert module.__file__ == str(made / "seen_module.py")
    assert module.__spec__.cached == module.__cached__
    assert inspect.getsource(module) == MODULE
    assert inspect.getsource(module.double) == "def double(x):\n    return 2 * x\n"
    assert inspect.getmodule(module.double) is module


def test_a_package_and_what_is_in_it(made: Path) -> None:
    _, calls = hooked("seen_package", "seen_package.inner")
    package = importlib.import_module("seen_package")
    # What it imports is there before it.
    assert [name for name, _ in calls] == ["seen_package.inner", "seen_package"]
    assert calls[1][1] is package
    assert package.READY
    assert package.__path__ == [str(made / "seen_package")]
    assert [one.name for one in pkgutil.iter_modules(package.__path__)] == ["inner"]
    resources = importlib.import_module("importlib.resources")
    assert resources.files("seen_package").joinpath("text.txt").read_text() == "hello"


def test_what_is_there_already_is_called_at_once(made: Path) -> None:
    module = importlib.import_module("seen_module")
    _, calls = hooked("seen_module", "never_imported")
    assert calls == [("seen_module", module)]


def test_a_callback_that_raises_stops_nothing(made: Path) -> None:
    def fail(module: ModuleType) -> None:
        raise AttributeError("no such thing")

    hooks = ImportHooks({"seen_module": fail})
    hooks.install()
    assert importlib.import_module("seen_module").VALUE == 3
    assert hooks.problems == {"seen_module": "AttributeError: no such thing"}


def test_a_module_that_raises_does_so_as_ever(made: Path) -> None:
    _, calls = hooked("broken_module", "missing_module")
    with pytest.raises(ZeroDivisionError):
        importlib.import_module("broken_module")
    assert "broken_module" not in sys.modules
    with pytest.raises(ModuleNotFoundError, match="No module named 'missing_module'"):
        importlib.import_module("missing_module")
    assert calls == []


def test_reloading_calls_again(made: Path) -> None:
    _, calls = hooked("seen_module")
    module = importlib.import_module("seen_module")
    assert importlib.reload(module) is module
    assert module.COUNT == 2
    assert [name for name, _ in calls] == ["seen_module", "seen_module"]
    assert module.__spec__ is not None
    assert type(module.__spec__.loader).__name__ == "SourceFileLoader"


def test_asking_for_a_spec_imports_nothing(made: Path) -> None:
    _, calls = hooked("seen_module")
    spec = importlib.util.find_spec("seen_module")
    assert spec is not None
    assert spec.loader is not None
    assert calls == []
    assert spec.origin == str(made / "seen_module.py")
    assert spec.loader.get_source("seen_module") == MODULE  # pyright: ignore
    assert copy.copy(spec.loader) is not spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert [one for _, one in calls] == [module]


def test_two_of_them(made: Path) -> None:
    _, first = hooked("seen_module")
    _, second = hooked("seen_module")
    importlib.import_module("seen_module")
    assert len(first) == len(second) == 1


def test_none_after_the_end(made: Path) -> None:
    hooks, calls = hooked("seen_module")
    hooks.remove()
    hooks.remove()
    assert hooks not in sys.meta_path
    assert hooks.find_spec("seen_module", None) is None
    importlib.import_module("seen_module")
    assert calls == []
