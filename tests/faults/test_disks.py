"""Disks that are full or read-only, and run directories that are taken away."""

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
    chooser,
    finish,
    has_begun,
    is_alive,
    is_same,
    num_lines,
    said_in_a_sentence,
    send,
    succeeded,
    times,
    wait_for_lines,
    wait_until,
)

faults = pytest.mark.faults
# A second long, so that there is a meanwhile.
_ENV = ["--env-id", "tests.faults.worlds:mortal"]
_KWARGS = ["--env-kwargs", json.dumps({"env_id": "CartPole-v1", "pause_s": 0.001})]
_SLOW = [*PPO, *_ENV, *_KWARGS, "--total-timesteps", "1536", "--checkpoint-interval", "128"]


@pytest.fixture
def undisturbed(forks, tmp_path):
    """The same training, on a disk of the usual kind."""
    run = tmp_path / "undisturbed"
    succeeded(forks.run(*_SLOW, "--run-dir", run), "train")
    return run


def _fill(path, free_bytes):
    """Fill the rest of a disk, but for so many bytes."""
    block = bytes(4096)
    with open(path, "wb", buffering=0) as file:
        try:
            while True:
                file.write(block)
        except OSError:
            file.truncate(max(0, file.seek(0, os.SEEK_END) - free_bytes))


def _is_saved(forks, run):
    """Check that what was saved before can be played.

    Raises:
        Failed: it can't.
    """
    if list(run.glob("checkpoints/step-*/state.json")):
        succeeded(forks.run("eval", run, "--episodes", 2), "eval")


def _stopped(ended):
    """Check that a training was stopped, in a sentence and by exit code 1.

    Raises:
        Failed: it was not.
    """
    said_in_a_sentence(ended)
    if ended.code != 1:
        raise Failed(ended.told)


def _had_room(forks, ended, run, filler, undisturbed):
    """Whether a training had room enough; if not, that it stopped well, and there is room now."""
    if ended.code == 0:
        succeeded(ended, "train")
        is_same(run, undisturbed)
        return True
    _stopped(ended)
    _is_saved(forks, run)
    filler.unlink()
    return False


@faults
@pytest.mark.timeout(600)
def test_a_disk_that_is_full_at_the_start(forks, undisturbed, mounts, tally, tmp_path):
    """From no space at all to as much as the run needs."""
    numbers = itertools.count()

    def trial(free_bytes):
        disk = tmp_path / f"disk{next(numbers)}"
        mounts(disk, "-t", "tmpfs", "-o", "size=8m", "tmpfs")
        run, filler = disk / "run", disk / "filler"
        _fill(filler, free_bytes)
        ended = forks.run(*_SLOW, "--run-dir", run)
        if _had_room(forks, ended, run, filler, undisturbed):
            return "had room"
        if has_begun(run):
            return finish(forks, run, undisturbed)
        shutil.rmtree(run, ignore_errors=True)
        succeeded(forks.run(*_SLOW, "--run-dir", run), "train again")
        is_same(run, undisturbed)
        return "full before it was a run"

    rng, count = chooser("full disks"), times(12)
    # The timing takes 2.3 MB at once, if it can.
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
        ended = child.wait()
        if _had_room(forks, ended, run, filler, undisturbed):
            return "had room"
        return finish(forks, run, undisturbed)

    tally("a disk that fills up").run(trial, range(times(16)))


@faults
@pytest.mark.timeout(600)
def test_a_disk_that_becomes_read_only(forks, undisturbed, mounts, tally, tmp_path):
    """What is open stays so; nothing new can be written."""

    def trial(seed):
        rng, run = random.Random(f"read-only {seed}"), tmp_path / f"run{seed}"
        child = forks.command(*_SLOW, "--run-dir", run)
        wait_for_lines(child.pid, run, rng.randint(1, 8))
        # Elsewhere first: what is being written to can't be made read-only.
        aside = tmp_path / f"aside{seed}"
        mounts(aside, "--bind", str(run))
        mounts(aside, "-o", "remount,bind,ro")
        mounts(run, "--bind", str(aside))
        ended = child.wait()
        _stopped(ended)
        _is_saved(forks, run)
        _stopped(forks.run("resume", run))
        subprocess.run(["umount", "--lazy", str(run)], check=True)
        return finish(forks, run, undisturbed)

    tally("a disk that becomes read-only").run(trial, range(times(6)))


