import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hotloop.base.files import atomic_write, private_file, read_regular, sync, write_new
from hotloop.errors import OutputError


def test_a_failed_write_keeps_the_old_file(tmp_path):
    path = tmp_path / "new" / "file.txt"
    for durable in (False, True):
        with atomic_write(path, durable=durable) as temporary:
            temporary.write_text(f"{durable}")
        assert path.read_text() == f"{durable}"

    def fail(temporary):
        temporary.write_text("half")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), atomic_write(path) as temporary:
        fail(temporary)
    assert os.listdir(path.parent) == ["file.txt"]
    assert path.read_text() == "True"


def test_two_writers_of_one_path_do_not_share_a_file(tmp_path):
    path = tmp_path / "file.txt"
    with atomic_write(path) as first:
        with atomic_write(path) as second:
            first.write_text("first")
            second.write_text("second")
        assert path.read_text() == "second"
    assert path.read_text() == "first"
    assert os.listdir(tmp_path) == ["file.txt"]


def test_the_file_of_a_killed_writer_is_removed(tmp_path):
    path = tmp_path / "file.txt"
    script = (
        "import os, sys, pathlib; from hotloop.base.files import atomic_write\n"
        "with atomic_write(pathlib.Path(sys.argv[1])) as temporary:\n"
        "    temporary.write_text('half'); os.kill(os.getpid(), 9)"
    )
    killed = subprocess.run([sys.executable, "-c", script, path], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert len(os.listdir(tmp_path)) == 1
    with atomic_write(path) as temporary:
        assert os.listdir(tmp_path) == [temporary.name]
        temporary.write_text("content")
    assert os.listdir(tmp_path) == ["file.txt"]


def test_the_error_names_the_blocked_file(tmp_path):
    (tmp_path / "file").write_text("content")
    with pytest.raises(OutputError, match=r"b.txt can't be written \(a parent is not"):  # noqa: SIM117
        with atomic_write(tmp_path / "file" / "b.txt"):
            pass


def test_write_new_overwrites_nothing(tmp_path):
    write_new(tmp_path / "a", b"1")
    (tmp_path / "link").symlink_to(tmp_path / "b")
    for name in ("a", "link"):
        with pytest.raises(FileExistsError):
            write_new(tmp_path / name, b"2")
    assert (tmp_path / "a").read_bytes() == b"1"
    assert not (tmp_path / "b").exists()


def test_sync_raises_for_a_missing_file(tmp_path):
    for name in "abc":
        (tmp_path / name).write_text(name)
    sync(tmp_path / "a", tmp_path / "b", tmp_path)
    with pytest.raises(FileNotFoundError):
        sync(tmp_path / "a", tmp_path / "missing", tmp_path)


def test_a_file_larger_than_memory_is_not_read(tmp_path):
    with open(tmp_path / "sparse", "wb") as file:
        file.truncate(2**42)
    with pytest.raises(OSError, match="larger than the free memory"):
        read_regular(tmp_path / "sparse")


def test_only_regular_files_are_read(tmp_path):
    (tmp_path / "a").write_text("content")
    (tmp_path / "link").symlink_to("a")
    assert read_regular(tmp_path / "link") == b"content"
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, "/dev/zero"):
        with pytest.raises(OSError, match="not a regular file"):
            read_regular(path)


@pytest.mark.parametrize("in_memory", [True, False])
def test_a_private_file_can_not_be_changed_by_others(monkeypatch, in_memory):
    if not in_memory:
        monkeypatch.delattr(os, "memfd_create", raising=False)
    with private_file(b"code") as path:
        assert path.read_bytes() == b"code"
        if in_memory and os.path.isdir("/proc/self/fd"):
            with pytest.raises(OSError, match="not permitted"), open(path, "r+b") as file:
                file.write(b"evil")
            assert path.read_bytes() == b"code"
        else:
            assert path.stat().st_mode & 0o777 == 0o600
            assert path.parent.stat().st_mode & 0o777 == 0o700
    assert not path.exists()


@pytest.mark.parametrize("path", ["", ".", "/", "a\0b", "a\0b/c"])
def test_a_path_without_a_file_name_is_an_error(path):
    with pytest.raises(OutputError, match="names no file"), atomic_write(Path(path)):
        pass
