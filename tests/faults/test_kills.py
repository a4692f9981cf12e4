"""Learners that are killed: whatever moment it is, `resume` ends as if nothing had happened."""

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest

from tests.faults.forks import ROOT
from tests.faults.trials import (
    KINDS,
    Failed,
    chooser,
    finish,
    has_begun,
    kill,
    left_behind,
    succeeded,
    times,
    wait_until,
    workers_of,
)

faults = pytest.mark.faults
# What changes files, as the kernel calls it.
_CHANGES = (
    "write,pwrite64,writev,rename,renameat,renameat2,unlink,unlinkat,rmdir,symlink,symlinkat,mkdir,"
    "mkdirat,fsync,fdatasync,ftruncate,fallocate,copy_file_range,sendfile"
)


@pytest.fixture
def operations(forks, tmp_path):
    """Gives how many operations on files a training makes, its user's key included."""

    def count(kind):
        folder = tmp_path / "count"
        home = folder / "state"
        home.mkdir(parents=True)
        run, told = folder / "run", folder / "operations"
        die = [0, [str(run), str(home)], str(told)]
        env = {"XDG_STATE_HOME": str(home)}
        succeeded(forks.run(*KINDS[kind], "--run-dir", run, die=die, env=env), "train")
        shutil.rmtree(folder / "run")
        return told.stat().st_size

    return count


def _killed_at_an_operation(forks, folder, kind, reference, number):
    """Kill a training before its `number`th operation on files, and resume it."""
    home = folder / "state"
    home.mkdir(parents=True)
    run, env = folder / "run", {"XDG_STATE_HOME": str(home)}
    die = [number, [str(run), str(home)]]
    ended = forks.run(*KINDS[kind], "--run-dir", run, die=die, env=env)
    if ended.code not in (0, -signal.SIGKILL):
        raise Failed(f"train: {ended.told}")
    note = finish(forks, run, reference, env=env)
    shutil.rmtree(folder)
    return note if ended.code else "ended before it was killed"


def _spread(number, count, rng):
    """`number` places of 1 … `count`, one in each of as many equal parts."""
    return [1 + int((k + rng.random()) * count / number) for k in range(number)]


def test_killed_between_two_operations_on_files(forks, reference, operations, tally, tmp_path):
    """Some of them: all others are marked `faults`."""
    theirs = reference("plain")
    places = _spread(times(5), operations("plain"), chooser("a few operations"))
    tally("a few kills between operations on files").run(
        lambda n: _killed_at_an_operation(forks, tmp_path / str(n), "plain", theirs, n), places
    )


@faults
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("kind", "number"), [("plain", 40), ("evaluated", 30), ("replay", 20)])
def test_killed_at_an_operation(forks, reference, operations, tally, tmp_path, kind, number):
    theirs = reference(kind)
    places = _spread(times(number), operations(kind), chooser(f"operations {kind}"))
    tally(f"kill between operations on files, {kind}").run(
        lambda n: _killed_at_an_operation(forks, tmp_path / str(n), kind, theirs, n), set(places)
    )


@faults
@pytest.mark.timeout(900)
def test_killed_in_a_system_call(forks, reference, tally, tmp_path):
    """Also within what a library writes, and within the removal of a tree."""
    if shutil.which("strace") is None:
        pytest.skip("there is no strace here")
    theirs = reference("plain")

    def trace(folder, *options):
        """Train, traced; return how it ended."""
        child = forks.command(*KINDS["plain"], "--run-dir", folder / "run", is_stopped=True)
        wait_until(lambda: _status(child.pid, "State").startswith("T"))
        command = ["strace", "-f", "-qq", "-o", str(folder / "trace"), "-p", str(child.pid)]
        tracer = subprocess.Popen([*command, "-e", f"trace={_CHANGES}", *options])
        wait_until(lambda: _status(child.pid, "TracerPid") != "0" or tracer.poll() is not None)
        if tracer.poll() is not None:
            kill(child.pid)
            pytest.skip("tracing is not allowed here")
        os.kill(child.pid, signal.SIGCONT)
        ended = child.wait()
        tracer.wait()
        return ended

    folder = tmp_path / "count"
    folder.mkdir()
    succeeded(trace(folder), "train")
    lines = (folder / "trace").read_text().splitlines()
    # Calls are counted by thread and by name; those of the first thread are nearly all.
    main = lines[0].split()[0]
    names = re.findall(rf"^{main} +(\w+)\(", "\n".join(lines), re.MULTILINE)
    calls = [(name, names[: k + 1].count(name)) for k, name in enumerate(names)]

    def trial(call):
        name, number = call
        folder = tmp_path / f"{name}-{number}"
        folder.mkdir()
        ended = trace(folder, "-e", f"inject={name}:signal=KILL:when={number}")
        if ended.code not in (0, -signal.SIGKILL):
            raise Failed(f"train: {ended.told}")
        note = finish(forks, folder / "run", theirs)
        shutil.rmtree(folder)
        return note if ended.code else "ended before it was killed"

    places = _spread(times(40), len(calls), chooser("system calls"))
    tally("kill in a system call that writes").run(trial, [calls[k - 1] for k in set(places)])


