"""Simulate machine crashes between any two file system calls, using a recording of them.

A recording holds every name that is created, moved or removed, and all synced content. After a
crash the disk has the synced changes and any subset of the others.
"""

import os
import random
from collections import Counter

import pytest

from hotloop.runs import RunDirectory
from tests.runs.test_checkpoints import checkpoint

pytestmark = pytest.mark.outside


class Recording:
    """Records the calls that change or sync a directory."""

    def __init__(self, root, monkeypatch):
        self.calls = []  # ("names", {(folder, name): new entry}), ("synced", id, content)
        self._ids = {os.stat(root).st_ino: "root"}
        self._patch = monkeypatch
        for name, wrap in {
            "open": self._open,
            "mkdir": self._mkdir,
            "symlink": self._symlink,
            "rename": self._rename,
            "replace": self._rename,
            "unlink": self._remove,
            "rmdir": self._remove,
            "fsync": self._fsync,
        }.items():
            monkeypatch.setattr(os, name, wrap(getattr(os, name)))

    def _place(self, path, dir_fd=None):
        folder, name = os.path.split(os.fspath(path))
        if dir_fd is not None:
            folder = os.path.join(os.readlink(f"/proc/self/fd/{dir_fd}"), folder)
        return self._ids.get(os.stat(folder or ".").st_ino), name

    def _names(self, changed):
        if all(
            folder is not None for folder, _ in changed
        ):  # otherwise the path is outside the root
            self.calls.append(("names", changed))

    def _new(self, path):
        inode = os.lstat(path).st_ino
        self._ids[inode] = f"{len(self.calls)}:{os.path.basename(path)}"
        return self._ids[inode]

    def _open(self, call):
        def wrapper(path, flags, mode=0o777, *, dir_fd=None):
            is_new = flags & os.O_CREAT and dir_fd is None and not os.path.lexists(path)
            number = call(path, flags, mode, dir_fd=dir_fd)
            if is_new:
                self._names({self._place(path): self._new(path)})
            return number

        return wrapper

    def _mkdir(self, call):
        def wrapper(path, *args, **kwargs):
            call(path, *args, **kwargs)
            self._names({self._place(path): self._new(path)})

        return wrapper

    def _symlink(self, call):
        def wrapper(target, path, *args, **kwargs):
            call(target, path, *args, **kwargs)
            self._names({self._place(path): ("link", os.fspath(target))})

        return wrapper

    def _rename(self, call):
        def wrapper(old, new):
            is_link = os.path.islink(old)
            entry = ("link", os.readlink(old)) if is_link else self._ids.get(os.lstat(old).st_ino)
            places = {self._place(old): None, self._place(new): entry}
            call(old, new)
            self._names(places)

        return wrapper

    def _remove(self, call):
        def wrapper(path, *, dir_fd=None):
            place = self._place(path, dir_fd)
            call(path, dir_fd=dir_fd)
            self._names({place: None})

        return wrapper

    def _fsync(self, call):
        def wrapper(number):
            call(number)
            status, content = os.fstat(number), None
            if os.path.isfile(path := f"/proc/self/fd/{number}"):
                with open(path, "rb") as file:
                    content = file.read()
            self.calls.append(("synced", self._ids.get(status.st_ino), content))

        return wrapper

    def disk_after(self, num_calls, keeps):
        """Return the disk after a crash: the names per folder and the content per file.

        Args:
            num_calls: number of calls before the crash.
            keeps: returns whether an unsynced change of names reaches the disk.
        """
        calls = self.calls[:num_calls]
        names, contents = {}, {}
        for number, (kind, *details) in enumerate(calls):
            if kind == "synced":
                contents[details[0]] = details[1]
                continue
            (changed,) = details
            folders = {folder for folder, _ in changed}
            is_synced = folders <= {call[1] for call in calls[number:] if call[0] == "synced"}
            if is_synced or keeps():
                for (folder, name), entry in changed.items():
                    names.setdefault(folder, {})[name] = entry
        return names, contents


