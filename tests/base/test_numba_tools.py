"""Compiled functions are cached where only this user can write, and checked before each use."""

import hashlib
import importlib.util
import os
import pickle
import sys

import pytest

from hotloop.base import cache, numba_tools
from hotloop.base.numba_tools import entry


@pytest.fixture
def function(tmp_path, monkeypatch):
    """Return a function in a package of its own, for an empty cache."""
    monkeypatch.setenv("HOTLOOP_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "package" / "doubling.py"
    path.parent.mkdir()
    path.write_text("def twice(x):\n    return 2 * x\n")
    spec = importlib.util.spec_from_file_location("doubling", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setitem(sys.modules, "doubling", module)
    return module.twice


def num_loaded(compiled):
    """Return how many calls have loaded code of an earlier process."""
    return sum(compiled._cache_hits.values())


def test_later_processes_load_the_code(function, tmp_path):
    compiled = entry(function)
    assert compiled(4) == 8
    assert num_loaded(compiled) == 0
    assert len(cache.entries()) == 1
    assert (tmp_path / "cache").stat().st_mode & 0o777 == 0o700
    files = [path for path in (tmp_path / "package").rglob("*") if path.suffix in (".nbi", ".nbc")]
    assert not files
    compiled = entry(function)
    assert compiled(5) == 10
    assert num_loaded(compiled) == 1
    # Other types have code of their own.
    assert compiled(0.5) == 1.0
    assert len(cache.entries()) == 2


def test_changes_are_noticed(function, monkeypatch):
    assert entry(function)(4) == 8
    monkeypatch.setattr(numba_tools, "compiler_version", lambda: ("0.1",))
    compiled = entry(function)
    assert compiled(4) == 8
    assert num_loaded(compiled) == 0


class Planted:
    """A pickle that makes a directory when it is loaded."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("is_named_well", [False, True])
def test_planted_code_is_not_loaded(function, tmp_path, is_named_well):
    assert entry(function)(4) == 8
    content, marker = pickle.dumps(Planted(tmp_path / "ran")), tmp_path / "ran"
    for path in [*tmp_path.rglob("*.nbi"), *tmp_path.rglob("*.nbc")]:
        path.write_bytes(content)
        if is_named_well:  # anyone can compute the name, but not write to a private directory
            key = path.name.partition("-")[0]
            path.rename(path.with_name(f"{key}-{hashlib.sha256(content).hexdigest()}{path.suffix}"))
    if is_named_well:
        (tmp_path / "cache").chmod(0o777)
    compiled = entry(function)
    assert compiled(4) == 8
    assert num_loaded(compiled) == 0
    assert not marker.exists()