@faults
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["home", "home and temporary files"])
def test_a_home_that_is_read_only(forks, mounts, tally, tmp_path, kind):
    """Neither caches nor the user's key can be kept there: trainings go on without."""
    home = tmp_path / "home"
    mounts(home, "-t", "tmpfs", "-o", "size=1m,ro", "tmpfs")
    env = dict.fromkeys(("HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"), str(home))
    if kind != "home":
        env["TMPDIR"] = str(home)

    def trial(number):
        run = tmp_path / f"{kind}-{number}"
        succeeded(forks.run(*_SLOW, "--run-dir", run, env=env), "train")
        succeeded(forks.run("eval", run, "--episodes", 2, "--trust", env=env), "eval --trust")
        plain = tmp_path / f"{kind}-plain-{number}"
        command = [*CARTPOLE, "--total-timesteps", 512, "--run-dir", plain]
        succeeded(forks.run(*command, env=env), "train")
        succeeded(forks.run("eval", plain, "--episodes", 2, env=env), "eval")
        more = ["--total-timesteps", 1024]
        succeeded(forks.run("resume", plain, *more, env=env), "resume")

    tally(f"a read-only {kind}").run(trial, range(times(1)))


@faults
@pytest.mark.timeout(600)
def test_a_cache_without_room(forks, mounts, tally, tmp_path):
    """An update that can't be kept is compiled all the same, and the training goes on."""
    cache = tmp_path / "cache"
    mounts(cache, "-t", "tmpfs", "-o", "size=200k,mode=700", "tmpfs")

    def trial(number):
        run = tmp_path / f"run-{number}"
        command = [*CARTPOLE, "--total-timesteps", 512, "--execution", "compile", "--run-dir", run]
        succeeded(forks.run(*command, env={"HOTLOOP_CACHE": str(cache)}), "train")
        assert [path.suffix for path in cache.iterdir()] == [".lock"]

    tally("a cache without room").run(trial, range(1))


@faults
@pytest.mark.timeout(600)
@pytest.mark.parametrize("how", ["removed", "renamed", "replaced by a file"])
def test_a_run_directory_that_is_taken_away(forks, undisturbed, tally, tmp_path, how):
    """The training ends with the next thing that it saves, and makes nothing anew."""

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
            run.write_text("somebody else's")
        ended = child.wait()
        _stopped(ended)
        if how.startswith("replaced"):
            if run.read_text() != "somebody else's":
                raise Failed("what took its place was changed")
            run.unlink()
        elif run.exists():
            made = ", ".join(sorted(x.name for x in run.rglob("*"))[:5])
            raise Failed(f"it was made anew, with {made or 'nothing'}")
        if how == "removed":
            return None
        elsewhere.rename(run)
        return finish(forks, run, undisturbed)

    tally(f"a run directory that is {how}").run(trial, range(times(4)))


def test_a_run_directory_that_is_removed(forks, tally, tmp_path):
    def trial(seed):
        run = tmp_path / f"run{seed}"
        child = forks.command(*_SLOW, "--run-dir", run)
        wait_for_lines(child.pid, run, 1 + seed)
        run.rename(tmp_path / f"elsewhere{seed}")
        _stopped(child.wait())
        if run.exists():
            raise Failed("it was made anew")

    tally("a few run directories that are taken away").run(trial, range(2))


@faults
@pytest.mark.timeout(300)
def test_two_trainings_of_one_directory(forks, undisturbed, tally, tmp_path):
    """The second one is refused, and the first one does not notice."""

    def trial(seed):
        run = tmp_path / f"run{seed}"
        child = forks.command(*_SLOW, "--run-dir", run)
        wait_until(lambda: num_lines(run) > seed or not is_alive(child.pid))
        said_in_a_sentence(forks.run("resume", run))
        if not send(child.pid, 0):
            raise Failed("the first one had ended: nothing was tried")
        succeeded(child.wait(), "train")
        is_same(run, undisturbed)

    tally("resume what is being trained").run(trial, range(times(2)))
