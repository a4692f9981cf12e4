"""Cached files are complete, built by one process and private to the user."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from torch._inductor.runtime.cache_dir_utils import default_cache_dir

from hotloop import cache

KEY = "0" * 64


@pytest.fixture(autouse=True)
def directory(tmp_path, monkeypatch):
    monkeypatch.setenv("HOTLOOP_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def make(content=b"code", key=KEY):
    with cache.creating(key, ".pt2") as making:
        return making.save(content)


def test_stored_files_are_found(directory):
    assert cache.find(KEY, ".pt2") is None
    path = make()
    assert path.parent == directory
    assert cache.find(KEY, ".pt2") == path
    assert cache.find("1" * 64, ".pt2") is None
    assert cache.find(KEY, ".so") is None
    assert path.read_bytes() == b"code"
    assert os.stat(directory).st_mode & 0o777 == 0o700
    (entry,) = cache.entries()
    assert (entry.path, entry.size_bytes) == (path, 4)


def test_the_last_used_entry_is_first():
    paths = [make(key=str(k) * 64) for k in range(3)]
    for k, path in enumerate(paths):
        os.utime(path, (k, k))
    assert [entry.path for entry in cache.entries()] == paths[::-1]
    cache.find("0" * 64, ".pt2")
    assert cache.entries()[0].path == paths[0]


@pytest.mark.parametrize("content", [b"", b"cod", b"codf", b"code and more"])
def test_damaged_entries_are_removed(content):
    path = make()
    path.write_bytes(content)
    assert cache.find(KEY, ".pt2") is None
    assert not path.exists()


def test_a_link_is_not_followed(tmp_path):
    path = make()
    elsewhere = tmp_path / "elsewhere"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    assert cache.find(KEY, ".pt2") is None


def test_a_directory_that_others_may_write_is_not_used(directory):
    make()
    directory.chmod(0o777)
    assert cache.find(KEY, ".pt2") is None
    with cache.creating(KEY, ".pt2") as making:
        path = making.save(b"code")
        assert directory not in path.parents
        assert path.read_bytes() == b"code"  # only during the use
    assert not path.exists()


def test_a_directory_that_can_not_be_created(directory):
    directory.write_text("a file")
    assert cache.find(KEY, ".pt2") is None
    assert cache.entries() == []
    with cache.creating(KEY, ".pt2") as making:
        path = making.save(b"code")
        assert path.read_bytes() == b"code"
    assert not path.exists()


def test_a_full_disk(directory, monkeypatch):
    """The file exists during its use, and nothing remains."""

    def write(path, content, write=Path.write_bytes):
        if directory in path.parents:
            write(path, content[:2])
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(path, content)

    monkeypatch.setattr(Path, "write_bytes", write)
    with cache.creating(KEY, ".pt2") as making:
        path = making.save(b"code")
        assert directory not in path.parents
        assert path.read_bytes() == b"code"
    assert not path.exists()
    assert cache.entries() == []
    assert [path.name for path in directory.iterdir()] == [f".{KEY}.lock"]


def test_a_failed_build_leaves_nothing(directory):
    def fail():
        with cache.creating(KEY, ".pt2"):
            raise RuntimeError("no room")

    with pytest.raises(RuntimeError, match="no room"):
        fail()
    assert cache.entries() == []
    assert [path.name for path in directory.iterdir()] == [f".{KEY}.lock"]


def test_clearing(directory):
    make()
    (directory / ".making-of-a-killed-one").mkdir()
    assert [entry.size_bytes for entry in cache.clear()] == [4]
    assert list(directory.iterdir()) == []
    assert cache.clear() == []


def test_the_torch_compiler_uses_a_folder_of_the_cache(directory, monkeypatch):
    variable = "TORCHINDUCTOR_CACHE_DIR"
    monkeypatch.delenv(variable, raising=False)
    with cache.inductor_directory(default_cache_dir()):
        folder = Path(os.environ[variable])
        (folder / "triton").mkdir()
        (folder / "triton" / "kernel").write_bytes(b"code")
    assert variable not in os.environ
    assert folder.parent == directory
    assert os.stat(folder).st_mode & 0o777 == 0o700
    assert [(entry.path, entry.size_bytes) for entry in cache.entries()] == [(folder, 4)]
    assert [entry.path for entry in cache.clear()] == [folder]
    assert list(directory.iterdir()) == []
    monkeypatch.setenv(variable, os.path.abspath(default_cache_dir()))  # set by an import of torch
    with cache.inductor_directory(default_cache_dir()):
        assert os.environ[variable] == str(folder)
    assert os.environ[variable] == os.path.abspath(default_cache_dir())
    monkeypatch.setenv(variable, "the user's own")
    with cache.inductor_directory(default_cache_dir()):
        assert os.environ[variable] == "the user's own"


def test_the_torch_compiler_uses_no_folder_that_others_may_write(directory, monkeypatch):
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    directory.mkdir()
    directory.chmod(0o777)
    with cache.inductor_directory(default_cache_dir()):
        assert os.environ.get("TORCHINDUCTOR_CACHE_DIR") in (None, default_cache_dir())
    assert list(directory.iterdir()) == []


MAKES = """
import sys, time
from hotloop import cache

with cache.creating(sys.argv[1], ".pt2", lambda: print("waits", flush=True)) as making:
    print("found" if making.existing else "makes", flush=True)
    if making.existing is None:
        time.sleep(float(sys.argv[2]))
        making.save(b"code")
"""


def start(seconds):
    command = [sys.executable, "-c", MAKES, KEY, str(seconds)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_one_process_builds_while_others_wait():
    first = start(1.0)
    assert first.stdout.readline() == "makes\n"
    waiting = [start(9.0) for _ in range(2)]
    assert [entry.communicate(timeout=30)[0] for entry in waiting] == ["waits\nfound\n"] * 2
    first.communicate()
    assert len(cache.entries()) == 1


def test_a_killed_builder_is_replaced():
    first = start(60.0)
    assert first.stdout.readline() == "makes\n"
    other = start(0.0)
    assert other.stdout.readline() == "waits\n"
    time.sleep(0.2)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    assert other.communicate(timeout=30)[0] == "makes\n"
    assert len(cache.entries()) == 1
