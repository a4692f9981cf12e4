"""Learners that are killed at any moment: `resume` ends like an undisturbed run."""

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
    check_ended,
    check_success,
    finish,
    has_begun,
    kill,
    make_rng,
    scale,
    wait_until,
    workers_of,
)

faults = pytest.mark.faults
# System calls that change files.
_CHANGES = (
    "write,pwrite64,writev,rename,renameat,renameat2,unlink,unlinkat,rmdir,symlink,symlinkat,mkdir,"
    "mkdirat,fsync,fdatasync,ftruncate,fallocate,copy_file_range,sendfile"
)


@pytest.fixture
def operations(forks, tmp_path):
    """Return a function that counts a training's operations on files, including the user's key."""

    def count(kind):
        folder = tmp_path / "count"
        home = folder / "state"
        home.mkdir(parents=True)
        run, counter = folder / "run", folder / "operations"
        die = [0, [str(run), str(home)], str(counter)]
        env = {"XDG_STATE_HOME": str(home)}
        check_success(forks.run(*KINDS[kind], "--run-dir", run, die=die, env=env), "train")
        shutil.rmtree(folder / "run")
        return counter.stat().st_size

    return count


def _kill_at_operation(forks, folder, kind, reference, number):
    """Kill a training before its `number`th operation on files, and resume it."""
    home = folder / "state"
    home.mkdir(parents=True)
    run, env = folder / "run", {"XDG_STATE_HOME": str(home)}
    die = [number, [str(run), str(home)]]
    result = forks.run(*KINDS[kind], "--run-dir", run, die=die, env=env)
    if result.code not in (0, -signal.SIGKILL):
        raise Failed(f"train: {result.summary}")
    note = finish(forks, run, reference, env=env)
    shutil.rmtree(folder)
    return note if result.code else "ended before it was killed"


def _choose_spread(number, count, rng):
    """Divide 1 … `count` into `number` equal parts, and choose a place in each."""
    return [1 + int((k + rng.random()) * count / number) for k in range(number)]


def test_killed_between_two_operations_on_files(forks, reference, operations, tally, tmp_path):
    """Try a few operations. All others are marked `faults`."""
    undisturbed = reference("plain")
    places = _choose_spread(scale(5), operations("plain"), make_rng("a few operations"))
    tally("a few kills between operations on files").run(
        lambda n: _kill_at_operation(forks, tmp_path / str(n), "plain", undisturbed, n), places
    )


def test_several_policies_killed_between_two_operations(
    forks, reference, operations, tally, tmp_path
):
    """Try a few operations. All policies resume from the same iteration."""
    undisturbed = reference("policies")
    places = _choose_spread(scale(5), operations("policies"), make_rng("operations of policies"))
    tally("a few kills of several policies between operations on files").run(
        lambda n: _kill_at_operation(forks, tmp_path / str(n), "policies", undisturbed, n), places
    )


@faults
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("kind", "number"),
    [("plain", 40), ("evaluated", 30), ("replay", 20), ("self-play", 30), ("policies", 40)],
)
def test_killed_at_an_operation(forks, reference, operations, tally, tmp_path, kind, number):
    undisturbed = reference(kind)
    places = _choose_spread(scale(number), operations(kind), make_rng(f"operations {kind}"))
    tally(f"kill between operations on files, {kind}").run(
        lambda n: _kill_at_operation(forks, tmp_path / str(n), kind, undisturbed, n), set(places)
    )