def lay_out(folder, target, names, contents):
    """Create the directory as a crash leaves it."""
    target.mkdir()
    for name, entry in names.get(folder, {}).items():
        if isinstance(entry, tuple):
            os.symlink(entry[1], target / name)
        elif entry in names or (entry and contents.get(entry, b"") is None):
            lay_out(entry, target / name, names, contents)
        elif entry is not None:  # unsynced content is arbitrary, usually zeros
            (target / name).write_bytes(contents.get(entry, bytes(300)))


def test_a_crash_at_any_moment_keeps_saved_checkpoints(tmp_path, monkeypatch):
    (tmp_path / "root").mkdir()
    saved = [(0, None)]  # number of calls, and the checkpoint that must exist after them
    with monkeypatch.context() as patch:
        recording = Recording(tmp_path / "root", patch)
        run = RunDirectory.create(
            tmp_path / "root" / "runs" / "run",
            runs_dir=tmp_path,
            env_id="CartPole-v1",
            algorithm="ppo",
            reference="ppo",
            seed=1,
            config={"seed": 1, "total_timesteps": 500},
        )
        created_at = len(recording.calls)

        def iterate(steps):
            for step in steps:
                line = {"iteration": step, "timesteps": 100 * step, "episode_returns": []}
                run.log(line)
                run.sync_metrics()
                names = ("best", "last") if step == 2 else ("last",)
                run.checkpoints.save(checkpoint(100 * step), names=names, keep=1)
                saved.append((len(recording.calls), 100 * step))

        iterate([1, 2, 3, 4])
        run.close()
        # The run resumes from the third checkpoint and removes the later ones.
        third = run.checkpoints.load("step-000000000300")
        saved.append((len(recording.calls) + 1, 300))
        run.checkpoints.rewind(third, best=200)
        run.resume({"seed": 1, "total_timesteps": 600}, timesteps=300, iteration=3)
        run.checkpoints.remove_later(third)
        iterate([4, 5])
        run.close()
    assert len(recording.calls) > 100
    chances = random.Random(1)
    policies = [lambda: False, lambda: True] + 2 * [lambda: chances.random() < 0.5]
    counts = Counter()
    for num_calls in range(created_at, len(recording.calls) + 1):
        _, min_timesteps = max(point for point in saved if point[0] <= num_calls)
        for number, keeps in enumerate(policies):
            root = tmp_path / f"after-{num_calls}-{number}"
            lay_out("root", root, *recording.disk_after(num_calls, keeps))
            found = RunDirectory.open(root / "runs" / "run")
            assert found.config["algorithm"] == "ppo"
            if min_timesteps is None:
                continue
            loaded = found.checkpoints.load()
            assert loaded.state["timesteps"] >= min_timesteps
            assert loaded.arrays()["step"] == 5
            iteration = loaded.state["timesteps"] // 100
            iterations = [line["iteration"] for line in found._iter_metrics(until=iteration)]
            assert iterations == list(range(1, iteration + 1))
            if min_timesteps >= 200:
                assert found.checkpoints.load("best").state["timesteps"] == 200
            counts[loaded.state["timesteps"]] += 1
    assert counts.keys() == {100, 200, 300, 400, 500}


@pytest.mark.parametrize("forgotten", ["file", "folder"])
def test_the_recording_detects_a_missing_sync(tmp_path, monkeypatch, forgotten):
    """A rename without a sync before or after it loses the file."""
    root = tmp_path / "root"
    root.mkdir()
    with monkeypatch.context() as patch:
        recording = Recording(root, patch)
        number = os.open(root / "aside", os.O_CREAT | os.O_WRONLY)
        os.write(number, b"content")
        if forgotten != "file":
            os.fsync(number)
        os.close(number)
        os.replace(root / "aside", root / "file")
        if forgotten != "folder":
            number = os.open(root, os.O_RDONLY)
            os.fsync(number)
            os.close(number)
    lay_out("root", tmp_path / "after", *recording.disk_after(len(recording.calls), lambda: False))
    if forgotten == "file":
        assert (tmp_path / "after" / "file").read_bytes() == bytes(300)
    else:
        assert not (tmp_path / "after" / "file").exists()
