"""Python's profilers record every call of a training in one process."""

import cProfile
import json
import pstats
import subprocess
import sys

import pytest

from hotloop.cli import main

TRAIN = ("train", "ppo", "--total-timesteps", "128", "--num-envs", "2", "--num-steps", "32")
TRAIN += ("--update-epochs", "2", "--execution", "eager", "--run-dir")

YAPPI = """
import json, sys, yappi
import hotloop.algorithms.ppo  # imports are slow under the profiler
from hotloop.cli import main

yappi.set_clock_type("wall")
yappi.start()
code = main(sys.argv[1:])
yappi.stop()
calls = {f.full_name: f.ncall for f in yappi.get_func_stats() if "hotloop" in f.module}
print(json.dumps([code, len(yappi.get_thread_stats()), calls]))
"""


def test_cprofile(tmp_path):
    profile = cProfile.Profile()
    assert profile.runcall(main, [*TRAIN, str(tmp_path / "run")]) == 0
    calls = {
        (file.rpartition("hotloop/")[2], name): stats[1]
        for (file, _, name), stats in pstats.Stats(profile).stats.items()
    }
    assert calls["rollouts/inline.py", "collect"] == 2
    assert calls["envs/serial.py", "step"] == 2 * 32
    assert calls["algorithms/ppo.py", "update"] == 2 * 8 + 1  # the first call is a trial on copies
    assert (tmp_path / "run" / "checkpoints" / "last" / "policy.safetensors").exists()


@pytest.mark.slow
def test_yappi(tmp_path):
    result = subprocess.run(
        [sys.executable, "-c", YAPPI, *TRAIN, tmp_path / "run"],
        check=True,
        capture_output=True,
        text=True,
    )
    code, num_threads, calls = json.loads(result.stdout.splitlines()[-1])
    assert code == 0
    assert num_threads == 2  # the main thread, and one that waits for environments to close
    found = {name.rpartition(" ")[2]: count for name, count in calls.items()}
    assert found["InlineRollout.collect"] == 2
    assert found["SerialVectorEnv.step"] == 2 * 32
