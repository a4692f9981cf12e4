"""docs/sweeps.md lists the samplers, pruners and forms of spaces that there are."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hotloop.algorithms import ppo
from hotloop.sweeps.pruners import PRUNERS
from hotloop.sweeps.samplers import SAMPLERS
from hotloop.sweeps.spaces import parse

TEXT = (Path(__file__).parent.parent.parent / "docs" / "sweeps.md").read_text(encoding="utf-8")


def test_the_tables_of_names_are_what_there_is():
    part = TEXT.partition("<!-- sweep names -->")[2].partition("<!-- end sweep names -->")[0]
    told = dict(re.findall(r"^\| `([a-z]+)` \| (.*) \|$", part, re.MULTILINE))
    assert told == {**SAMPLERS, **PRUNERS}


def test_the_spaces_that_are_shown_are_spaces():
    part = TEXT.partition("## Spaces")[2].partition("\n## ")[0]
    shown = re.findall(r"^\| `(\w+)=(.*?)` \|", part, re.MULTILINE)
    assert len(shown) == 10
    for name, text in shown:
        assert parse({name: text}, ppo.Config)


@pytest.fixture
def scripts(tmp_path):
    """The scripts of other tuners, in files of their own, and trained for a moment."""
    part = TEXT.partition("## Other tuners")[2].partition("\n## ")[0]
    blocks = re.findall(r"```python\n(.*?)```", part, re.DOTALL)
    assert len(blocks) == 2
    for name, block in zip(("sweep.py", "agent.py"), blocks, strict=True):
        (tmp_path / name).write_text(block.replace("20_000", "2_000"))
    return tmp_path


def test_hydras_multirun_calls_it(scripts):
    pytest.importorskip("hydra")
    command = [sys.executable, "sweep.py", "--multirun", "+learning_rate=1e-4,1e-3"]
    command += ["+total_timesteps=1024", "+execution=eager", "+env_id=CartPole-v1"]
    subprocess.run(command, check=True, cwd=scripts)
    runs = [*scripts.glob("multirun/*/*/*/runs/*/config.json"), *scripts.glob("runs/*/config.json")]
    assert len(runs) == 2


@pytest.mark.outside  # the service of W&B
def test_an_agent_of_wandb_calls_it(scripts):
    pytest.importorskip("wandb")
    env = {**os.environ, "WANDB_MODE": "offline", "WANDB_DIR": str(scripts)}
    subprocess.run([sys.executable, "agent.py"], check=True, cwd=scripts, env=env)
    assert [*scripts.glob("runs/*/config.json")]
    assert [*scripts.glob("wandb/offline-run-*")]