@faults
@pytest.mark.timeout(900)
def test_killed_in_a_system_call(forks, reference, tally, tmp_path):
    """Kill also within writes of libraries, and while a tree is removed."""
    if shutil.which("strace") is None:
        pytest.skip("there is no strace here")
    undisturbed = reference("plain")

    def trace(folder, *options):
        """Train under strace; return the result."""
        child = forks.command(*KINDS["plain"], "--run-dir", folder / "run", is_stopped=True)
        wait_until(lambda: _status(child.pid, "State").startswith("T"))
        command = ["strace", "-f", "-qq", "-o", str(folder / "trace"), "-p", str(child.pid)]
        tracer = subprocess.Popen([*command, "-e", f"trace={_CHANGES}", *options])
        wait_until(lambda: _status(child.pid, "TracerPid") != "0" or tracer.poll() is not None)
        if tracer.poll() is not None:
            kill(child.pid)
            pytest.skip("tracing is not allowed here")
        os.kill(child.pid, signal.SIGCONT)
        result = child.wait()
        tracer.wait()
        return result

    folder = tmp_path / "count"
    folder.mkdir()
    check_success(trace(folder), "train")
    lines = (folder / "trace").read_text().splitlines()
    # Calls are counted by thread and name. Nearly all are of the first thread.
    main = lines[0].split()[0]
    names = re.findall(rf"^{main} +(\w+)\(", "\n".join(lines), re.MULTILINE)
    calls = [(name, names[: k + 1].count(name)) for k, name in enumerate(names)]

    def trial(call):
        name, number = call
        folder = tmp_path / f"{name}-{number}"
        folder.mkdir()
        result = trace(folder, "-e", f"inject={name}:signal=KILL:when={number}")
        if result.code not in (0, -signal.SIGKILL):
            raise Failed(f"train: {result.summary}")
        note = finish(forks, folder / "run", undisturbed)
        shutil.rmtree(folder)
        return note if result.code else "ended before it was killed"

    places = _choose_spread(scale(40), len(calls), make_rng("system calls"))
    tally("kill in a system call that writes").run(trial, [calls[k - 1] for k in set(places)])


def _status(pid, field):
    """Return a field of /proc/PID/status."""
    with open(f"/proc/{pid}/status") as file:
        return next(x.split(":")[1].strip() for x in file if x.startswith(f"{field}:"))


@faults
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("kind", "number"), [("long", 40), ("evaluated", 15), ("workers", 20)])
def test_killed_at_a_time(forks, reference, tally, tmp_path, kind, number):
    """Kill at any time between start and end. The workers must end too."""
    undisturbed = reference(kind)
    start = time.monotonic()
    check_success(forks.run(*KINDS[kind], "--run-dir", tmp_path / "timed"), "train")
    duration_s = time.monotonic() - start

    def trial(share):
        folder = tmp_path / f"{share:.4f}"
        child = forks.command(*KINDS[kind], "--run-dir", folder)
        time.sleep(share * duration_s)
        workers = workers_of(child.pid)
        kill(child.pid)
        result = child.wait()
        check_ended(workers)
        note = finish(forks, folder, undisturbed)
        return note if result.code else "ended before it was killed"

    rng = make_rng(f"times {kind}")
    count = scale(number)
    places = [round((k + rng.random()) / count, 4) for k in range(count)]
    tally(f"kill at any time, {kind}").run(trial, places)


@faults
@pytest.mark.timeout(900)
def test_killed_again_and_again(forks, reference, tally, tmp_path):
    """Kill four times, `resume` included."""
    undisturbed = reference("evaluated")

    def trial(seed):
        rng, run = random.Random(seed), tmp_path / str(seed)
        die = [rng.randrange(20, 110), [str(run)]]
        forks.run(*KINDS["evaluated"], "--run-dir", run, die=die)
        for _ in range(3):
            if has_begun(run):
                forks.run("resume", run, die=[rng.randrange(1, 90), [str(run)]])
        return finish(forks, run, undisturbed)

    rng = make_rng("again")
    seeds = [rng.randrange(10**6) for _ in range(scale(15))]
    tally("kill four times, resume included").run(trial, seeds)


@faults
@pytest.mark.timeout(900)
def test_killed_while_it_starts(forks, reference, state_home, tally, tmp_path):
    """Kill a new process, also during its imports."""
    undisturbed = reference("plain")

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
        return finish(forks, run, undisturbed)

    rng = make_rng("starts")
    tally("kill a process that starts").run(
        trial, [(k, round(rng.uniform(0.0, 8.0), 2)) for k in range(scale(8))]
    )


@faults
@pytest.mark.timeout(900)
def test_killed_at_its_end(forks, reference, operations, tally, tmp_path):
    """Kill after the last checkpoint and before the end. `resume` does the rest."""
    undisturbed, count = reference("plain"), operations("plain")
    tally("kill before each of the last operations").run(
        lambda n: _kill_at_operation(forks, tmp_path / str(n), "plain", undisturbed, n),
        range(count - scale(15) + 1, count + 1),
    )