def _status(pid, field):
    """What the kernel tells of a process."""
    with open(f"/proc/{pid}/status") as file:
        return next(x.split(":")[1].strip() for x in file if x.startswith(f"{field}:"))


@faults
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("kind", "number"), [("long", 40), ("evaluated", 15), ("workers", 20)])
def test_killed_at_a_time(forks, reference, tally, tmp_path, kind, number):
    """At any time between its start and its end; its workers must end too."""
    theirs = reference(kind)
    began = time.monotonic()
    succeeded(forks.run(*KINDS[kind], "--run-dir", tmp_path / "timed"), "train")
    duration_s = time.monotonic() - began

    def trial(share):
        folder = tmp_path / f"{share:.4f}"
        child = forks.command(*KINDS[kind], "--run-dir", folder)
        time.sleep(share * duration_s)
        workers = workers_of(child.pid)
        kill(child.pid)
        ended = child.wait()
        left_behind(workers)
        note = finish(forks, folder, theirs)
        return note if ended.code else "ended before it was killed"

    rng = chooser(f"times {kind}")
    count = times(number)
    places = [round((k + rng.random()) / count, 4) for k in range(count)]
    tally(f"kill at any time, {kind}").run(trial, places)


@faults
@pytest.mark.timeout(900)
def test_killed_again_and_again(forks, reference, tally, tmp_path):
    """Four times, `resume` included."""
    theirs = reference("evaluated")

    def trial(seed):
        rng, run = random.Random(seed), tmp_path / str(seed)
        die = [rng.randrange(20, 110), [str(run)]]
        forks.run(*KINDS["evaluated"], "--run-dir", run, die=die)
        for _ in range(3):
            if has_begun(run):
                forks.run("resume", run, die=[rng.randrange(1, 90), [str(run)]])
        return finish(forks, run, theirs)

    rng = chooser("again")
    seeds = [rng.randrange(10**6) for _ in range(times(15))]
    tally("kill four times, resume included").run(trial, seeds)


@faults
@pytest.mark.timeout(900)
def test_killed_while_it_starts(forks, reference, state_home, tally, tmp_path):
    """A process of its own, which imports everything."""
    theirs = reference("plain")

    def trial(place):
        number, delay_s = place
        run = tmp_path / str(number)
        code = "import sys; from hotloop.cli import main; sys.exit(main())"
        command = [sys.executable, "-c", code, *KINDS["plain"], "--run-dir", str(run)]
        env = {**os.environ, "XDG_STATE_HOME": str(state_home)}
        process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.DEVNULL)
        time.sleep(delay_s)
        process.kill()
        process.wait()
        return finish(forks, run, theirs)

    rng = chooser("starts")
    tally("kill a process that starts").run(
        trial, [(k, round(rng.uniform(0.0, 8.0), 2)) for k in range(times(8))]
    )


@faults
@pytest.mark.timeout(900)
def test_killed_at_its_end(forks, reference, operations, tally, tmp_path):
    """After its last checkpoint and before its end: what is left is done by `resume`."""
    theirs, count = reference("plain"), operations("plain")
    tally("kill before each of the last operations").run(
        lambda n: _killed_at_an_operation(forks, tmp_path / str(n), "plain", theirs, n),
        range(count - times(15) + 1, count + 1),
    )
