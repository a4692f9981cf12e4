"""The slow example programs: the planted cause is diagnosed first, healthy twins have none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hotloop.profiler.diagnose import diagnose
from hotloop.profiler.session.reading import read
from tests.attempts import attempts

EXAMPLES = Path(__file__).parents[3] / "examples" / "slow"
NEEDS = {
    "weighted_replay": "torch",
    "bandit_sweep": "omegaconf",
    "lockstep_envs": "stable_baselines3",
    "eager_update": "torch",
    "starved_pipeline": "numpy",
}


def diagnoses_of(directory, program, *arguments):
    """Profile and diagnose a program until the assertions hold, like `attempts`."""
    pytest.importorskip(NEEDS[program])

    def measure(number):
        command = [sys.executable, "-m", "hotloop", "profile", "--out", directory / str(number)]
        command += [EXAMPLES / f"{program}.py", *arguments]
        subprocess.run(command, check=True, capture_output=True)
        return diagnose(read(directory / str(number)))

    return attempts(measure)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "program", "arguments"),
    [
        ("replay-grows", "weighted_replay", ["--updates", "1000"]),
        ("configuration-objects", "bandit_sweep", []),
        ("logging", "bandit_sweep", ["--runs", "100", "--fix", "config"]),
        ("slow-argmax", "bandit_sweep", ["--runs", "500", "--fix", "config", "--fix", "logging"]),
        ("lockstep-stragglers", "lockstep_envs", ["--steps", "200"]),
        ("tiny-operations", "eager_update", ["--fix", "sync", "--updates", "600"]),
        ("host-sync", "eager_update", ["--fix", "tiny", "--updates", "800"]),
        ("starved-pipeline", "starved_pipeline", ["--fragments", "600"]),
    ],
)
def test_planted_cause_is_named_first(tmp_path, rule, program, arguments):
    for diagnoses, attempt in diagnoses_of(tmp_path, program, *arguments):
        with attempt:
            assert [diagnosis.rule for diagnosis in diagnoses][:1] == [rule]
            assert diagnoses[0].gain > 1.1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "arguments"),
    [
        ("weighted_replay", ["--updates", "600"]),
        ("bandit_sweep", ["--runs", "1000"]),
        ("lockstep_envs", ["--steps", "800"]),
        ("eager_update", ["--updates", "1600"]),
        ("starved_pipeline", ["--fragments", "1500"]),
    ],
)
def test_twins_are_healthy(tmp_path, program, arguments):
    for diagnoses, attempt in diagnoses_of(tmp_path, program, "--healthy", *arguments):
        # Two of them sleep in place of a simulator, which the profiler cannot know.
        with attempt:
            assert [
                diagnosis
                for diagnosis in diagnoses
                if diagnosis.gain is not None and diagnosis.wait != "sleep"
            ] == []
