"""Load a run's policy and a copy of it; both must act alike. Argument: a run directory."""

import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np

import hotloop

run = Path(sys.argv[1])
with tempfile.TemporaryDirectory() as folder:
    copy = Path(folder) / "copy"
    shutil.copytree(run, copy, symlinks=True)
    policies = [hotloop.load(path) for path in (run, copy)]
obs = np.random.default_rng(0).standard_normal((64, 4)).astype(np.float32)
actions = [policy.act(obs) for policy in policies]
assert actions[0].shape == (64,), actions[0].shape
assert set(actions[0]) == {0, 1}, set(actions[0])
np.testing.assert_array_equal(actions[0], actions[1])
assert hotloop.evaluate(run, episodes=2).mean_return > 0
