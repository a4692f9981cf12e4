"""Full and read-only disks, and run directories that are removed."""

import itertools
import json
import os
import random
import shutil
import subprocess

import pytest

from tests.faults.trials import (
    CARTPOLE,
    PPO,
    Failed,
    check_error_message,
    check_same_run,
    check_success,
    finish,
    has_begun,
    is_alive,
    make_rng,
    num_lines,
    scale,
    send,
    wait_for_lines,
    wait_until,
)

faults = pytest.mark.faults
# A training of a second, so that faults can happen during it.
_ENV = ["--env-id", "tests.faults.fatal_envs:make_env"]
_KWARGS = ["--env-kwargs", json.dumps({"env_id": "CartPole-v1", "pause_s": 0.001})]
_SLOW = [*PPO, *_ENV, *_KWARGS, "--total-timesteps", "1536", "--checkpoint-interval", "128"]


@pytest.fixture
def undisturbed(forks, tmp_path):
    """Run of the same training, on a normal disk."""
    run = tmp_path / "undisturbed"
    check_success(forks.run(*_SLOW, "--run-dir", run), "train")
    return run


def _fill(path, free_bytes):
    """Fill a disk up to the given number of free bytes."""
    block = bytes(4096)
    with open(path, "wb", buffering=0) as file:
        try:
            while True:
                file.write(block)
        except OSError:
            file.truncate(max(0, file.seek(0, os.SEEK_END) - free_bytes))


def _check_saved(forks, run):
    """Check that an earlier checkpoint can be evaluated.

    Raises:
        Failed: It can't.
    """
    if list(run.glob("checkpoints/step-*/state.json")):
        check_success(forks.run("eval", run, "--episodes", 2), "eval")


def _check_stopped(result):
    """Check that a training stopped with a sentence and exit code 1.

    Raises:
        Failed: It did not.
    """
    check_error_message(result)
    if result.code != 1:
        raise Failed(result.summary)


def _had_room(forks, result, run, filler, undisturbed):
    """Return whether a training had enough room. If not, check how it stopped and make room."""
    if result.code == 0:
        check_success(result, "train")
        check_same_run(run, undisturbed)
        return True
    _check_stopped(result)
    _check_saved(forks, run)
    filler.unlink()
    return False


