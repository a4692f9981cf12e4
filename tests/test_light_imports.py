"""What starts quickly, or runs on small machines, imports no heavy library."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.runs.run_factory import make_run

# Each stage: its code, and the libraries that must not have been imported after it. They run in one
# process, so that a stage comes before those that may import more.
STAGES = [
    (
        "import hotloop.training.options, hotloop.ops.schedules, hotloop.base.memory",
        "torch gymnasium numba",
    ),
    (
        "import hotloop.bandits, hotloop.bandits.figure_plans\n"
        "[agent() for agent in hotloop.bandits.AGENTS.values()]",
        "torch gymnasium numba",
    ),
    (
        "from hotloop.envs import EnvSpec\nfrom hotloop.envs.device import is_on_device\n"
        "assert is_on_device(EnvSpec('gymnax:X'))",
        "torch jax",
    ),
    *(
        (f"run({[*command, '--help']!r})", "torch gymnasium numba matplotlib")
        for command in (
            [],
            ["train"],
            ["bandit"],
            ["bandit", "run"],
            ["bandit", "run", "ucb"],
            ["bandit", "compare"],
            ["bandit", "figure"],
        )
    ),
    ("assert run(['runs', {runs!r}]) == 0", "torch gymnasium matplotlib safetensors"),
    (
        "from hotloop.bandits.grids import Grid\n"
        "assert len(Grid('ucb', {{'c': 'log:0.1,10,5'}})) == 5",
        "torch gymnasium optuna",
    ),
    (
        "import numpy as np\n"
        "from hotloop.replay import Proportional, ReplayBuffer\n"
        "buffer = ReplayBuffer(9, {{'x': ((), np.float32)}}, sampler=Proportional())\n"
        "buffer.add(x=1.0, weight=2.0)\n"
        "buffer.sample(3)",
        "torch gymnasium envpool",
    ),
    ("import hotloop\nhotloop.load({run!r}).act([0.0, 0.0, 0.0, 0.0])", "torch"),
    ("assert run(['eval', {run!r}, '--episodes', '2']) == 0", "torch"),
]

PROGRAM = """
import json, sys
def run(command):
    from hotloop.cli import main
    try:
        return main(command)
    except SystemExit as stop:
        return stop.code
for code, libraries in json.loads(sys.argv[1]):
    exec(code)
    if imported := sorted(set(libraries.split()) & sys.modules.keys()):
        sys.exit(f"{imported} imported by: {code}")
"""


def test_heavy_libraries_are_imported_where_they_are_needed(tmp_path, trained_run):
    make_run(tmp_path / "run")
    paths = {"runs": str(tmp_path), "run": str(trained_run("ppo"))}
    stages = [(code.format(**paths), libraries) for code, libraries in STAGES]
    command = [sys.executable, "-c", PROGRAM, json.dumps(stages)]
    process = subprocess.run(command, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
