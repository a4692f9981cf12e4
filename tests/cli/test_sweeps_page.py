"""docs/sweeps.md lists all samplers, pruners and forms of spaces."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hotloop.algorithms import ppo
from hotloop.experiments.pruners import PRUNERS
from hotloop.experiments.samplers import SAMPLERS
from hotloop.experiments.spaces import parse

TEXT = (Path(__file__).parent.parent.parent / "docs" / "sweeps.md").read_text(encoding="utf-8")


def test_the_tables_list_all_samplers_and_pruners():
    part = TEXT.partition("<!-- sweep names -->")[2].partition("<!-- end sweep names -->")[0]
    table = dict(re.findall(r"^\| `([a-z]+)` \| (.*) \|$", part, re.MULTILINE))
    assert table == {**SAMPLERS, **PRUNERS}


def test_the_example_spaces_are_valid():
    part = TEXT.partition("## Spaces")[2].partition("\n## ")[0]
    examples = re.findall(r"^\| `(\w+)=(.*?)` \|", part, re.MULTILINE)
    assert len(examples) == 10
    for name, text in examples:
        assert parse({name: text}, ppo.Config)


@pytest.fixture
def scripts(tmp_path):
    """Write the scripts of other tuners to files, with short trainings."""
    part = TEXT.partition("## Other tuners")[2].partition("\n## ")[0]
    blocks = re.findall(r"```python\n(.*?)```", part, re.DOTALL)
    assert len(blocks) == 2
    for name, block in zip(("sweep.py", "agent.py"), blocks, strict=True):
        (tmp_path / name).write_text(block.replace("20_000", "2_000"))
    return tmp_path


@pytest.mark.slow
def test_hydras_multirun_runs_the_script(scripts):
    pytest.importorskip("hydra")
    command = [sys.executable, "sweep.py", "--multirun", "+learning_rate=1e-4,1e-3"]
    command += ["+total_timesteps=1024", "+execution=eager", "+env_id=CartPole-v1"]
    subprocess.run(command, check=True, cwd=scripts)
    runs = [*scripts.glob("multirun/*/*/*/runs/*/config.json"), *scripts.glob("runs/*/config.json")]
    assert len(runs) == 2


@pytest.mark.outside  # the service of W&B
def test_a_wandb_agent_runs_the_script(scripts):
    pytest.importorskip("wandb")
    env = {**os.environ, "WANDB_MODE": "offline", "WANDB_DIR": str(scripts)}
    subprocess.run([sys.executable, "agent.py"], check=True, cwd=scripts, env=env)
    assert [*scripts.glob("runs/*/config.json")]
    assert [*scripts.glob("wandb/offline-run-*")]
