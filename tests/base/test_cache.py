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

from hotloop.base import cache

KEY = "0" * 64


@pytest.fixture(autouse=True)
def directory(tmp_path, monkeypatch):
    monkeypatch.setenv("HOTLOOP_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def make(content=b"code", key=KEY):
    """Store a file and return its path."""
    with cache.creating(key, ".pt2") as making:
        assert making.save(content) == content
    (path,) = cache.directory().glob(f"{key}-*")
    return path


def test_stored_files_are_found(directory):
    assert cache.find(KEY, ".pt2") is None
    path = make()
    assert path.parent == directory
    assert cache.find(KEY, ".pt2") == b"code"
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


@pytest.mark.parametrize("mode", [0o777, 0o755, 0o750, 0o701])
def test_a_directory_that_others_may_enter_is_not_used(directory, mode):
    make()
    directory.chmod(mode)
    assert cache.find(KEY, ".pt2") is None
    assert cache.unusable_reason().endswith(f"run `chmod 700 {directory}`")
    with cache.creating("1" * 64, ".pt2") as making:
        assert making.save(b"code") == b"code"
    assert len(list(directory.glob("*-*"))) == 1
    directory.chmod(0o700)
    assert cache.find(KEY, ".pt2") == b"code"
    assert cache.unusable_reason() == ""


def test_a_directory_of_another_user_is_not_used(monkeypatch):
    make()
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert cache.find(KEY, ".pt2") is None
    assert "must be a directory that you own" in cache.unusable_reason()


def test_a_linked_directory_is_not_used(directory, tmp_path):
    make()
    directory.rename(tmp_path / "elsewhere")
    directory.symlink_to(tmp_path / "elsewhere")
    assert cache.find(KEY, ".pt2") is None
    assert "and no link: remove it, or set HOTLOOP_CACHE" in cache.unusable_reason()


@pytest.mark.parametrize("mode", [0o666, 0o620, 0o602])
def test_a_file_that_others_may_write_is_not_used(mode):
    path = make()
    path.chmod(mode)
    assert cache.find(KEY, ".pt2") is None
    assert not path.exists()


def test_the_content_is_what_was_hashed(monkeypatch):
    """A file that is replaced after the check has no effect."""
    path = make()

    def utime(changed):
        path.write_bytes(b"evil")

    monkeypatch.setattr(os, "utime", utime)
    assert cache.find(KEY, ".pt2") == b"code"
    assert path.read_bytes() == b"evil"


def test_a_directory_that_can_not_be_created(directory):
    directory.write_text("a file")
    assert cache.find(KEY, ".pt2") is None
    assert cache.entries() == []
    with cache.creating(KEY, ".pt2") as making:
        assert making.save(b"code") == b"code"


def test_a_full_disk(directory, monkeypatch):
    def write(path, content, mode):
        path.write_bytes(content[:2])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(cache, "write_new", write)
    with cache.creating(KEY, ".pt2") as making:
        assert making.save(b"code") == b"code"
    assert cache.entries() == []
    assert [path.name for path in directory.iterdir()] == [f".{KEY}.lock"]


def test_a_file_system_without_locks(monkeypatch):
    def refuse(descriptor, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    waits = []
    monkeypatch.setattr(cache.fcntl, "flock", refuse)
    with cache.creating(KEY, ".pt2", lambda: waits.append(1)) as making:
        assert making.save(b"code") == b"code"
    assert cache.find(KEY, ".pt2") == b"code"
    assert not waits


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


def test_only_own_files_are_cleared(directory):
    make()
    others = {"my-thesis.tex", "a-b.so", f"{KEY}-copy.pt2", ".editor.lock"}
    for name in others:
        (directory / name).write_text("precious")
    assert len(cache.clear()) == 1
    assert {path.name for path in directory.iterdir()} == others


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
    # A directory that is not private is not used.
    for spoil in (lambda: folder.chmod(0o777), lambda: directory.chmod(0o755)):
        spoil()
        with cache.inductor_directory(default_cache_dir()):
            temporary = Path(os.environ[variable])
            assert temporary != folder
            assert os.stat(temporary).st_mode & 0o777 == 0o700
        assert not temporary.exists()
    monkeypatch.setenv(variable, "the user's own")
    with cache.inductor_directory(default_cache_dir()):
        assert os.environ[variable] == "the user's own"


MAKES = """
import sys
from hotloop.base import cache

with cache.creating(sys.argv[1], ".pt2", lambda: print("waits", flush=True)) as making:
    print("found" if making.existing else "makes", flush=True)
    if making.existing is None:
        sys.stdin.readline()
        making.save(b"code")
"""


def start():
    """Start a process that stores the entry when its input ends, unless it exists."""
    command = [sys.executable, "-c", MAKES, KEY]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    return subprocess.Popen(command, **pipes, text=True)


def test_one_process_builds_while_others_wait():
    first = start()
    assert first.stdout.readline() == "makes\n"
    waiting = [start() for _ in range(2)]
    assert [entry.stdout.readline() for entry in waiting] == ["waits\n"] * 2
    first.communicate(timeout=200)
    assert [entry.communicate(timeout=200)[0] for entry in waiting] == ["found\n"] * 2
    assert len(cache.entries()) == 1


def test_a_killed_builder_is_replaced():
    first = start()
    assert first.stdout.readline() == "makes\n"
    other = start()
    assert other.stdout.readline() == "waits\n"
    time.sleep(0.2)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    assert other.communicate(timeout=200)[0] == "makes\n"
    assert len(cache.entries()) == 1
