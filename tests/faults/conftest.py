"""Fixtures of the fault suite, and its table of results."""

import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.faults.forks import Forks
from tests.faults.trials import KINDS, SCALE, SEED, Tally, check_success

_TALLIES = pytest.StashKey[list[Tally]]()


def pytest_configure(config):
    config.stash[_TALLIES] = []


def pytest_terminal_summary(terminalreporter, config):
    tallies = [tally for tally in config.stash[_TALLIES] if tally.num_trials]
    if not tallies:
        return
    write = terminalreporter.write_line
    terminalreporter.section("faults")
    write(f"seed {SEED} (HOTLOOP_FAULTS_SEED), {SCALE:g} × the usual trials (HOTLOOP_FAULTS_SCALE)")
    write("")
    width = max(len(tally.name) for tally in tallies)
    write(f"{'fault':{width}}  trials  passed  notes")
    for tally in tallies:
        notes = ", ".join(f"{count} {note}" for note, count in sorted(tally.notes.items()))
        line = f"{tally.name:{width}}  {tally.num_trials:6,}  {tally.num_passed:6,}  {notes}"
        write(line.rstrip(), red=bool(tally.failures))
    write("")
    num_trials, num_passed = sum(t.num_trials for t in tallies), sum(t.num_passed for t in tallies)
    write(f"{num_passed:,} of {num_trials:,} trials passed")


@pytest.fixture
def tally(request):
    """Return a function that makes the tally of a group of trials."""

    def make(name):
        tally = Tally(name)
        request.config.stash[_TALLIES].append(tally)
        return tally

    return make


@pytest.fixture(scope="session")
def state_home(tmp_path_factory):
    """Directory of the user's key, outside of the home directory."""
    return tmp_path_factory.mktemp("state")


@pytest.fixture(scope="session")
def forks(state_home):
    """Process that starts trials."""
    # A socket's path must be short. Those of pytest's directories are too long.
    folder = Path(tempfile.mkdtemp(prefix="faults-"))
    forks = Forks(folder, {"XDG_STATE_HOME": str(state_home)})
    yield forks
    forks.close()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def reference(forks, tmp_path_factory):
    """Return a function that returns the run of an undisturbed training."""
    runs = {}

    def get_run(kind):
        if kind not in runs:
            runs[kind] = tmp_path_factory.mktemp("reference") / kind
            result = forks.run(*KINDS[kind], "--run-dir", runs[kind], timeout_s=180.0)
            check_success(result, "train")
        return runs[kind]

    return get_run


@pytest.fixture
def mounts(tmp_path):
    """Return a function that mounts small file systems. It skips if mounting is not allowed."""
    mounted = []

    def mount(target, *options):
        """Mount at `target`, which is created: `mount(target, "-t", "tmpfs", …)`."""
        target.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(["mount", *options, str(target)], capture_output=True, text=True)
        if done.returncode != 0:
            pytest.skip(f"mounting is not allowed here: {done.stderr.strip()}")
        mounted.append(target)

    yield mount
    for target in reversed(mounted):
        subprocess.run(["umount", "--lazy", str(target)], capture_output=True)
