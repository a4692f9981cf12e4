"""Crashes of the machine between any two calls to the file system, played on a recording of them.

A recording holds every name that is made, moved or removed, and what is synced. After a crash the
disk has what was synced; of the rest it has any part: nothing, all, or something in between.
"""

import os
import random
from collections import Counter

import pytest

from hotloop.runs import RunDirectory
from tests.runs.test_checkpoints import checkpoint

pytestmark = pytest.mark.outside


class Recording:
    """Calls that change a directory or bring it to the disk, from when it is made."""

    def __init__(self, root, monkeypatch):
        self.calls = []  # ("names", {(folder, name): what is there now}), ("synced", id, content)
        self._ids = {os.stat(root).st_ino: "root"}
        self._patch = monkeypatch
        for name, made in {
            "open": self._open,
            "mkdir": self._mkdir,
            "symlink": self._symlink,
            "rename": self._rename,
            "replace": self._rename,
            "unlink": self._remove,
            "rmdir": self._remove,
            "fsync": self._fsync,
        }.items():
            monkeypatch.setattr(os, name, made(getattr(os, name)))

    def _place(self, path, dir_fd=None):
        folder, name = os.path.split(os.fspath(path))
        if dir_fd is not None:
            folder = os.path.join(os.readlink(f"/proc/self/fd/{dir_fd}"), folder)
        return self._ids.get(os.stat(folder or ".").st_ino), name

    def _names(self, changed):
        if all(folder is not None for folder, _ in changed):  # else it is elsewhere
            self.calls.append(("names", changed))

    def _new(self, path):
        inode = os.lstat(path).st_ino
        self._ids[inode] = f"{len(self.calls)}:{os.path.basename(path)}"
        return self._ids[inode]

    def _open(self, call):
        def made(path, flags, mode=0o777, *, dir_fd=None):
            is_new = flags & os.O_CREAT and dir_fd is None and not os.path.lexists(path)
            number = call(path, flags, mode, dir_fd=dir_fd)
            if is_new:
                self._names({self._place(path): self._new(path)})
            return number

        return made

    def _mkdir(self, call):
        def made(path, *args, **kwargs):
            call(path, *args, **kwargs)
            self._names({self._place(path): self._new(path)})

        return made

    def _symlink(self, call):
        def made(target, path, *args, **kwargs):
            call(target, path, *args, **kwargs)
            self._names({self._place(path): ("link", os.fspath(target))})

        return made

    def _rename(self, call):
        def made(old, new):
            is_link = os.path.islink(old)
            what = ("link", os.readlink(old)) if is_link else self._ids.get(os.lstat(old).st_ino)
            places = {self._place(old): None, self._place(new): what}
            call(old, new)
            self._names(places)

        return made

    def _remove(self, call):
        def made(path, *, dir_fd=None):
            place = self._place(path, dir_fd)
            call(path, dir_fd=dir_fd)
            self._names({place: None})

        return made

    def _fsync(self, call):
        def made(number):
            call(number)
            about, content = os.fstat(number), None
            if os.path.isfile(path := f"/proc/self/fd/{number}"):
                with open(path, "rb") as file:
                    content = file.read()
            self.calls.append(("synced", self._ids.get(about.st_ino), content))

        return made

    def disk_after(self, num_calls, keeps):
        """What a crash leaves: by folder its names, and by file its content.

        Args:
            num_calls: made before it.
            keeps: whether a change of names that was not synced is there all the same.
        """
        calls = self.calls[:num_calls]
        names, contents = {}, {}
        for number, (kind, *what) in enumerate(calls):
            if kind == "synced":
                contents[what[0]] = what[1]
                continue
            (changed,) = what
            folders = {folder for folder, _ in changed}
            is_synced = folders <= {one[1] for one in calls[number:] if one[0] == "synced"}
            if is_synced or keeps():
                for (folder, name), there in changed.items():
                    names.setdefault(folder, {})[name] = there
        return names, contents


def lay_out(folder, where, names, contents):
    """Make the directory that a crash has left."""
    where.mkdir()
    for name, there in names.get(folder, {}).items():
        if isinstance(there, tuple):
            os.symlink(there[1], where / name)
        elif there in names or (there and contents.get(there, b"") is None):
            lay_out(there, where / name, names, contents)
        elif there is not None:  # what was not synced may have any content, zeros most often
            (where / name).write_bytes(contents.get(there, bytes(300)))


def test_a_crash_at_any_moment_leaves_what_was_saved(tmp_path, monkeypatch):
    (tmp_path / "root").mkdir()
    saved = [(0, None)]  # calls until then, and the checkpoint that must be there from then on
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
        # It goes on from the third, and what came later is removed.
        third = run.checkpoints.load("step-000000000300")
        saved.append((len(recording.calls) + 1, 300))
        run.checkpoints.rewind(third, best=200)
        run.resume({"seed": 1, "total_timesteps": 600}, timesteps=300, iteration=3)
        run.checkpoints.remove_later(third)
        iterate([4, 5])
        run.close()
    assert len(recording.calls) > 100
    chances = random.Random(1)
    ways = [lambda: False, lambda: True] + 2 * [lambda: chances.random() < 0.5]
    seen = Counter()
    for num_calls in range(created_at, len(recording.calls) + 1):
        _, least = max(one for one in saved if one[0] <= num_calls)
        for number, keeps in enumerate(ways):
            root = tmp_path / f"after-{num_calls}-{number}"
            lay_out("root", root, *recording.disk_after(num_calls, keeps))
            found = RunDirectory.open(root / "runs" / "run")
            assert found.config["algorithm"] == "ppo"
            if least is None:
                continue
            got = found.checkpoints.load()
            assert got.state["timesteps"] >= least
            assert got.arrays()["step"] == 5
            iteration = got.state["timesteps"] // 100
            kept = [line["iteration"] for line in found._lines(until=iteration)]
            assert kept == list(range(1, iteration + 1))
            if least >= 200:
                assert found.checkpoints.load("best").state["timesteps"] == 200
            seen[got.state["timesteps"]] += 1
    assert seen.keys() == {100, 200, 300, 400, 500}


@pytest.mark.parametrize("forgotten", ["file", "folder"])
def test_the_recording_finds_what_is_not_synced(tmp_path, monkeypatch, forgotten):
    """A rename without a sync before it, or after it, loses the file."""
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
