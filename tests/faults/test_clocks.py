"""Clocks that jump: the learned weights do not depend on them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.forks import ROOT, ProcessResult
from tests.faults.trials import KINDS, check_same_run, check_success, scale

faults = pytest.mark.faults
_CLOCKS = Path(__file__).parent / "clocks"


@faults
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("clock", "kind", "count"),
    [
        ("wall", "evaluated", 4),
        ("wall", "workers", 4),
        ("monotonic", "evaluated", 3),
        ("monotonic", "workers", 5),
        ("wall,monotonic", "workers", 2),
    ],
)
def test_clocks_that_jump(reference, state_home, tally, tmp_path, clock, kind, count):
    """Train in new processes, in which the clocks jump before any import."""
    undisturbed = reference(kind)

    def trial(seed):
        run = tmp_path / str(seed)
        code = "import sys; from hotloop.cli import main; sys.exit(main())"
        env = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(
                [str(_CLOCKS), *filter(None, [os.environ.get("PYTHONPATH")])]
            ),
            "XDG_STATE_HOME": str(state_home),
            "HOTLOOP_FAULTS_CLOCK": str(seed),
            "HOTLOOP_FAULTS_CLOCK_KIND": clock,
        }
        done = subprocess.run(
            [sys.executable, "-c", code, *KINDS[kind], "--run-dir", str(run)],
            cwd=ROOT,
            env=env,
            capture_output=True,
            text=True,
            timeout=120.0,
        )
        check_success(ProcessResult(done.returncode, done.stdout, done.stderr), "train")
        check_same_run(run, undisturbed)

    tally(f"{clock.replace(',', ' and ')} clocks that jump, {kind}").run(trial, range(scale(count)))
