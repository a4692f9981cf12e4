"""Fixtures of the fault suite, and the table of what was tried."""

import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.faults.forks import Forks
from tests.faults.trials import KINDS, SCALE, SEED, Tally, succeeded

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
    width = max(len(tally.what) for tally in tallies)
    write(f"{'what was tried':{width}}  trials  ended well  of these")
    for tally in tallies:
        notes = ", ".join(f"{count} {note}" for note, count in sorted(tally.notes.items()))
        line = f"{tally.what:{width}}  {tally.num_trials:6,}  {tally.num_well:10,}  {notes}"
        write(line.rstrip(), red=bool(tally.failures))
    write("")
    num_trials, num_well = sum(t.num_trials for t in tallies), sum(t.num_well for t in tallies)
    write(f"{num_well:,} of {num_trials:,} trials ended well")


@pytest.fixture
def tally(request):
    """Makes what counts the trials of one group."""

    def make(what):
        made = Tally(what)
        request.config.stash[_TALLIES].append(made)
        return made

    return make


@pytest.fixture(scope="session")
def state_home(tmp_path_factory):
    """Where the user's key lies: not in the tester's own home."""
    return tmp_path_factory.mktemp("state")


@pytest.fixture(scope="session")
def forks(state_home):
    """Starts trials."""
    # A socket's path must be short, which pytest's own directories are not.
    folder = Path(tempfile.mkdtemp(prefix="faults-"))
    made = Forks(folder, {"XDG_STATE_HOME": str(state_home)})
    yield made
    made.close()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def reference(forks, tmp_path_factory):
    """Gives the run of a training that nothing happened to."""
    made = {}

    def give(kind):
        if kind not in made:
            made[kind] = tmp_path_factory.mktemp("reference") / kind
            ended = forks.run(*KINDS[kind], "--run-dir", made[kind], timeout_s=180.0)
            succeeded(ended, "train")
        return made[kind]

    return give


@pytest.fixture
def mounts(tmp_path):
    """Mounts small file systems; skips where that is not allowed."""
    mounted = []

    def mount(target, *options):
        """`mount(target, "-t", "tmpfs", …)`, where `target` is made."""
        target.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(["mount", *options, str(target)], capture_output=True, text=True)
        if done.returncode != 0:
            pytest.skip(f"mounting is not allowed here: {done.stderr.strip()}")
        mounted.append(target)

    yield mount
    for target in reversed(mounted):
        subprocess.run(["umount", "--lazy", str(target)], capture_output=True)