@faults
@pytest.mark.timeout(600)
def test_a_disk_that_is_full_at_the_start(forks, undisturbed, mounts, tally, tmp_path):
    """Try from no space at all to enough for the run."""
    numbers = itertools.count()

    def trial(free_bytes):
        disk = tmp_path / f"disk{next(numbers)}"
        mounts(disk, "-t", "tmpfs", "-o", "size=8m", "tmpfs")
        run, filler = disk / "run", disk / "filler"
        _fill(filler, free_bytes)
        result = forks.run(*_SLOW, "--run-dir", run)
        if _had_room(forks, result, run, filler, undisturbed):
            return "had room"
        if has_begun(run):
            return finish(forks, run, undisturbed)
        shutil.rmtree(run, ignore_errors=True)
        check_success(forks.run(*_SLOW, "--run-dir", run), "train again")
        check_same_run(run, undisturbed)
        return "full before it was a run"

    rng, count = make_rng("full disks"), scale(12)
    # The timing file takes 2.3 MB at once, if there is room.
    small = [0, *(rng.randrange(200_000) for _ in range(count // 2))]
    large = [rng.randrange(2_200_000, 2_500_000) for _ in range(count // 2)]
    tally("a disk that is full at the start").run(trial, [*small, *large])


@faults
@pytest.mark.timeout(600)
def test_a_disk_that_fills_up(forks, undisturbed, mounts, tally, tmp_path):
    def trial(seed):
        rng = random.Random(f"fills {seed}")
        disk = tmp_path / f"disk{seed}"
        mounts(disk, "-t", "tmpfs", "-o", "size=8m", "tmpfs")
        run, filler = disk / "run", disk / "filler"
        child = forks.command(*_SLOW, "--run-dir", run)
        wait_for_lines(child.pid, run, rng.randint(1, 10))
        _fill(filler, rng.choice([0, 0, 4096, rng.randrange(60_000)]))
        result = child.wait()
        if _had_room(forks, result, run, filler, undisturbed):
            return "had room"
        return finish(forks, run, undisturbed)

    tally("a disk that fills up").run(trial, range(scale(16)))


@faults
@pytest.mark.timeout(600)
def test_a_disk_that_becomes_read_only(forks, undisturbed, mounts, tally, tmp_path):
    """Open files stay open, but no new ones can be written."""

    def trial(seed):
        rng, run = random.Random(f"read-only {seed}"), tmp_path / f"run{seed}"
        child = forks.command(*_SLOW, "--run-dir", run)
        wait_for_lines(child.pid, run, rng.randint(1, 8))
        # Remount a bind mount: a directory with open files can't be made read-only.
        aside = tmp_path / f"aside{seed}"
        mounts(aside, "--bind", str(run))
        mounts(aside, "-o", "remount,bind,ro")
        mounts(run, "--bind", str(aside))
        result = child.wait()
        _check_stopped(result)
        _check_saved(forks, run)
        _check_stopped(forks.run("resume", run))
        subprocess.run(["umount", "--lazy", str(run)], check=True)
        return finish(forks, run, undisturbed)

    tally("a disk that becomes read-only").run(trial, range(scale(6)))


@faults
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["home", "home and temporary files"])
def test_a_home_that_is_read_only(forks, mounts, tally, tmp_path, kind):
    """Neither caches nor the user's key can be stored: trainings continue without them."""
    home = tmp_path / "home"
    mounts(home, "-t", "tmpfs", "-o", "size=1m,ro", "tmpfs")
    env = dict.fromkeys(("HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"), str(home))
    if kind != "home":
        env["TMPDIR"] = str(home)

    def trial(number):
        run = tmp_path / f"{kind}-{number}"
        check_success(forks.run(*_SLOW, "--run-dir", run, env=env), "train")
        check_success(forks.run("eval", run, "--episodes", 2, "--trust", env=env), "eval --trust")
        plain = tmp_path / f"{kind}-plain-{number}"
        command = [*CARTPOLE, "--total-timesteps", 512, "--run-dir", plain]
        check_success(forks.run(*command, env=env), "train")
        check_success(forks.run("eval", plain, "--episodes", 2, env=env), "eval")
        more = ["--total-timesteps", 1024]
        check_success(forks.run("resume", plain, *more, env=env), "resume")

    tally(f"a read-only {kind}").run(trial, range(scale(1)))


@faults
@pytest.mark.timeout(600)
def test_a_cache_without_room(forks, mounts, tally, tmp_path):
    """An update that can't be cached is compiled nevertheless, and the training continues."""
    cache = tmp_path / "cache"
    mounts(cache, "-t", "tmpfs", "-o", "size=200k,mode=700", "tmpfs")

    def trial(number):
        run = tmp_path / f"run-{number}"
        command = [*CARTPOLE, "--total-timesteps", 512, "--execution", "compile", "--run-dir", run]
        check_success(forks.run(*command, env={"HOTLOOP_CACHE": str(cache)}), "train")
        assert [path.suffix for path in cache.iterdir()] == [".lock"]

    tally("a cache without room").run(trial, range(1))


@faults
@pytest.mark.timeout(600)
@pytest.mark.parametrize("how", ["removed", "renamed", "replaced by a file"])
def test_a_run_directory_that_is_taken_away(forks, undisturbed, tally, tmp_path, how):
    """The training ends at its next save, and creates no new files."""

    def trial(seed):
        rng = random.Random(f"{how} {seed}")
        run, elsewhere = tmp_path / f"run{seed}", tmp_path / f"elsewhere{seed}"
        child = forks.command(*_SLOW, "--run-dir", run)
        wait_for_lines(child.pid, run, rng.randint(1, 8))
        is_there = run.exists()
        if is_there:
            run.rename(elsewhere)
        if how == "removed":
            shutil.rmtree(elsewhere)
        elif how.startswith("replaced"):
            run.write_text("another file")
        result = child.wait()
        _check_stopped(result)
        if how.startswith("replaced"):
            if run.read_text() != "another file":
                raise Failed("the file in its place was changed")
            run.unlink()
        elif run.exists():
            names = ", ".join(sorted(x.name for x in run.rglob("*"))[:5])
            raise Failed(f"it was created again, with {names or 'nothing'}")
        if how == "removed":
            return None
        elsewhere.rename(run)
        return finish(forks, run, undisturbed)

    tally(f"a run directory that is {how}").run(trial, range(scale(4)))


def test_a_run_directory_that_is_removed(forks, tally, tmp_path):
    def trial(seed):
        run = tmp_path / f"run{seed}"
        child = forks.command(*_SLOW, "--run-dir", run)
        wait_for_lines(child.pid, run, 1 + seed)
        run.rename(tmp_path / f"elsewhere{seed}")
        _check_stopped(child.wait())
        if run.exists():
            raise Failed("it was created again")

    tally("a few run directories that are taken away").run(trial, range(2))


@faults
@pytest.mark.timeout(300)
def test_two_trainings_of_one_directory(forks, undisturbed, tally, tmp_path):
    """The second training is refused, and the first one is not affected."""

    def trial(seed):
        run = tmp_path / f"run{seed}"
        child = forks.command(*_SLOW, "--run-dir", run)
        wait_until(lambda: num_lines(run) > seed or not is_alive(child.pid))
        check_error_message(forks.run("resume", run))
        if not send(child.pid, 0):
            raise Failed("the first training had already ended")
        check_success(child.wait(), "train")
        check_same_run(run, undisturbed)

    tally("resume a run in training").run(trial, range(scale(2)))
